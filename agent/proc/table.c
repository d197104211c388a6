/* The table of processes: finding, listing, forgetting, and taking in the dead. */
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "proc/proc.h"
#include "proc/supervise.h"
#include "proc/process_tree.h"

struct proc *proc_find(int64_t id)
{
    for (struct proc *p = agent.procs; p; p = p->next)
        if (p->id == id && p->listed)
            return p;
    return NULL;
}

bool procs_list(struct conn *c, const struct frame *f)
{
    struct buf *b = &c->out;

    if (!fields_decode(f->payload, NULL, 0))
        return false;
    for (struct proc *p = agent.procs; p; p = p->next) {
        if (!p->listed)
            continue;
        size_t mark = frame_begin(b, f->stream, T_REPLY, 0);
        put_int(b, 1, p->id);
        put_int(b, 2, p->pid);
        put_int(b, 3, p->started_ms);
        buf_put(b, buf_front(&p->argv), buf_size(&p->argv));
        put_text(b, 5, p->status ? p->status : "running");
        put_exit(b, p, 6, 7);
        put_int(b, 8, (int64_t)p->out[0].ring.end);
        put_int(b, 9, (int64_t)p->out[1].ring.end);
        put_text(b, 10, p->user);
        if (p->cols) {
            put_int(b, 11, p->cols);
            put_int(b, 12, p->rows);
        }
        put_int(b, 13, p->oom_kills);
        frame_end(b, mark);
    }
    frame_end(b, frame_begin(b, f->stream, T_REPLY, F_FINAL));
    conn_touch(c);
    return true;
}

bool procs_drop_oldest(void)
{
    struct proc *oldest = NULL;

    for (struct proc *p = agent.procs; p; p = p->next)
        if (p->listed && p->state == P_ENDED && (!oldest || p->ended_order < oldest->ended_order))
            oldest = p;
    if (!oldest)
        return false;
    oldest->listed = false;
    proc_settle(oldest);
    return true;
}

/* Children that are neither supervisors nor workers come from a killed supervisor; returns whether any is left. */
bool procs_kill_orphans(void)
{
    size_t count = 0;

    for (struct proc *p = agent.procs; p; p = p->next)
        count++;
    pid_t *keep = malloc((count + MAX_WORKERS) * sizeof *keep);
    if (!keep)
        return true;
    count = 0;
    for (struct proc *p = agent.procs; p; p = p->next)
        if (p->supervisor)
            keep[count++] = p->supervisor;
    for (int i = 0; i < MAX_WORKERS; i++)
        if (agent.workers[i].pid)
            keep[count++] = agent.workers[i].pid;
    bool left = tree_kill(getpid(), keep, count);
    free(keep);
    return left;
}

/* The main process of a command comes to us only when its supervisor was killed: report the main process's own end. */
static void note_exit(pid_t pid, int status)
{
    struct report r;

    for (struct proc *p = agent.procs; p; p = p->next) {
        /* What its supervisor said of it may not have been read yet. */
        if (!p->pid && p->reports.fd >= 0 && recv(p->reports.fd, &r, sizeof r, MSG_DONTWAIT | MSG_PEEK) == sizeof r &&
            r.kind == R_FORKED)
            p->pid = r.value;
        if (p->pid != pid || p->exited || p->state >= P_ENDING)
            continue;
        p->exited = true;
        p->wait_status = status;
        return;
    }
}

static bool supervisor_or_worker(pid_t pid)
{
    for (int i = 0; i < MAX_WORKERS; i++)
        if (agent.workers[i].pid == pid)
            return true;
    for (struct proc *p = agent.procs; p; p = p->next)
        if (p->supervisor == pid)
            return true;
    return false;
}

/* A process with the rights to do so has stopped one of ours: continue it. */
static void wake(pid_t pid)
{
    if (supervisor_or_worker(pid))
        kill(pid, SIGCONT);
    for (struct proc *p = agent.procs; p; p = p->next)
        p->disturbed = p->disturbed || p->supervisor == pid;
}

static bool known(pid_t pid)
{
    for (int i = 0; i < MAX_WORKERS; i++)
        if (agent.workers[i].pid == pid) {
            worker_reaped(&agent.workers[i]);
            return true;
        }
    for (struct proc *p = agent.procs; p; p = p->next)
        if (p->supervisor == pid) {
            proc_supervisor_reaped(p);
            return true;
        }
    return false;
}

/* A command whose supervisor was killed has ended when none of the orphans of such supervisors is left. */
static void end_lost(void)
{
    for (struct proc *p = agent.procs; p;) {
        if (!proc_is_lost(p)) {
            p = p->next;
            continue;
        }
        proc_tree_ended(p);
        p = agent.procs; /* any of them may be gone */
    }
}

void procs_reap(void)
{
    bool orphans = false;
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
        if (WIFSTOPPED(status)) {
            wake(pid);
        } else if (!known(pid)) {
            note_exit(pid, status);
            orphans = true;
        }
    }
    if ((!orphans && !agent.orphans) || procs_kill_orphans()) /* the children of an orphan are ours now */
        return;
    agent.orphans = false;
    for (struct proc *p = agent.procs; p; p = p->next)
        agent.orphans = agent.orphans || (p->lost && p->supervisor); /* what it leaves comes when it is reaped */
    end_lost();
}
