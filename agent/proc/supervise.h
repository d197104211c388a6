/* The supervisor: a process between the agent and each command, whose descendants it can find and end. */
#ifndef SUPERVISE_H
#define SUPERVISE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/users.h"

/* What the supervisor tells the agent. EXITED: others of the tree live until GONE; ENDED: it was the last. */
enum report_kind { R_FORKED = 1, R_STARTED, R_FAILED, R_EXITED, R_ENDED, R_GONE };
enum stage { STAGE_FORK = 1, STAGE_USER, STAGE_CWD, STAGE_EXEC };
struct report {
    int kind;
    int value; /* pid, errno or wait status */
    int stage;
    int killed;   /* orphans of the tree that died of a SIGKILL which the supervisor did not send */
    int64_t peak; /* kB that the largest process among the dead of the tree had in memory */
};

/* The agent's orders. TERMINATE: ask the whole tree to end; for a terminal (`signal` SIGHUP) hang up too. */
enum order_kind { O_SIGNAL = 1, O_KILL, O_TERMINATE };
struct order {
    int kind;
    int signal;
};

/* A command ready to run; everything is the caller's. */
struct launch {
    char **argv, **envp;
    const char *cwd, *path; /* path: PATH as the command sees it */
    const struct user *user;
    int stdio[3];
    bool terminal; /* stdio is a terminal, which becomes the session's controlling one */
    /* Written by the child, which shares our memory until it has become the program. */
    volatile int err, stage;
};

/* Forks a supervisor that runs the command; its pid, or -1. `sock` is the agent's end of a packet socket. */
pid_t supervise(struct launch *l, int *sock);

#endif
