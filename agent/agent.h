/* The agent's one global: everything the loop works on. */
#ifndef AGENT_H
#define AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "base/env.h"
#include "worker/client.h"
#include "link/idle.h"
#include "base/loop.h"
#include "base/wire.h"

#define AGENT_VERSION "0.1.0"
#define SCRATCH (160 * 1024)

struct conn;
struct proc;

struct agent {
    int epoll;
    struct watch listener, signals;
    int null_fd; /* stdin of commands that get none */
    int oom_fd, words_fd; /* words_fd: for the last words */
    int64_t oom_count;    /* as last seen */
    bool greeted; /* a client has sent HELLO */
    struct rlimit nofile; /* as we found it; commands get it back */
    bool nofile_raised;

    int64_t started, deadline; /* CLOCK_BOOTTIME, ms; deadline 0: none */
    int64_t drain_until;       /* after a request to end: until then processes may end by themselves; 0: no request */
    const char *drain_why;     /* for the last words */
    const char *ending;        /* why, if at once; else NULL */
    struct idle idle;
    struct slice token;
    char *workdir, *user;
    struct env env;

    struct conn *conns, *dirty;
    unsigned conn_count;
    struct proc *procs;
    int64_t next_id;
    bool orphans; /* a supervisor died without saying that nothing is left */
    size_t ring_bytes;
    struct worker workers[MAX_WORKERS];
    int64_t look;        /* when to look after the workers; 0: no need */
    struct pulse *pulse; /* in a worker: its own */
    unsigned dials, file_jobs; /* connections to ports; file requests that count as work */
    uint8_t *scratch; /* SCRATCH bytes for what is on its way; never across events */
    bool untidy; /* memory was used that can go back in a lull */
};

extern struct agent agent;

/* Closes every descriptor from `first` to `last`; for forks. */
void close_between(unsigned first, unsigned last);
/* Blocks all signals to this process but SIGKILL and SIGSTOP; for forks. */
void block_signals(void);
/* Says its last words, kills what is left and exits; does not return. */
_Noreturn void agent_exit(const char *reason);

#endif
