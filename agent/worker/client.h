/* The agent's side of file requests: workers, and the streams they serve. */
#ifndef FILES_H
#define FILES_H

#include <stdatomic.h>
#include <sys/types.h>

#include "link/conn.h"
#include "base/loop.h"
#include "base/users.h"
#include "base/wire.h"

#define MAX_WORKERS 8
#define MAX_WATCHES 32

/* Memory shared with a worker, which shows that the worker still makes progress. */
struct pulse {
    _Atomic uint64_t beats;
    _Atomic uint32_t errand; /* the stream that it works for; 0: it waits */
};

/* A process that does file work with one user's rights. Frames travel whole, one a packet, under its own stream ids. */
struct worker {
    struct watch watch; /* fd -1 or events 0: not running */
    int inbox;          /* its own end: what it has not taken can be taken back from there */
    pid_t pid;
    struct pulse *pulse;
    uint64_t beats; /* at the last look, */
    unsigned still; /* and how many looks ago they were the same */
    char name[NAME_SIZE]; /* the user as asked for; empty: the slot was never used */
    struct buf queue;     /* frames that its socket did not take yet */
    struct file *files;
    uint32_t last_id;
};

/* A stream of a client and of a worker at once. */
struct file {
    struct stream stream;
    struct worker *worker;
    struct file *next;
    uint32_t id; /* the worker's */
    bool writes, watches, ended;
    bool works; /* counts as work: the sandbox is not idle while it is open */
    uint64_t credit;       /* the client's, not yet passed on */
    uint64_t granted;      /* passed on, not yet used */
    uint64_t input_credit; /* what the client may still send */
};
/* Ends the stream, after everything was said on it. */
void file_remove(struct file *file);
/* A frame of a worker goes to the client. */
void file_relay(struct worker *w, const struct frame *f);

/* workers.c: the running worker of that user, started if need be; NULL with errno (EINVAL: no such user). */
struct worker *worker_for(const char *name);
/* Queues a DATA packet, or sends it at once, without a copy, if nothing is queued before it. */
void worker_data(struct worker *w, uint32_t id, uint8_t flags, uint64_t offset, struct slice bytes);
/* Sends what is in its queue, as far as its socket takes it. */
void worker_send(struct worker *w);
/* The worker is dead and was reaped. */
void worker_reaped(struct worker *w);

void files_init(void);
/* When to look after the workers (-1: no need), and doing so. */
int64_t files_next_wake(void);
void files_look(void);
/* Gives back what the queues to the workers do not need now. */
void files_trim(void);
/* Serves a file request, STATS or PORTS through a worker; false: malformed. */
bool files_open(struct conn *c, const struct frame *f);

#endif
