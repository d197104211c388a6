/* HASH: SHA-256 of a file, or of a tree in the order of a walk. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "link/conn.h"
#include "base/errors.h"
#include "worker/worker.h"
#include "base/sha256.h"
#include "tree/walk.h"

#define ENTRIES 64 /* that one step takes at most */
#define OPEN_FILE (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

struct hashing {
    struct job job;
    struct walk walk;
    struct sha256 tree, content;
    int file; /* the one being read, or -1 */
    bool is_tree;
    int64_t left; /* of a file: -1: to its end */
    int64_t bytes, entries;
    mode_t mode;
    char path[PATH_MAX];
};

static void add_entry(struct hashing *h, const char *type, mode_t mode, const void *rest, size_t size)
{
    struct sha256 entry;
    uint8_t digest[SHA256_SIZE];
    char octal[8];

    sha256_init(&entry);
    sha256_add(&entry, h->walk.path, strlen(h->walk.path) + 1);
    sha256_add(&entry, type, strlen(type) + 1);
    snprintf(octal, sizeof octal, "%o", mode & 07777);
    sha256_add(&entry, octal, strlen(octal) + 1);
    sha256_add(&entry, rest, size);
    sha256_end(&entry, digest);
    sha256_add(&h->tree, digest, sizeof digest);
    h->entries++;
}

static int hash_entry(struct fs *fs, struct hashing *h)
{
    struct walk *w = &h->walk;
    struct stat st;
    char target[PATH_MAX];

    if (w->err)
        return w->err == ENOENT ? 0 : w->err;
    if (S_ISLNK(w->st.st_mode)) {
        ssize_t n = readlinkat(w->dir, w->name, target, sizeof target);
        if (n < 0)
            return errno == ENOENT ? 0 : errno;
        add_entry(h, "link", w->st.st_mode, target, (size_t)n);
        return 0;
    }
    if (S_ISDIR(w->st.st_mode)) {
        add_entry(h, "dir", w->st.st_mode, "", 0);
        return walk_enter(w, fs->io, FS_IO);
    }
    if (!S_ISREG(w->st.st_mode))
        return 0;
    h->file = openat(w->dir, w->name, OPEN_FILE | O_NOFOLLOW);
    if (h->file < 0)
        return errno == ENOENT ? 0 : errno;
    if (fstat(h->file, &st) < 0 || !S_ISREG(st.st_mode))
        return NOT_A_FILE_ERRNO;
    h->mode = st.st_mode;
    sha256_init(&h->content);
    return 0;
}

/* Up to CHUNK bytes of the open file; `end` when there are no more. */
static int hash_content(struct fs *fs, struct hashing *h, bool *end)
{
    size_t want = h->left >= 0 && h->left < CHUNK ? (size_t)h->left : CHUNK;
    ssize_t n = want ? read(h->file, fs->io, want) : 0;

    if (n < 0)
        return errno == EINTR ? 0 : errno;
    sha256_add(&h->content, fs->io, (size_t)n);
    h->bytes += n;
    h->left -= h->left >= 0 ? n : 0;
    *end = n == 0;
    return 0;
}

static bool reply(struct fs *fs, struct hashing *h, const uint8_t *digest)
{
    size_t mark = frame_begin(&fs->out, h->job.id, T_REPLY, F_FINAL);

    put_bytes(&fs->out, 1, digest, SHA256_SIZE);
    put_int(&fs->out, 2, h->bytes);
    put_int(&fs->out, 3, h->entries);
    frame_end(&fs->out, mark);
    fs_send(fs);
    return false;
}

static bool hash_step(struct fs *fs, struct job *job)
{
    struct hashing *h = (struct hashing *)job;
    uint8_t digest[SHA256_SIZE];
    int64_t enough = h->bytes + CHUNK;
    int err = 0;

    for (int i = 0; i < ENTRIES && !err && h->bytes < enough; i++) {
        bool end = false;
        fs_beat();
        if (h->file < 0) {
            if (!walk_next(&h->walk)) {
                sha256_end(&h->tree, digest);
                return reply(fs, h, digest);
            }
            err = hash_entry(fs, h);
            continue;
        }
        err = hash_content(fs, h, &end);
        if (!end)
            continue;
        sha256_end(&h->content, digest);
        if (!h->is_tree)
            return reply(fs, h, digest);
        close(h->file);
        h->file = -1;
        add_entry(h, "file", h->mode, digest, sizeof digest);
    }
    return err ? fs_fail(fs, job->id, err, *h->walk.path ? h->walk.path : h->path) : true;
}

static void hash_free(struct job *job)
{
    struct hashing *h = (struct hashing *)job;

    walk_end(&h->walk);
    if (h->file >= 0)
        close(h->file);
    free(h);
}

static const struct job_ops hash_ops = {hash_step, NULL, hash_free};

static int hash_open(struct fs *fs, struct hashing *h)
{
    struct stat st;

    if (stat(h->path, &st) < 0)
        return errno;
    h->is_tree = S_ISDIR(st.st_mode);
    if (!h->is_tree && !S_ISREG(st.st_mode))
        return NOT_A_FILE_ERRNO;
    if (h->is_tree && h->left >= 0)
        return EISDIR;
    int fd = open(h->path, h->is_tree ? OPEN_DIR : OPEN_FILE);
    if (fd < 0)
        return errno;
    if (!h->is_tree) {
        h->file = fd;
        h->entries = 1;
        return fstat(fd, &st) < 0 ? errno : S_ISREG(st.st_mode) ? 0 : NOT_A_FILE_ERRNO;
    }
    add_entry(h, "dir", 0, "", 0);
    return walk_start(&h->walk, fd, fs->io, FS_IO);
}

void fs_hash(struct fs *fs, const struct request *r)
{
    int64_t length = -1;
    struct want wants[] = {{3, &length, NULL}};

    if (!fields_decode(r->payload, wants, 1) || length < -1)
        return (void)fs_fail(fs, r->id, EINVAL, "length");
    struct hashing *h = calloc(1, sizeof *h);
    if (!h)
        return (void)fs_fail(fs, r->id, ENOMEM, r->path);
    h->file = -1;
    h->left = length;
    memcpy(h->path, r->path, sizeof h->path);
    sha256_init(&h->tree);
    sha256_init(&h->content);
    int err = hash_open(fs, h);
    if (err) {
        hash_free(&h->job);
        return (void)fs_fail(fs, r->id, err, r->path);
    }
    fs_add_job(fs, &h->job, r->id, &hash_ops);
}
