/* The agent's side of file requests: workers, and the streams they serve. */
#ifndef FILES_H
#define FILES_H

#include <sys/types.h>

#include "loop.h"
#include "users.h"
#include "wire.h"

#define MAX_WORKERS 8
#define MAX_WATCHES 32

struct conn;
struct file;

/* A process that does file work with one user's rights. Frames travel whole, one a packet, under its own stream ids. */
struct worker {
    struct watch watch; /* fd -1 or events 0: not running */
    pid_t pid;
    char name[NAME_SIZE]; /* the user as asked for; empty: the slot was never used */
    struct buf queue;     /* frames that its socket did not take yet */
    struct file *files;
    uint32_t last_id;
};

void files_init(void);
/* Gives back what the queues to the workers do not need now. */
void files_trim(void);
/* Serves a file request, STATS or PORTS through a worker; false: malformed. */
bool files_open(struct conn *c, const struct frame *f);

#endif
