/* A walk through a tree with one open directory a level, each read whole and sorted; links are never followed. */
#ifndef WALK_H
#define WALK_H

#include <limits.h>
#include <sys/stat.h>

#include "base/wire.h"

#define LEVELS 256
#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK)

struct level {
    int fd;
    struct buf names;
    const char **order; /* the names, sorted */
    size_t count, at;
    size_t prefix; /* length of the path of this directory, with its slash */
};

struct walk {
    struct level level[LEVELS];
    int levels;
    /* The entry we are at: */
    int dir; /* the directory it is in */
    const char *name;
    struct stat st;
    int err;                 /* of asking for st; ENOENT: it has vanished */
    char path[PATH_MAX * 2]; /* relative to where the walk began */
};

/* Begins in a directory; the walk owns it from here on. `scratch` is room for reading names. 0 or an errno. */
int walk_start(struct walk *w, int fd, uint8_t *scratch, size_t size);
/* To the next entry, by name, a directory before what is in it if it was entered; false at the end. */
bool walk_next(struct walk *w);
/* Into the directory that we are at. 0 or an errno; EMFILE below 256 levels. */
int walk_enter(struct walk *w, uint8_t *scratch, size_t size);
void walk_end(struct walk *w);

#endif
