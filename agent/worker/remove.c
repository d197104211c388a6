/* REMOVE: a tree of any depth with two open directories, links never followed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "worker/worker.h"
#include "base/getdents.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)
enum { RECURSIVE = 1 };

struct place {
    dev_t dev;
    ino_t ino;
};

/* Where we are, and the directories above, to know them again on the way up. */
struct removal {
    int fd;
    struct place *above;
    size_t depth, cap;
    int64_t count;
    bool force; /* change modes that are in the way */
};

static int where(int fd, struct place *p)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return errno;
    *p = (struct place){st.st_dev, st.st_ino};
    return 0;
}

static int down(struct removal *r, const char *name)
{
    if (r->depth == r->cap) {
        struct place *more = realloc(r->above, (r->cap * 2 + 64) * sizeof *more);
        if (!more)
            return ENOMEM;
        r->above = more;
        r->cap = r->cap * 2 + 64;
    }
    int err = where(r->fd, &r->above[r->depth]);
    if (err)
        return err;
    int fd = openat(r->fd, name, OPEN_DIR);
    if (fd < 0 && errno == EACCES && r->force && fchmodat(r->fd, name, 0700, 0) == 0)
        fd = openat(r->fd, name, OPEN_DIR);
    if (fd < 0)
        return errno;
    close(r->fd);
    r->fd = fd;
    r->depth++;
    return 0;
}

/* A tree that was moved in the meantime must not lead us into another one. */
static int up(struct removal *r)
{
    struct place here = {0};
    int fd = openat(r->fd, "..", OPEN_DIR);

    if (fd < 0)
        return errno;
    close(r->fd);
    r->fd = fd;
    r->depth--;
    int err = where(fd, &here);
    if (!err && (here.dev != r->above[r->depth].dev || here.ino != r->above[r->depth].ino))
        err = EIO;
    return err;
}

static int unlink_entry(struct removal *r, const char *name, bool directory)
{
    int err = unlinkat(r->fd, name, directory ? AT_REMOVEDIR : 0) < 0 ? errno : 0;

    if (err == EACCES && r->force && fchmod(r->fd, 0700) == 0)
        err = unlinkat(r->fd, name, directory ? AT_REMOVEDIR : 0) < 0 ? errno : 0;
    return err;
}

/* Removes an entry, or goes into it if it is a directory that is not empty (`went`). */
static int remove_entry(struct removal *r, const struct linux_dirent64 *d, bool *went)
{
    bool directory = d->d_type == DT_DIR;
    int err = unlink_entry(r, d->d_name, directory);

    if (err == (directory ? ENOTDIR : EISDIR)) { /* it is not, or no longer, what the listing says */
        directory = !directory;
        err = unlink_entry(r, d->d_name, directory);
    }
    if (err == ENOTEMPTY || (err == EEXIST && directory)) {
        *went = true;
        return down(r, d->d_name);
    }
    if (!err)
        r->count++;
    return err == ENOENT ? 0 : err;
}

/* One pass over the directory we are in, as far as the first one to go into. */
static int clear(struct removal *r, bool *went)
{
    char buffer[8192];
    long n;

    while ((n = syscall(SYS_getdents64, r->fd, buffer, sizeof buffer)) > 0) {
        for (long at = 0; at < n;) {
            struct linux_dirent64 *d = (struct linux_dirent64 *)(void *)(buffer + at);
            at += d->d_reclen;
            if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
                continue;
            fs_beat();
            int err = remove_entry(r, d, went);
            if (err || *went)
                return err;
        }
    }
    return n < 0 ? errno : 0;
}

int remove_tree(int dir, const char *name, bool force, int64_t *count)
{
    struct removal r = {.fd = openat(dir, name, OPEN_DIR), .force = force};
    int err = r.fd < 0 ? errno : 0;

    while (!err) {
        bool went = false;
        err = clear(&r, &went);
        if (err || went)
            continue;
        if (!r.depth)
            break;
        err = up(&r);
    }
    if (r.fd >= 0)
        close(r.fd);
    free(r.above);
    if (!err && unlinkat(dir, name, AT_REMOVEDIR) < 0)
        err = errno;
    *count = r.count + !err;
    return err;
}

static void answer(struct fs *fs, uint32_t id, const char *path, int err, int64_t count)
{
    if (err)
        fs_fail(fs, id, err, path);
    else
        fs_count(fs, id, count);
}

void fs_remove(struct fs *fs, const struct request *r)
{
    int64_t flags = 0, count = 1;
    struct want wants[] = {{3, &flags, NULL}};
    struct stat st, root;
    char path[PATH_MAX], directory[PATH_MAX], name[NAME_MAX + 1];

    memcpy(path, r->path, sizeof path);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    if (!fields_decode(r->payload, wants, 1))
        return (void)fs_fail(fs, r->id, EINVAL, "flags");
    if (lstat(path, &st) < 0)
        return (void)fs_fail(fs, r->id, errno, path);
    bool is_root = stat("/", &root) == 0 && st.st_dev == root.st_dev && st.st_ino == root.st_ino;
    if (is_root || !split_path(path, directory, name))
        return (void)fs_fail(fs, r->id, EINVAL, path);
    if (!S_ISDIR(st.st_mode))
        return answer(fs, r->id, path, unlink(path) < 0 ? errno : 0, 1);
    if (!(flags & RECURSIVE))
        return answer(fs, r->id, path, rmdir(path) < 0 ? errno : 0, 1);
    /* A large tree takes long: a fork removes it and answers for us. Without a fork (the pids limit) it is done here. */
    pid_t pid = fs_deputy(fs, r->id);
    if (pid > 0)
        return;
    int err = remove_tree(AT_FDCWD, path, false, &count);
    answer(fs, r->id, path, err, count);
    if (pid == 0)
        fs_deputy_done(fs);
}
