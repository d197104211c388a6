/* The file worker: a separate process that does file work with one user's rights. */
#ifndef FS_H
#define FS_H

#include <limits.h>
#include <linux/fs.h> /* RENAME_… */
#include <sys/stat.h>
#include <sys/types.h>

#include "base/users.h"
#include "base/wire.h"

#define FS_IO (160 * 1024)
#define NAMES 16
#define REPAY_AT (128 << 10) /* input credit goes back in steps of at least this */

struct fs;
struct job;

/* What a stream that is more than one answer does. Each function returns false when the job is over. */
struct job_ops {
    bool (*step)(struct fs *, struct job *);                          /* send some more; NULL: it receives */
    bool (*data)(struct fs *, struct job *, struct slice, bool end); /* take some more; NULL: it sends */
    void (*free)(struct job *);
};

struct job {
    struct job *next;
    uint32_t id;
    uint64_t credit;
    bool stalled; /* until there is more credit, or what `fd` and `wake` say */
    bool listens; /* whether `fd` is waited for */
    int fd;       /* readable: the job can continue; 0: none */
    int64_t wake; /* when it can continue in any case, by now_ms; 0: never */
    const struct job_ops *ops;
};

/* Names of ids, asked for again when passwd or group have changed. */
struct names {
    struct { uint32_t id; bool group, known; char name[NAME_SIZE]; } entry[NAMES];
    unsigned count, next;
    struct stat passwd, group;
};

struct fs {
    int sock;
    const char *workdir;
    struct job *jobs;
    struct buf out; /* the frame being built */
    uint8_t *io;    /* FS_IO bytes: a frame that has come, or file content on its way */
    struct names names;
    int done; /* of a deputy: where it says that it has answered */
};

struct request {
    uint32_t id;
    uint8_t type;
    struct slice payload;
    char path[PATH_MAX];
};

/* The worker's main; does not return. */
_Noreturn void fs_worker(int sock, const struct user *user, const char *workdir);

/* Sends the frame in `out`. When the agent is gone the next receive says so. */
void fs_send(struct fs *fs);
/* Each ends the stream; fs_fail returns false for jobs that end with it. */
bool fs_fail(struct fs *fs, uint32_t id, int err, const char *path);
void fs_count(struct fs *fs, uint32_t id, int64_t count);
void fs_reply_info(struct fs *fs, uint32_t id, uint8_t flags, const char *path, const struct stat *st, const char *target);
/* Shows that the errand makes progress; for loops that may take long. */
void fs_beat(void);
/*
 * Forks a deputy that does the rest of a request and answers for us: 0 in the deputy, which ends with fs_deputy_done; -1:
 * there is none. A deputy that dies is an error on the stream, if `id` is not 0.
 */
pid_t fs_deputy(struct fs *fs, uint32_t id);
_Noreturn void fs_deputy_done(struct fs *fs);
/* The stream becomes a job. */
/*
 * What a job that receives owes its client from the start, for its first bytes that are not its last: a window that keeps
 * client, agent and worker busy at once. Only one job at a time has it: what waits for a worker stays bounded.
 */
uint64_t fs_window(const struct fs *fs);
void fs_add_job(struct fs *fs, struct job *job, uint32_t id, const struct job_ops *ops);

/* Makes a path absolute; an errno if it is empty, too long, or holds a NUL. */
int fs_path(const struct fs *fs, struct slice path, char to[PATH_MAX]);
/* renameat2, which not every libc has. */
int rename_as(int from, const char *name, int to, const char *new_name, unsigned flags);
/* The fields of an *info*; `target` is NULL but for links. */
void put_info(struct fs *fs, struct buf *b, const char *path, const struct stat *st, const char *target);
#define ETAG_SIZE 52
void etag_of(const struct stat *st, char to[ETAG_SIZE]);
/* Directory and last name of a path; false if that name is empty, "." or "..". */
bool split_path(const char *path, char directory[PATH_MAX], char name[NAME_MAX + 1]);
/* Makes the directories above and at `path`; 0 or an errno. */
int make_directories(const char *path);

/* Removes a directory and all in it; `force`: also what its modes protect. 0 or an errno. */
int remove_tree(int dir, const char *name, bool force, int64_t *count);
/* Random letters for the end of a temporary name; 0 or an errno. */
int temp_letters(char to[7]);

void fs_read(struct fs *fs, const struct request *r);
void fs_write(struct fs *fs, const struct request *r);
void fs_list(struct fs *fs, const struct request *r);
void fs_remove(struct fs *fs, const struct request *r);
void fs_pack(struct fs *fs, const struct request *r);
void fs_unpack(struct fs *fs, const struct request *r);
void fs_copy(struct fs *fs, const struct request *r);
void fs_hash(struct fs *fs, const struct request *r);
void fs_watch(struct fs *fs, const struct request *r);
void fs_stats(struct fs *fs, const struct request *r);
void fs_ports(struct fs *fs, const struct request *r);
/* STAT, MKDIR, RENAME, CHMOD, CHOWN, SYMLINK. */
void fs_simple(struct fs *fs, const struct request *r);

#endif
