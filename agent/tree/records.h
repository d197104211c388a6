/* The records of a tree stream: taken apart without touching a file. See "Trees" in docs/design/wire.md. */
#ifndef RECORDS_H
#define RECORDS_H

#include "base/wire.h"

#define RECORD_HEAD 5
#define RECORD_MAX 131072 /* an ENTRY; the bytes of a CONTENT */
#define TREE_PATH_MAX 8192

enum record_kind { R_ENTRY = 1, R_CONTENT, R_FILE_END, R_SKIPPED, R_TREE_END };

struct records {
    struct buf held;       /* the beginning of a record */
    uint64_t offset, left; /* of a CONTENT under way */
};

/* A whole record, or a piece of a CONTENT: then `offset` is where it goes. */
struct record {
    uint8_t kind;
    uint64_t offset;
    struct slice payload;
};

/* Takes the next one off `bytes`: 1, or 0 if it is not all there yet, or -1 if it is malformed. */
int record_next(struct records *r, struct slice *bytes, struct record *record);
/* Whether what was fed ends with the end of a record. */
bool records_complete(const struct records *r);

struct entry {
    char path[TREE_PATH_MAX];
    char type; /* 'f', 'd', 'l' */
    int64_t mode, mtime_ns, size;
    struct slice target, same_as;
    bool hard_link;
    struct slice fields; /* for its xattrs */
};
/* False for anything that breaks a rule. */
bool entry_decode(struct slice payload, struct entry *entry);
/* The next xattr: its name, ended by a NUL, and its value. False at the end. */
bool entry_xattr(struct slice *rest, const char **name, struct slice *value);
/* Relative, without empty parts, ".", ".." or NUL; the root's is empty. */
bool tree_path_valid(struct slice path);

size_t record_begin(struct buf *b, uint8_t kind);
void record_end(struct buf *b, size_t mark);

#endif
