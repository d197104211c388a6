/* The life of a process: started, ended or killed, reported, kept for a while, forgotten. */
#include "proc/proc.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "base/errors.h"
#include "proc/supervise.h"
#include "proc/process_tree.h"

#define KEEP_ENDED 64
#define KILL_LOOK_MS 300  /* after this, kill a supervisor that something holds up, and do its work */
#define KILL_GRACE_MS 900 /* report the exit after this at the latest, whatever hangs in the kernel */
#define OOM_CHECKS 3      /* the counter may lag behind the death */
#define OOM_WAIT_MS 2

void proc_touch(struct proc *p)
{
    for (struct attach *a = p->attached; a; a = a->next)
        conn_touch(a->stream.conn);
}

void proc_free(struct proc *p)
{
    struct proc **at = &agent.procs;

    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    watch_close(&p->reports);
    input_close(&p->in);
    buf_free(&p->in.buffer);
    for (int i = 0; i < 2; i++) {
        output_close(&p->out[i]);
        ring_free(&p->out[i].ring);
    }
    buf_free(&p->argv);
    free(p);
}

static const char *status_of(const struct proc *p)
{
    if (p->killing == KILL_TIMEOUT)
        return "timed_out";
    if (p->killing == KILL_CANCEL)
        return "cancelled";
    if (!WIFSIGNALED(p->wait_status))
        return "exited";
    if (WTERMSIG(p->wait_status) == SIGKILL && !p->killed_by_us && p->oom_kills > 0)
        return "out_of_memory";
    return "signaled";
}

void put_exit(struct buf *b, const struct proc *p, uint8_t code_tag, uint8_t signal_tag)
{
    if (!p->status || p->killing == KILL_TIMEOUT || p->killing == KILL_CANCEL)
        return;
    if (WIFEXITED(p->wait_status))
        put_int(b, code_tag, WEXITSTATUS(p->wait_status));
    else
        put_int(b, signal_tag, WTERMSIG(p->wait_status));
}

static void finish(struct proc *p)
{
    unsigned ended = 0;

    p->status = status_of(p);
    p->state = P_ENDED;
    p->listed = p->listed && !p->foreground;
    for (struct proc *q = agent.procs; q; q = q->next) {
        ended += q->listed && q->state == P_ENDED;
        if (q != p && q->ended_order >= p->ended_order)
            p->ended_order = q->ended_order + 1;
    }
    if (ended > KEEP_ENDED)
        procs_drop_oldest();
    proc_touch(p);
}

void proc_settle(struct proc *p)
{
    if (p->state == P_ENDING && p->out[0].state == OUT_DONE && p->out[1].state == OUT_DONE && !p->oom_checks)
        finish(p);
    if (p->state != P_ENDED || p->listed || p->attached)
        return;
    ring_free(&p->out[0].ring);
    ring_free(&p->out[1].ring);
    if (p->reports.fd < 0 && !p->supervisor && p->out[0].watch.fd < 0 && p->out[1].watch.fd < 0)
        proc_free(p);
}

/* The main process has ended, or all that can be done about it has been. */
static void ending(struct proc *p, int wait_status, bool killed)
{
    p->wait_status = wait_status;
    p->duration_us = now_us() - p->started_us;
    p->wake = 0;
    oom_settle(p);
    if (!killed && oom_suspected(p) && !p->oom_kills) {
        p->oom_checks = OOM_CHECKS;
        p->wake = now_ms() + OOM_WAIT_MS;
    }
    input_close(&p->in);
    output_last(&p->out[0], killed);
    output_last(&p->out[1], killed);
    p->state = P_ENDING;
    proc_touch(p);
    proc_settle(p);
}

static void fail_start(struct proc *p, const char *code, int err, const char *message)
{
    struct attach *a = p->attached;

    p->state = P_ENDED;
    p->wake = 0;
    input_close(&p->in);
    output_close(&p->out[0]);
    output_close(&p->out[1]);
    if (a) {
        conn_error(a->stream.conn, a->stream.id, code, err, message);
        attach_remove(a);
    }
    proc_settle(p);
}

static void on_failed(struct proc *p, int err, int stage)
{
    char message[512];
    const char *code = error_code(err), *what = p->cwd;
    struct slice rest = {buf_front(&p->argv), buf_size(&p->argv)}, program = {0};
    uint8_t tag;

    if (stage == STAGE_EXEC && (err == ENOENT || err == ENOTDIR))
        code = "COMMAND_NOT_FOUND";
    if (stage == STAGE_EXEC && field_next(&rest, &tag, &program) > 0)
        what = "";
    if (stage == STAGE_USER || stage == STAGE_FORK)
        what = stage == STAGE_FORK ? "fork" : p->user;
    snprintf(message, sizeof message, "%s%.*s: %s%s", what, (int)(program.size < 256 ? program.size : 256),
             (const char *)program.data, error_text(err),
             err == E2BIG ? " (the kernel takes 128 KiB in one argument or variable, and 2 MiB in all)" : "");
    fail_start(p, code, err, message);
}

static void on_started(struct proc *p, pid_t pid)
{
    p->pid = pid;
    p->state = P_RUNNING;
    p->listed = true;
    for (struct attach *a = p->attached; a; a = a->next) {
        struct buf *b = &a->stream.conn->out;
        size_t mark = frame_begin(b, a->stream.id, T_REPLY, 0);
        put_int(b, 1, p->id);
        put_int(b, 2, p->pid);
        put_int(b, 3, p->started_ms);
        frame_end(b, mark);
        a->announced = true;
    }
    output_update(&p->out[0]);
    output_update(&p->out[1]);
    proc_touch(p);
}

/* Nothing is left, or the supervisor is dead and what it left is being killed. */
void proc_tree_ended(struct proc *p)
{
    if (p->state == P_STARTING && !p->pid)
        return fail_start(p, "IO_ERROR", 0, "the supervisor was killed");
    if (p->state == P_STARTING)
        on_started(p, p->pid); /* its own program killed it before it could report the start */
    if (p->state == P_RUNNING)
        return ending(p, p->exited ? p->wait_status : SIGKILL, !p->exited || p->killing);
    proc_settle(p);
}

void proc_supervisor_reaped(struct proc *p)
{
    p->supervisor = 0;
    if (!p->lost || p->state >= P_ENDING)
        proc_settle(p);
}

bool proc_is_lost(const struct proc *p)
{
    return p->lost && !p->supervisor && p->state < P_ENDING;
}

/* The socket ended before the supervisor said that nothing is left: its orphans come to us when it is reaped. */
static void supervisor_lost(struct proc *p)
{
    watch_close(&p->reports);
    p->lost = agent.orphans = true;
    if (p->supervisor)
        kill(p->supervisor, SIGKILL);
    if (!p->killing && p->state < P_ENDING) {
        p->killing = KILL_TREE;
        p->killed_by_us = p->pressed = true;
        p->wake = now_ms() + KILL_GRACE_MS;
    }
    if (!p->supervisor)
        procs_reap(); /* it was reaped before we knew; this may free the process */
}

static void note_end(struct proc *p, const struct report *r)
{
    p->exited = true;
    p->wait_status = r->value;
    p->orphans_killed = r->killed;
    p->peak = r->peak;
}

static void on_report(struct watch *w, uint32_t events)
{
    struct proc *p = container_of(w, struct proc, reports);
    struct report r;

    (void)events;
    for (;;) {
        ssize_t n = recv(w->fd, &r, sizeof r, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n != sizeof r)
            return supervisor_lost(p);
        if (r.kind == R_GONE || r.kind == R_ENDED) {
            if (r.kind == R_ENDED)
                note_end(p, &r);
            watch_close(w);
            return proc_tree_ended(p);
        }
        if (r.kind == R_FAILED && p->state == P_STARTING) {
            watch_close(w);
            return on_failed(p, r.value, r.stage);
        }
        if (r.kind == R_FORKED && p->state == P_STARTING)
            p->pid = r.value;
        if (r.kind == R_STARTED && p->state == P_STARTING)
            on_started(p, r.value);
        if (r.kind == R_EXITED && p->state == P_RUNNING) {
            note_end(p, &r);
            if (!p->killing) /* else with the last of its descendants */
                ending(p, r.value, false);
        }
    }
}

bool proc_start(struct conn *c, const struct frame *f)
{
    struct spawned s = proc_spawn(c, f);
    struct proc *p = s.proc, **at = &agent.procs;

    if (!p)
        return !s.malformed;
    p->id = ++agent.next_id;
    while (*at)
        at = &(*at)->next;
    *at = p;
    watch_init(&p->reports, p->reports.fd, on_report);
    struct attach *a = attach_new(c, f->stream, p, s.window);
    if (!a || watch_set(&p->reports, EPOLLIN) < 0) {
        c->dead = true; /* no memory */
        watch_close(&p->reports); /* ends the supervisor and all it has started */
        if (a)
            attach_remove(a);
        fail_start(p, "", 0, "");
        return true;
    }
    if (p->foreground)
        p->owner = a;
    attach_control(a);
    if (s.timeout_ms)
        p->wake = now_ms() + (s.timeout_ms < INT64_MAX / 2 ? s.timeout_ms : INT64_MAX / 2);
    return true;
}

void proc_kill(struct proc *p, enum kill_reason reason)
{
    if (p->state == P_ENDED || (p->killing && p->state != P_ENDING))
        return;
    proc_order(p, O_KILL, 0);
    if (p->state == P_ENDING) { /* its own end stands; only drop the rest of the tree and the output */
        for (int i = 0; i < 2; i++) {
            p->out[i].state = OUT_DONE;
            output_close(&p->out[i]);
        }
        return;
    }
    p->killing = reason;
    p->killed_by_us = true;
    p->wake = now_ms() + KILL_LOOK_MS;
}

/* A supervisor that is held up cannot do it, and one that was stopped may be stopped again at any time. */
static void press(struct proc *p)
{
    p->pressed = true;
    p->wake = now_ms() + KILL_GRACE_MS - KILL_LOOK_MS;
    if (p->supervisor && (p->disturbed || tree_held(p->supervisor)))
        kill(p->supervisor, SIGKILL);
}

/* Do it whatever keeps the supervisor from it. A tracer may keep a dead one from being reaped. */
static void kill_ourselves(const struct proc *p)
{
    if (p->supervisor)
        tree_kill(p->supervisor, NULL, 0);
    if (p->lost)
        procs_kill_orphans();
}

bool procs_gone(void)
{
    for (struct proc *p = agent.procs; p; p = p->next)
        if (p->reports.fd >= 0 || p->state != P_ENDED || p->controller)
            return false;
    return true;
}

static void run_timer(struct proc *p)
{
    p->wake = 0;
    if (p->state == P_ENDING && p->oom_checks) {
        oom_settle(p);
        p->oom_checks = p->oom_kills ? 0 : p->oom_checks - 1;
        p->wake = p->oom_checks ? now_ms() + OOM_WAIT_MS : 0;
        output_update(&p->out[0]);
        proc_settle(p);
    } else if (p->state == P_ENDING) {
        output_drain(&p->out[0]);
    } else if (!p->killing) {
        proc_kill(p, KILL_TIMEOUT);
    } else if (!p->pressed && p->state < P_ENDING) {
        press(p);
    } else if (p->state == P_STARTING) {
        kill_ourselves(p);
        fail_start(p, "IO_ERROR", ETIMEDOUT, "the program could not be started in time");
    } else if (p->state == P_RUNNING) {
        kill_ourselves(p);
        ending(p, p->exited ? p->wait_status : SIGKILL, true);
    }
}

int64_t procs_next_wake(void)
{
    int64_t next = -1;

    for (struct proc *p = agent.procs; p; p = p->next)
        if (p->wake && (next < 0 || p->wake < next))
            next = p->wake;
    return next;
}

void procs_run_timers(void)
{
    int64_t now = now_ms();

    for (struct proc *p = agent.procs; p;) {
        if (!p->wake || p->wake > now) {
            p = p->next;
            continue;
        }
        run_timer(p);
        p = agent.procs; /* any of them may be gone */
    }
}
