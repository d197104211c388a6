/*
 * Finds out which processes the kernel has killed for want of memory. The kernel counts them for the whole sandbox and
 * does not say whose they were, and a process further down is reaped by its own parent. So every tree that lived at that
 * time is a candidate for a kill, until one of them gets it: the one where something is known to have died of it, the
 * only one, or else the one with the largest process, since that is what the kernel kills.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "proc/proc.h"
#include "proc/process_tree.h"

#define SHELLS_KILL (128 + SIGKILL) /* what a shell makes of a program that was killed */
#define VICTIM_KB (16 * 1024)       /* what fills a sandbox is larger than a shell or a small script */

/* -1 where there is no counter. Both memory.oom_control and memory.events have a line "oom_kill N". */
static int64_t count(void)
{
    char text[1024] = "\n";

    if (agent.oom_fd < 0)
        return -1;
    ssize_t n = pread(agent.oom_fd, text + 1, sizeof text - 2, 0);
    if (n <= 0)
        return -1;
    text[n + 1] = 0;
    const char *line = strstr(text, "\noom_kill ");
    return line ? strtoll(line + strlen("\noom_kill "), NULL, 10) : -1;
}

/* Some of its processes may be alive, even without the main process. */
static bool alive(const struct proc *p) { return p->reports.fd >= 0; }

void oom_look(void)
{
    int64_t now = count(), more = now - agent.oom_count;

    if (now < 0)
        return;
    agent.oom_count = now;
    for (struct proc *p = agent.procs; p && more > 0; p = p->next)
        if (alive(p) || p->state == P_RUNNING || p->oom_checks)
            p->oom_open += more;
}

bool oom_suspected(const struct proc *p)
{
    int status = p->wait_status;

    if (agent.oom_fd < 0 || p->killed_by_us)
        return false;
    return p->orphans_killed || (WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == SHELLS_KILL);
}

/* A living tree shows only those of its processes that live, so a small one could seem to be the largest. */
static bool is_largest(const struct proc *p)
{
    if (p->peak < VICTIM_KB)
        return false;
    for (const struct proc *q = agent.procs; q; q = q->next)
        if (q != p && q->oom_open && alive(q) && q->supervisor && tree_peak(q->supervisor) > p->peak)
            return false;
    return true;
}

static bool is_alone(const struct proc *p)
{
    for (const struct proc *q = agent.procs; q; q = q->next)
        if (q != p && q->oom_open && alive(q))
            return false;
    return true;
}

void oom_settle(struct proc *p)
{
    int64_t own = 0;

    oom_look();
    if (!p->oom_open)
        return;
    if (is_alone(p))
        own = p->oom_open;
    else if (oom_suspected(p))
        own = p->orphans_killed ? p->orphans_killed : 1;
    else if (is_largest(p))
        own = p->oom_open;
    if (own > p->oom_open)
        own = p->oom_open;
    p->oom_kills += own;
    p->oom_open = 0;
    for (struct proc *q = agent.procs; q && own; q = q->next)
        q->oom_open -= q->oom_open < own ? q->oom_open : own;
}
