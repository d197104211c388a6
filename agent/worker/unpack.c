/* UNPACK and COPY: a tree stream becomes a tree, which takes its place when it is complete. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "link/conn.h"
#include "tree/trees.h"

enum { COPY_RECURSIVE = 1, COPY_PARENTS = 2, COPY_NEW = 4 };

void put_tally(struct buf *b, const struct tally *t)
{
    put_int(b, 15, t->files);
    put_int(b, 16, t->directories);
    put_int(b, 17, t->links);
    put_int(b, 18, t->bytes);
    put_int(b, 19, t->lost);
}

/* A directory can move to another one only if it is writable itself. */
static int move(int from, const char *name, int to, const char *new_name, unsigned flags)
{
    struct stat st;
    int gate = flags & RENAME_EXCHANGE ? to : from;
    const char *own = flags & RENAME_EXCHANGE ? new_name : name;

    if (rename_as(from, name, to, new_name, flags) == 0)
        return 0;
    int err = errno;
    if (err != EACCES || fstatat(gate, own, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode) || st.st_mode & S_IWUSR)
        return err;
    if (fchmodat(gate, own, 0700, 0) < 0)
        return err;
    err = rename_as(from, name, to, new_name, flags) < 0 ? errno : 0;
    if (err)
        fchmodat(gate, own, st.st_mode & 07777, 0);
    else if (!(flags & RENAME_EXCHANGE) && fchmodat(to, new_name, st.st_mode & 07777, 0) < 0)
        err = errno; /* the exchanged tree is being removed and needs no mode */
    return err;
}

/* Moves everything in one directory into another, except the entry named `but`. */
static int move_all(int from, int to, const char *but, uint8_t *scratch)
{
    struct walk *w = calloc(1, sizeof *w);
    int fd = openat(from, ".", OPEN_DIR);
    int err = !w ? ENOMEM : fd < 0 ? errno : 0;

    if (err) {
        if (fd >= 0)
            close(fd);
        free(w);
        return err;
    }
    err = walk_start(w, fd, scratch, FS_IO);
    for (; !err && walk_next(w); fs_beat())
        if (strcmp(w->name, but))
            err = move(from, w->name, to, w->name, RENAME_NOREPLACE);
    walk_end(w);
    free(w);
    return err;
}

/* Exchanges what is in the target, name by name, and takes it all back when one cannot be moved. */
static int exchange_children(struct unpacker *u, int target, int temp, uint8_t *scratch)
{
    int new = u->stack[0].fd;
    const char *own = u->base == u->parent ? "" : u->temp;

    if (mkdirat(temp, "old", 0700) < 0)
        return errno;
    int old = openat(temp, "old", OPEN_DIR | O_NOFOLLOW);
    if (old < 0)
        return errno;
    int err = move_all(target, old, own, scratch);
    if (!err && (err = move_all(new, target, "", scratch)))
        move_all(target, new, own, scratch);
    if (err)
        move_all(old, target, "", scratch);
    close(old);
    return err;
}

/* Where it was exchanged name by name, the directory may be somebody else's and keeps what it has. */
static void finish_root(int fd, const struct made *root)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {0}};

    times[1].tv_sec = root->mtime_ns / 1000000000 - (root->mtime_ns % 1000000000 < 0);
    times[1].tv_nsec = root->mtime_ns - times[1].tv_sec * INT64_C(1000000000);
    if (fchmod(fd, root->mode) == 0)
        (void)!futimens(fd, times);
}

static int place_directory(struct unpacker *u, uint8_t *scratch)
{
    int temp = openat(u->base, u->temp, OPEN_DIR | O_NOFOLLOW), err = EBUSY;

    if (temp < 0)
        return errno;
    (void)!fchmod(u->stack[0].fd, u->stack[0].mode | 0700);
    if (u->base == u->parent) {
        err = rename_as(temp, "new", u->parent, u->name, RENAME_NOREPLACE) < 0 ? errno : 0;
        if (err == EEXIST && !(u->flags & (UNPACK_NEW | UNPACK_NO_DIR))) {
            struct stat st;
            err = fstatat(u->parent, u->name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
            err = err ? err : move(temp, "new", u->parent, u->name, RENAME_EXCHANGE);
        }
    }
    if (!err) {
        finish_root(u->stack[0].fd, &u->stack[0]);
    } else if (err == EBUSY || err == EXDEV || err == EINVAL || err == EACCES) {
        int target = openat(u->parent, u->name, OPEN_DIR | O_NOFOLLOW);
        err = target < 0 ? errno : exchange_children(u, target, temp, scratch);
        if (!err)
            finish_root(target, &u->stack[0]);
        if (target >= 0)
            close(target);
    }
    close(temp);
    return err;
}

static int commit(struct unpacker *u, uint8_t *scratch)
{
    struct stat st;
    int err = unpacker_finish(u);

    if (err || !*u->temp)
        return err;
    if (!u->is_file)
        return place_directory(u, scratch);
    if (fstatat(u->parent, u->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        return EISDIR;
    if (rename_as(u->parent, u->temp, u->parent, u->name, u->flags & UNPACK_NEW ? RENAME_NOREPLACE : 0) < 0)
        return errno;
    *u->temp = 0;
    return 0;
}

static int clear(struct unpacker *u)
{
    int64_t count;

    if (!*u->temp)
        return 0;
    if (u->is_file)
        return unlinkat(u->base, u->temp, 0) < 0 ? errno : 0;
    return remove_tree(u->base, u->temp, true, &count);
}

static void answer(struct fs *fs, struct unpacker *u, uint32_t id, int err)
{
    struct stat st;

    if (!err && fstatat(u->parent, u->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        err = errno;
    if (err)
        return (void)fs_fail(fs, id, err, *u->entry.path ? u->entry.path : u->path);
    size_t mark = frame_begin(&fs->out, id, T_REPLY, F_FINAL);
    put_info(fs, &fs->out, u->path, &st, NULL);
    put_tally(&fs->out, &u->tally);
    frame_end(&fs->out, mark);
    fs_send(fs);
}

/*
 * Puts the tree in its place if there is no error yet, removes what is left over, and answers (unless id is 0). A
 * directory to remove may be large: a fork does it and answers for us. Without a fork (the pids limit) it is done here.
 */
static void end(struct fs *fs, struct unpacker *u, uint32_t id, int err)
{
    if (!err)
        err = commit(u, fs->io);
    bool part = *u->part && u->depth;
    if (part)
        unlinkat(u->stack[u->depth - 1].fd, u->part, 0);
    *u->part = 0;
    pid_t pid = *u->temp && !u->is_file ? fs_deputy(fs, id) : -1;
    if (pid <= 0) {
        int left = clear(u);
        if (id)
            answer(fs, u, id, err ? err : left);
        if (pid == 0)
            fs_deputy_done(fs);
    }
    *u->temp = 0;
}

struct unpacking {
    struct job job;
    struct fs *fs;
    struct unpacker unpacker;
    uint64_t owed;
};

static bool unpack_data(struct fs *fs, struct job *job, struct slice bytes, bool ended)
{
    struct unpacking *u = (struct unpacking *)job;

    u->owed += bytes.size;
    int err = unpacker_feed(&u->unpacker, bytes);
    if (err || ended) {
        end(fs, &u->unpacker, job->id, err);
        return false;
    }
    if (u->owed >= REPAY_AT) {
        put_credit(&fs->out, job->id, 0, (uint32_t)u->owed);
        fs_send(fs);
        u->owed = 0;
    }
    return true;
}

static void unpack_free(struct job *job)
{
    struct unpacking *u = (struct unpacking *)job;

    if (*u->unpacker.temp)
        end(u->fs, &u->unpacker, 0, ECANCELED);
    unpacker_close(&u->unpacker);
    free(u);
}

static const struct job_ops unpack_ops = {NULL, unpack_data, unpack_free};

void fs_unpack(struct fs *fs, const struct request *r)
{
    int64_t flags = 0;
    struct want wants[] = {{3, &flags, NULL}};

    if (!fields_decode(r->payload, wants, 1))
        return (void)fs_fail(fs, r->id, EINVAL, "flags");
    struct unpacking *u = calloc(1, sizeof *u);
    if (!u)
        return (void)fs_fail(fs, r->id, ENOMEM, r->path);
    u->fs = fs;
    u->owed = fs_window(fs);
    int err = unpacker_open(&u->unpacker, r->path, flags & (UNPACK_MERGE | UNPACK_PARENTS | UNPACK_NEW));
    if (err) {
        unpack_free(&u->job);
        return (void)fs_fail(fs, r->id, err, r->path);
    }
    fs_add_job(fs, &u->job, r->id, &unpack_ops);
}

struct copying {
    struct job job;
    struct fs *fs;
    struct packer packer;
    struct unpacker unpacker;
};

static bool copy_step(struct fs *fs, struct job *job)
{
    struct copying *c = (struct copying *)job;
    int err = packer_fill(&c->packer, fs->io);

    if (err)
        memcpy(c->unpacker.entry.path, c->packer.walk.path, sizeof c->unpacker.entry.path);
    if (!err)
        err = unpacker_feed(&c->unpacker, (struct slice){buf_front(&c->packer.out), buf_size(&c->packer.out)});
    buf_consume(&c->packer.out, buf_size(&c->packer.out));
    if (!err && !c->packer.done)
        return true;
    c->unpacker.tally.lost += c->packer.tally.lost;
    end(fs, &c->unpacker, job->id, err);
    return false;
}

static void copy_free(struct job *job)
{
    struct copying *c = (struct copying *)job;

    if (*c->unpacker.temp)
        end(c->fs, &c->unpacker, 0, ECANCELED);
    unpacker_close(&c->unpacker);
    packer_close(&c->packer);
    free(c);
}

static const struct job_ops copy_ops = {copy_step, NULL, copy_free};

/* A tree that is copied into itself would never end. */
static int refuse_inside(const struct packer *p, int parent)
{
    struct stat st, above = {0};
    int fd = openat(parent, ".", O_PATH | O_CLOEXEC), err = fd < 0 ? errno : 0;

    while (!err && fstat(fd, &st) == 0 && (st.st_ino != above.st_ino || st.st_dev != above.st_dev)) {
        if (st.st_ino == p->root.st_ino && st.st_dev == p->root.st_dev)
            err = EINVAL;
        above = st;
        int next = openat(fd, "..", O_PATH | O_CLOEXEC);
        if (next < 0 && !err)
            err = errno;
        close(fd);
        fd = next;
    }
    if (fd >= 0)
        close(fd);
    return err;
}

static int copy_open(struct fs *fs, struct copying *c, const struct request *r)
{
    int64_t flags = 0;
    struct slice to = {0};
    char target[PATH_MAX];
    struct want wants[] = {{3, NULL, &to}, {4, &flags, NULL}};

    c->unpacker.parent = c->unpacker.base = c->unpacker.file = c->packer.file = -1;
    if (!fields_decode(r->payload, wants, 2))
        return EINVAL;
    int err = fs_path(fs, to, target);
    err = err ? err : packer_open(&c->packer, r->path);
    if (!err && S_ISDIR(c->packer.root.st_mode) && !(flags & COPY_RECURSIVE))
        err = EISDIR;
    int64_t rules = (flags & COPY_PARENTS ? UNPACK_PARENTS : 0) | (flags & COPY_NEW ? UNPACK_NEW : 0) | UNPACK_NO_DIR;
    err = err ? err : unpacker_open(&c->unpacker, target, rules);
    return err || !S_ISDIR(c->packer.root.st_mode) ? err : refuse_inside(&c->packer, c->unpacker.parent);
}

void fs_copy(struct fs *fs, const struct request *r)
{
    struct copying *c = calloc(1, sizeof *c);

    if (!c)
        return (void)fs_fail(fs, r->id, ENOMEM, r->path);
    c->fs = fs;
    int err = copy_open(fs, c, r);
    if (err) {
        copy_free(&c->job);
        return (void)fs_fail(fs, r->id, err, r->path);
    }
    fs_add_job(fs, &c->job, r->id, &copy_ops);
}
