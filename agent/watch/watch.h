/* The directories that a WATCH covers: where each is, by its watch descriptor and by its name. */
#ifndef FSWATCH_H
#define FSWATCH_H

#include <sys/inotify.h>

#include "worker/worker.h"

#define WATCH_DIRS 32768
#define WATCH_PATH 16384 /* a longer path is beyond what is watched */

/* A directory; the root may be a file. Its path is that of its parent and its name, so a renamed tree follows. */
struct node {
    int wd;
    char *name;
    struct node *parent, *child, *next, *prev; /* next, prev: siblings */
    struct node *same_wd, *same_name;          /* chains of the tables */
    struct node *todo;                         /* the next to be scanned */
    bool queued, again;                        /* to be scanned: soon, or once its own rename has been read */
    bool announce;                             /* what the scan finds is `created` */
};

/* A name that a scan has found, whose own event may still be queued. */
struct seen;

struct tree {
    struct node *root;
    struct node **by_wd, **by_name;
    unsigned count;
    struct node *first, *last; /* to be scanned */
    struct seen **seen;
    unsigned seen_count;
};

/* False: no memory. */
bool tree_init(struct tree *t);
void tree_free(struct tree *t);

struct node *tree_find(const struct tree *t, int wd);
struct node *tree_child(const struct tree *t, const struct node *parent, const char *name);
/* NULL: no memory. The first becomes the root. */
struct node *tree_add(struct tree *t, struct node *parent, const char *name, int wd);
bool tree_move(struct tree *t, struct node *n, struct node *parent, const char *name);
/* Drops a node with all below it; `gone` is called with each descriptor. */
void tree_drop(struct tree *t, struct node *n, void (*gone)(void *, int wd), void *context);
/* Whether `n` is `of` or above it. */
bool tree_above(const struct node *n, const struct node *of);
/* The path below the root of `name` in `n` (NULL: of `n` itself), empty for the root; NULL if it is too long. */
const char *tree_path(const struct node *n, const char *name, char to[WATCH_PATH]);

void tree_queue(struct tree *t, struct node *n);
struct node *tree_next(struct tree *t);

bool seen_add(struct tree *t, int wd, const char *name);
/* Removes a name; returns whether it was there. */
bool seen_take(struct tree *t, int wd, const char *name);
void seen_clear(struct tree *t);

#define HELD 8

/* The first half of a rename, until the second comes or is known not to. */
struct held {
    uint32_t cookie; /* 0: free */
    int wd;
    bool dir;
    int64_t due;
    char name[NAME_MAX + 1];
};

/* The job of a WATCH. */
struct watching {
    struct job job; /* its fd is the inotify instance */
    char path[PATH_MAX];
    struct stat st; /* of the path */
    bool recursive, established;
    bool lost;      /* events were lost: register everything again */
    bool overflows; /* registering again is under way; then `overflow` says so */
    bool gone;      /* the path itself is gone */
    int error;      /* the stream ends with it once what is pending has been sent */
    bool again;     /* some nodes wait for their own rename */
    int scan;       /* the directory being read, of `scanned`; -1: none */
    struct node *scanned;
    struct tree tree;
    struct held held[HELD];
    struct buf pending; /* events, as they go out */
    size_t last;        /* the size of the last one; 0: it has left */
    int64_t window, count;
    uint64_t sent;
};

/* The inotify instance and the root; 0 or an errno. */
int watch_begin(struct watching *w);
void watch_end(struct watching *w);
/* Reads one part of one directory that waits for it. */
void watch_scan(struct fs *fs, struct watching *w);
/* Takes events from the kernel; false if there are none. */
bool watch_read(struct watching *w);
/* Settles halves of renames whose time is up; returns when the next one is due, or 0. */
int64_t watch_settle(struct watching *w, int64_t now);
/* Puts an event in line; `from` is NULL but for `renamed`. */
void watch_emit(struct watching *w, const char *kind, const char *path, bool dir, const char *from);

#endif
