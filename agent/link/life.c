/* The end of the sandbox: its causes, the time processes get before it, and the last words. */
#include "link/life.h"

#include <signal.h>
#include <unistd.h>

#include "agent.h"
#include "link/conn.h"
#include "proc/proc.h"

#define TERMINATE_GRACE_MS 5000
#define LONGEST_MS (INT64_C(10) * 365 * 24 * 3600 * 1000)

static int64_t bounded(int64_t ms) { return ms < LONGEST_MS ? ms : LONGEST_MS; }

static bool any_lease(void)
{
    for (struct conn *c = agent.conns; c; c = c->next)
        if (c->leases)
            return true;
    return false;
}

/* If the end is asked for again, the earlier one counts. */
static void end(int64_t grace, const char *why)
{
    int64_t until = now_ms() + bounded(grace);

    if (!grace && !agent.ending)
        agent.ending = why; /* once this answer has been written */
    if (!agent.drain_until && grace)
        procs_terminate();
    if (!agent.drain_until)
        agent.drain_why = why;
    if (!agent.drain_until || until < agent.drain_until)
        agent.drain_until = until;
}

void life_terminate(void) { end(TERMINATE_GRACE_MS, "terminated"); }

bool request_life(struct conn *c, const struct frame *f)
{
    int64_t deadline = INT64_MIN, lease = -1, ends = 0, idle = INT64_MIN, grace = INT64_MIN, now = now_ms();
    struct want wants[] = {{1, &deadline, NULL}, {2, &lease, NULL}, {3, &ends, NULL}, {4, &idle, NULL}, {5, &grace, NULL}};
    const char *why = NULL;

    if (!fields_decode(f->payload, wants, 5))
        return false;
    if ((deadline < -1 && deadline != INT64_MIN) || lease < -1 || lease > 1)
        why = "deadline_ms is -1 or more, lease is 0 or 1";
    else if ((idle < -1 && idle != INT64_MIN) || idle == 0)
        why = "idle_ms is -1, or 1 or more";
    else if (grace != INT64_MIN && (grace < 0 || ends != 1))
        why = "grace_ms is 0 or more, and goes with end";
    if (why)
        return conn_error(c, f->stream, "INVALID_ARGUMENT", 0, why), true;
    if (deadline == -1)
        agent.deadline = 0;
    else if (deadline >= 0)
        agent.deadline = now + bounded(deadline);
    if (lease >= 0)
        c->leases = lease;
    if (idle != INT64_MIN)
        idle_set(idle > 0 ? bounded(idle) : 0);
    if (ends == 1)
        end(grace > 0 ? grace : 0, "end");
    size_t mark = frame_begin(&c->out, f->stream, T_REPLY, F_FINAL);
    put_int(&c->out, 1, agent.deadline ? agent.deadline - now : -1);
    put_int(&c->out, 2, any_lease());
    put_int(&c->out, 3, now - agent.started);
    put_int(&c->out, 4, agent.idle.limit ? agent.idle.limit : -1);
    put_int(&c->out, 5, idle_for());
    frame_end(&c->out, mark);
    conn_touch(c);
    return true;
}

int64_t life_next_wake(void)
{
    int64_t next = agent.drain_until ? agent.drain_until : idle_next_wake();

    return agent.deadline && (next < 0 || agent.deadline < next) ? agent.deadline : next;
}

/* Whether every answer has gone out, so that clients see how their processes ended. */
static bool all_told(void)
{
    for (struct conn *c = agent.conns; c; c = c->next)
        if (buf_size(&c->out))
            return false;
    return true;
}

const char *life_over(void)
{
    bool late = agent.deadline && now_ms() >= agent.deadline;

    /* The reason stays the first one, even if something else makes the end come sooner. */
    if (agent.drain_until)
        return agent.ending || late || now_ms() >= agent.drain_until || (procs_gone() && all_told()) ? agent.drain_why : NULL;
    if (agent.ending)
        return agent.ending;
    if (late)
        return "deadline";
    return idle_over() ? "idle" : NULL;
}

static void compose(struct buf *b, const char *reason, int64_t at, bool with_env)
{
    size_t mark = frame_begin(b, 0, T_WORDS, 0);

    put_text(b, 1, reason);
    put_int(b, 2, at);
    if (with_env)
        put_int(b, 3, (int64_t)agent.env.count);
    for (size_t i = 0; with_env && i < agent.env.count; i++)
        put_text(b, 4, agent.env.list[i]);
    frame_end(b, mark);
}

/* Both reasons have the same length: a note takes the place of the one before as a whole. */
bool life_note(int64_t active)
{
    struct buf b = {0};

    compose(&b, active < 0 ? "at_work" : "at_rest", wall_ms() - (active < 0 ? 0 : now_ms() - active), false);
    signal(SIGXFSZ, SIG_IGN); /* do not die of a limit on file sizes */
    bool done = !b.failed && pwrite(agent.words_fd, buf_front(&b), buf_size(&b), 0) == (ssize_t)buf_size(&b);
    signal(SIGXFSZ, SIG_DFL);
    buf_free(&b);
    return done;
}

_Static_assert(ENV_LIMIT + 4096 < MAX_PAYLOAD, "an environment fits in a frame");

/* Without memory or disk for the environment there may still be some for the reason. */
void life_last_words(const char *reason)
{
    if (agent.words_fd < 0)
        return;
    signal(SIGXFSZ, SIG_IGN); /* do not die of a limit on file sizes */
    if (ftruncate(agent.words_fd, 0) < 0) /* removes a note */
        return;
    for (int with_env = 1; with_env >= 0; with_env--) {
        struct buf b = {0};
        compose(&b, reason, wall_ms(), with_env);
        bool done = !b.failed && pwrite(agent.words_fd, buf_front(&b), buf_size(&b), 0) == (ssize_t)buf_size(&b);
        buf_free(&b);
        if (done || ftruncate(agent.words_fd, 0) < 0)
            return;
    }
}
