/* What supervisors are told to do, by clients and at the end. */
#include <signal.h>
#include <sys/socket.h>

#include "agent.h"
#include "proc/proc.h"
#include "proc/supervise.h"

bool proc_order(struct proc *p, int kind, int sig)
{
    struct order o = {kind, sig};

    return p->reports.fd >= 0 && send(p->reports.fd, &o, sizeof o, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof o;
}

bool proc_signal(struct conn *c, const struct frame *f)
{
    int64_t id = 0, sig = 0, scope = 0;
    struct want wants[] = {{1, &id, NULL}, {2, &sig, NULL}, {3, &scope, NULL}};

    if (!fields_decode(f->payload, wants, 3))
        return false;
    struct proc *p = proc_find(id);
    if (scope < 0 || scope > 1 || (scope == 0 && (sig < 1 || sig > 64))) {
        conn_error(c, f->stream, "INVALID_ARGUMENT", 0, "signals are 1 to 64, scopes 0 and 1");
        return true;
    }
    bool running = p && p->state == P_RUNNING && !p->exited;
    if (!running && !(p && scope == 1 && p->reports.fd >= 0)) {
        conn_error(c, f->stream, "PROCESS_NOT_FOUND", 0, "no running process with this id");
        return true;
    }
    if (running && scope == 1) {
        proc_kill(p, KILL_TREE);
        idle_touch();
        if (!attach_until_gone(c, f->stream, p))
            c->dead = true; /* no memory */
        return true;
    }
    if (!proc_order(p, scope == 1 ? O_KILL : O_SIGNAL, (int)sig))
        return conn_error(c, f->stream, "IO_ERROR", 0, "the supervisor does not listen"), true;
    if (sig == SIGKILL)
        p->killed_by_us = true;
    idle_touch();
    frame_end(&c->out, frame_begin(&c->out, f->stream, T_REPLY, F_FINAL));
    conn_touch(c);
    return true;
}

void procs_terminate(void)
{
    for (struct proc *p = agent.procs; p; p = p->next)
        proc_order(p, O_TERMINATE, p->cols ? SIGHUP : 0);
}
