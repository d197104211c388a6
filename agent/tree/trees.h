/* Making and taking tree streams. PACK and UNPACK put one on the wire, COPY feeds one into the other. */
#ifndef TREES_H
#define TREES_H

#include "worker/worker.h"
#include "tree/records.h"
#include "tree/walk.h"

#define ENOUGH 65536 /* bytes of records that one step makes */

/* How much was sent or written. */
struct tally {
    int64_t entries, files, directories, links, bytes, lost;
};

/* Where a hard link's first name is found again, by device and inode. */
struct hardlinks {
    struct { dev_t dev; ino_t ino; uint32_t name; } *slot; /* name: its place in names + 1 */
    size_t cap, count;
    struct buf names;
};
/* The earlier name of a file, or NULL. */
const char *hardlink_find(const struct hardlinks *h, const struct stat *st);
/* Remembers a file's first name, as long as there is room. */
void hardlink_keep(struct hardlinks *h, const struct stat *st, const char *path);
void hardlinks_free(struct hardlinks *h);

struct packer {
    struct walk walk;
    struct buf out;      /* records that wait to be taken */
    struct buf options;  /* the names to leave out, as fields */
    struct hardlinks hardlinks;
    struct tally tally;
    struct stat root;
    int64_t max_size; /* -1: none */
    bool counting;    /* only the tally and `sizes`; nothing is put out */
    bool no_content, started, done;
    int64_t sizes;
    int file;            /* the one being read, or -1 */
    uint64_t at, end;    /* of what is read of it */
    bool sparse, to_end; /* look for holes; read until nothing comes, for files that have no size */
    char path[PATH_MAX];
};

/* Opens a file or a directory, links followed; 0 or an errno. */
int packer_open(struct packer *p, const char *path);
/* Makes some more records (or counts some more entries); 0 or an errno. `done` says that all is out. */
int packer_fill(struct packer *p, uint8_t *scratch);
/* From counting to packing, from the start. */
void packer_rewind(struct packer *p);
void packer_close(struct packer *p);

/* A directory being filled; one that is `fresh` gets its mode and time when nothing more comes for it. */
struct made {
    int fd;
    size_t prefix;
    bool fresh;
    mode_t mode;
    int64_t mtime_ns;
};

enum { UNPACK_MERGE = 1, UNPACK_PARENTS = 2, UNPACK_NEW = 4, UNPACK_NO_DIR = 8 }; /* no_dir: an existing directory stays */

struct unpacker {
    int parent; /* where the target is */
    int base;   /* where `temp` is: there, or in the target itself */
    int64_t flags;
    struct records records;
    struct tally tally;
    struct made stack[LEVELS];
    int depth;
    int file; /* the one being written, or -1 */
    uint64_t at;
    bool ended, is_file;
    struct entry entry;
    char dir[TREE_PATH_MAX + 1]; /* the path of the directory on top, with its slash */
    char name[NAME_MAX + 1], temp[NAME_MAX + 1], part[NAME_MAX + 1], path[PATH_MAX];
};

int unpacker_open(struct unpacker *u, const char *path, int64_t flags);
/* Each: 0 or an errno. */
int unpacker_feed(struct unpacker *u, struct slice bytes);
/* Nothing more comes: sets the last modes and times, except the root's. */
int unpacker_finish(struct unpacker *u);
void unpacker_close(struct unpacker *u);

void put_tally(struct buf *b, const struct tally *t);

#endif
