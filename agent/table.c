/* The table of processes: finding, listing, forgetting, and taking in the dead. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "proc.h"
#include "tree.h"

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

/* Children of ours that are neither supervisors nor workers came from a supervisor that was killed. */
void procs_kill_orphans(void)
{
    size_t count = 0;

    for (struct proc *p = agent.procs; p; p = p->next)
        count++;
    pid_t *keep = malloc((count + MAX_WORKERS) * sizeof *keep);
    if (!keep)
        return;
    count = 0;
    for (struct proc *p = agent.procs; p; p = p->next)
        if (p->supervisor)
            keep[count++] = p->supervisor;
    for (int i = 0; i < MAX_WORKERS; i++)
        if (agent.workers[i].pid)
            keep[count++] = agent.workers[i].pid;
    tree_kill(getpid(), keep, count);
    free(keep);
}

static bool known(pid_t pid)
{
    for (int i = 0; i < MAX_WORKERS; i++)
        if (agent.workers[i].pid == pid) {
            agent.workers[i].pid = 0;
            return true;
        }
    for (struct proc *p = agent.procs; p; p = p->next)
        if (p->supervisor == pid) {
            proc_supervisor_reaped(p);
            return true;
        }
    return false;
}

void procs_reap(void)
{
    bool orphans = false;
    pid_t pid;

    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
        orphans = !known(pid) || orphans;
    if (orphans)
        procs_kill_orphans(); /* the children of an orphan are ours now */
}
