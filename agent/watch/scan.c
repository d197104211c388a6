/* Finds the directories of a WATCH: each is watched first and read afterwards, so that no change is missed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "watch/watch.h"
#include "watch/scan.h"
#include "base/getdents.h"

#define CHANGES (IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_EXCL_UNLINK)
#define ITSELF (IN_DELETE_SELF | IN_MOVE_SELF)
#define DIRECTORY (CHANGES | IN_ONLYDIR | IN_DONT_FOLLOW)
#define SEEN_MAX 65536
#define PART 32768

int watch_begin(struct watching *w)
{
    w->scan = -1;
    if (stat(w->path, &w->st) < 0)
        return errno;
    bool dir = S_ISDIR(w->st.st_mode);
    w->job.fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (w->job.fd < 0) {
        w->job.fd = 0;
        return errno;
    }
    int wd = inotify_add_watch(w->job.fd, w->path, dir ? CHANGES | ITSELF | IN_ONLYDIR : IN_MODIFY | IN_ATTRIB | ITSELF);
    if (wd < 0)
        return errno == ENOSPC ? EMFILE : errno;
    struct node *root = tree_init(&w->tree) ? tree_add(&w->tree, NULL, "", wd) : NULL;
    if (!root)
        return ENOMEM;
    if (dir && w->recursive)
        tree_queue(&w->tree, root);
    return 0;
}

void watch_end(struct watching *w)
{
    if (w->scan >= 0)
        close(w->scan);
    w->scan = -1;
    w->scanned = NULL;
    if (w->job.fd)
        close(w->job.fd);
    w->job.fd = 0;
    w->again = false;
    memset(w->held, 0, sizeof w->held);
    if (w->tree.by_wd && w->tree.by_name)
        tree_free(&w->tree);
}

bool watch_full_path(const struct watching *w, const struct node *n, const char *name, char to[PATH_MAX])
{
    char buffer[WATCH_PATH];
    const char *path = tree_path(n, name, buffer);

    return path && snprintf(to, PATH_MAX, *path ? "%s/%s" : "%s", w->path, path) < PATH_MAX;
}

static void unwatch(void *fd, int wd)
{
    inotify_rm_watch(*(int *)fd, wd); /* ignore the error for one that the kernel has already dropped */
}

void watch_forget(struct watching *w, struct node *n)
{
    if (tree_above(n, w->scanned)) {
        close(w->scan);
        w->scan = -1;
        w->scanned = NULL;
    }
    tree_drop(&w->tree, n, unwatch, &w->job.fd);
}

/* The same directory under two names (a bind mount) stays where it was found first. */
static bool still_there(const struct watching *w, const struct node *n, const char *at)
{
    char path[PATH_MAX];
    struct stat was, is;

    if (!watch_full_path(w, n, NULL, path) || lstat(path, &was) < 0 || lstat(at, &is) < 0)
        return false;
    return was.st_dev == is.st_dev && was.st_ino == is.st_ino;
}

void watch_place(struct watching *w, struct node *parent, const char *name, const char *at, bool announce)
{
    int wd = inotify_add_watch(w->job.fd, at, DIRECTORY);

    if (wd < 0) { /* it was removed again, or is not readable */
        if (errno == ENOSPC || errno == ENOMEM)
            w->error = EMFILE;
        return;
    }
    struct node *known = tree_find(&w->tree, wd), *there = tree_child(&w->tree, parent, name);
    if (known == there && known)
        return;
    if (known) { /* renamed while its earlier events wait: the names of two directories cannot be told apart */
        w->lost = w->lost || !(tree_above(known, parent) || still_there(w, known, at));
        return;
    }
    if (there)
        watch_forget(w, there);
    if (w->tree.count >= WATCH_DIRS) {
        w->error = EMFILE;
        return;
    }
    struct node *n = tree_add(&w->tree, parent, name, wd);
    if (!n) {
        w->error = ENOMEM;
        return;
    }
    n->announce = announce;
    tree_queue(&w->tree, n);
}

void watch_check(struct watching *w, const struct node *n)
{
    char path[PATH_MAX];
    int wd = -1;

    if (watch_full_path(w, n, NULL, path))
        wd = inotify_add_watch(w->job.fd, path, IN_ATTRIB | IN_ONLYDIR | IN_DONT_FOLLOW | IN_MASK_ADD);
    w->lost = w->lost || (wd >= 0 && wd != n->wd);
}

/* Opens a directory by its path, and checks by its watch descriptor that it is the right one. */
static int open_scan(struct watching *w, struct node *n)
{
    char path[PATH_MAX];

    if (!watch_full_path(w, n, NULL, path)) {
        w->error = EMFILE;
        return -1;
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK | (n->parent ? O_NOFOLLOW : 0));
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        w->error = errno;
    if (fd < 0) {
        n->again = w->again = errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
        return -1;
    }
    if (fchdir(fd) == 0) {
        int wd = inotify_add_watch(w->job.fd, ".", IN_ATTRIB | IN_ONLYDIR | IN_MASK_ADD);
        if (wd == n->wd)
            return fd;
        if (wd >= 0 && !tree_find(&w->tree, wd))
            inotify_rm_watch(w->job.fd, wd);
        n->again = w->again = true;
    }
    close(fd);
    return -1;
}

static bool is_directory(int fd, const struct linux_dirent64 *d)
{
    struct stat st;

    if (d->d_type != DT_UNKNOWN)
        return d->d_type == DT_DIR;
    return fstatat(fd, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static void found(struct watching *w, struct node *n, const struct linux_dirent64 *d)
{
    char buffer[WATCH_PATH];
    bool dir = is_directory(w->scan, d);
    const char *path = tree_path(n, d->d_name, buffer);

    if (!path) {
        w->error = EMFILE;
        return;
    }
    bool known = w->tree.seen_count < SEEN_MAX && (n->announce || dir) && seen_add(&w->tree, n->wd, d->d_name);
    if (n->announce && !known)
        w->lost = true;
    if (n->announce)
        watch_emit(w, "created", path, dir, NULL);
    if (dir)
        watch_place(w, n, d->d_name, d->d_name, n->announce);
}

void watch_scan(struct fs *fs, struct watching *w)
{
    if (w->scan < 0) {
        struct node *n = tree_next(&w->tree);
        if (!n || (w->scan = open_scan(w, n)) < 0)
            goto back;
        w->scanned = n;
    }
    if (fchdir(w->scan) < 0) {
        w->error = errno;
        return;
    }
    long size = syscall(SYS_getdents64, w->scan, fs->io, PART);
    for (long at = 0; at < size && !w->error && w->scan >= 0;) {
        const struct linux_dirent64 *d = (const struct linux_dirent64 *)(const void *)(fs->io + at);
        at += d->d_reclen;
        if (strcmp(d->d_name, ".") && strcmp(d->d_name, ".."))
            found(w, w->scanned, d);
    }
    if (size <= 0 && w->scan >= 0) {
        close(w->scan);
        w->scan = -1;
        w->scanned = NULL;
    }
back:
    if (chdir("/") < 0)
        w->error = errno;
}
