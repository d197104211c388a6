/*
 * Inactivity. A client that is attached, a connection to a port or a file request is work for as long as it is there,
 * and each of them calls idle_touch when it goes. Processes that nobody is attached to work if they use CPU time.
 */
#include "link/idle.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent.h"
#include "link/life.h"
#include "proc/proc.h"
#include "proc/process_tree.h"

#define LOOK_MS 5000
#define LOOK_MIN_MS 50
#define TELL_AFTER_MS 1000 /* does not delay a request, and serves many of them at once */
#define TELL_MS 5000

static int64_t step(void)
{
    int64_t quarter = agent.idle.limit / 4;

    return quarter > LOOK_MS ? LOOK_MS : quarter < LOOK_MIN_MS ? LOOK_MIN_MS : quarter;
}

/* Used by all that we have ever started but the file workers: the time of the dead is in the sums of their reapers. */
static int64_t cpu_used(void)
{
    pid_t workers[MAX_WORKERS];
    size_t count = 0;
    struct rusage dead = {0};

    for (int i = 0; i < MAX_WORKERS; i++)
        if (agent.workers[i].pid)
            workers[count++] = agent.workers[i].pid;
    getrusage(RUSAGE_CHILDREN, &dead);
    return tree_cpu_ticks(getpid(), workers, count) * (1000000 / sysconf(_SC_CLK_TCK)) +
           (dead.ru_utime.tv_sec + dead.ru_stime.tv_sec) * INT64_C(1000000) + dead.ru_utime.tv_usec + dead.ru_stime.tv_usec;
}

/* A FOREGROUND command has its client as controller for as long as it runs. */
static bool busy(void)
{
    if (agent.dials || agent.file_jobs)
        return true;
    for (struct proc *p = agent.procs; p; p = p->next)
        if (p->controller)
            return true;
    return false;
}

void idle_init(int64_t limit)
{
    agent.idle = (struct idle){.limit = limit, .active = agent.started, .looked = agent.started, .told = agent.started};
    agent.idle.next = agent.started + step();
}

void idle_set(int64_t limit)
{
    struct idle *i = &agent.idle;
    bool measured = i->limit;
    int64_t now = now_ms();

    i->limit = limit;
    if (!limit)
        return;
    if (!measured) {
        i->active = i->looked = now;
        i->cpu_us = cpu_used();
    }
    if (!measured || i->next > now + step())
        i->next = now + step();
}

void idle_touch(void)
{
    agent.idle.active = now_ms();
    idle_begun();
}

void idle_begun(void)
{
    struct idle *i = &agent.idle;

    if (i->tell || agent.words_fd < 0)
        return;
    i->tell = now_ms() + TELL_AFTER_MS;
    if (i->told_at && i->tell < i->told_at + TELL_MS)
        i->tell = i->told_at + TELL_MS;
}

void idle_tell(void)
{
    struct idle *i = &agent.idle;

    if (!i->tell || now_ms() < i->tell)
        return;
    int64_t what = busy() ? -1 : i->active;
    i->tell = 0;
    if (what != i->told && life_note(what))
        i->told = what;
    i->told_at = now_ms();
}

int64_t idle_for(void)
{
    return agent.idle.limit && !busy() ? now_ms() - agent.idle.active : 0;
}

int64_t idle_next_wake(void)
{
    struct idle *i = &agent.idle;

    if (!i->limit)
        return i->tell ? i->tell : -1;
    return i->tell && i->tell < i->next ? i->tell : i->next;
}

bool idle_over(void)
{
    struct idle *i = &agent.idle;
    int64_t now = i->limit ? now_ms() : 0;

    if (!i->limit || now < i->next)
        return false;
    /* Time in which we did not run, as in a frozen sandbox, is not inactivity. */
    i->active += now - i->next;
    /* A sum that falls is work too: processes have ended that nobody waited for. */
    int64_t used = cpu_used(), change = llabs(used - i->cpu_us);
    bool computes = change * 100 >= (now - i->looked) * 1000; /* 1 % of one core */
    if (busy() || computes || i->active > now) {
        i->active = now;
        idle_begun();
    }
    i->cpu_us = used;
    i->looked = now;
    i->next = now + step();
    return now - i->active >= i->limit;
}
