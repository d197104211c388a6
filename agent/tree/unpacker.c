/* Writing a tree stream: into a temporary place, with one open directory a level, no link ever followed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tree/trees.h"

#define OPEN_HERE (OPEN_DIR | O_NOFOLLOW)
#define ATTR_MOUNT_ROOT 0x2000 /* STATX_ATTR_MOUNT_ROOT */
#define CREATE (O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC)

static struct made *top(struct unpacker *u)
{
    return &u->stack[u->depth - 1];
}

static int set_mtime(int fd, const char *name, int64_t ns)
{
    int64_t seconds = ns / 1000000000 - (ns % 1000000000 < 0);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = seconds, .tv_nsec = ns - seconds * 1000000000}};

    return (name ? utimensat(fd, name, times, AT_SYMLINK_NOFOLLOW) : futimens(fd, times)) < 0 ? errno : 0;
}

static void set_xattrs(struct unpacker *u, int fd)
{
    struct slice rest = u->entry.fields, value;
    const char *name = "";

    while (entry_xattr(&rest, &name, &value))
        if (fsetxattr(fd, name, value.data, value.size, 0) < 0)
            u->tally.lost++;
}

/* A name that is free; 0 or an errno of `make`. */
static int make_temp(char temp[NAME_MAX + 1], int dir, int (*make)(struct unpacker *, int, const char *), struct unpacker *u)
{
    int err = EEXIST;

    for (int i = 0; i < 16 && err == EEXIST; i++) {
        memcpy(temp, ".skerry-", 8);
        err = temp_letters(temp + 8);
        err = err ? err : make(u, dir, temp);
    }
    if (err)
        *temp = 0;
    return err;
}

static int make_file(struct unpacker *u, int dir, const char *name)
{
    u->file = openat(dir, name, CREATE, (mode_t)u->entry.mode & 0777);
    return u->file < 0 ? errno : 0;
}

static int make_dir(struct unpacker *u, int dir, const char *name)
{
    (void)u;
    return mkdirat(dir, name, 0700) < 0 ? errno : 0;
}

static int make_link(struct unpacker *u, int dir, const char *name)
{
    char target[PATH_MAX];

    snprintf(target, sizeof target, "%.*s", (int)u->entry.target.size, (const char *)u->entry.target.data);
    if (symlinkat(target, dir, name) < 0)
        return errno;
    return set_mtime(dir, name, u->entry.mtime_ns);
}

/* Another name of a file that this stream has made, found from the root down. */
static int make_hard_link(struct unpacker *u, int dir, const char *name)
{
    char path[TREE_PATH_MAX];
    struct stat st;
    int from = fcntl(u->stack[0].fd, F_DUPFD_CLOEXEC, 0), err = 0;
    char *part = path, *slash;

    snprintf(path, sizeof path, "%.*s", (int)u->entry.same_as.size, (const char *)u->entry.same_as.data);
    while (from >= 0 && (slash = strchr(part, '/'))) {
        *slash = 0;
        int next = openat(from, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        err = errno;
        close(from);
        from = next;
        part = slash + 1;
    }
    if (from < 0)
        return err == ENOENT || err == ENOTDIR || err == ELOOP ? EINVAL : err ? err : errno;
    if (fstatat(from, part, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        err = EINVAL;
    else
        err = linkat(from, part, dir, name, 0) < 0 ? errno : 0;
    close(from);
    return err;
}

static int finish_dir(struct unpacker *u)
{
    struct made *d = top(u);
    int err = 0;

    if (u->depth == 1 && !(u->flags & UNPACK_MERGE))
        return 0; /* the root gets its mode when it is in its place */
    if (d->fresh && fchmod(d->fd, d->mode) < 0)
        err = errno;
    if (!err && d->fresh)
        err = set_mtime(d->fd, NULL, d->mtime_ns);
    close(d->fd);
    u->depth--;
    u->dir[u->depth ? top(u)->prefix : 0] = 0;
    return err;
}

static int push(struct unpacker *u, int fd, bool fresh)
{
    if (u->depth == LEVELS) {
        close(fd);
        return EMFILE;
    }
    if (u->depth) {
        size_t size = strlen(u->entry.path);
        memcpy(u->dir, u->entry.path, size);
        memcpy(u->dir + size, "/", 2);
    }
    u->stack[u->depth++] = (struct made){fd, strlen(u->dir), fresh, (mode_t)u->entry.mode, u->entry.mtime_ns};
    if (fresh)
        set_xattrs(u, fd);
    return 0;
}

static int enter_dir(struct unpacker *u, int dir, const char *name)
{
    bool fresh = mkdirat(dir, name, 0700) == 0;

    if (!fresh && (errno != EEXIST || !(u->flags & UNPACK_MERGE)))
        return errno == EEXIST ? EINVAL : errno;
    int fd = openat(dir, name, OPEN_HERE);
    if (fd < 0)
        return errno == ELOOP ? ENOTDIR : errno;
    return push(u, fd, fresh);
}

/* In the tree's temporary place a name is free or was sent twice; a merge needs a temporary name first. */
static int make_entry(struct unpacker *u, int (*make)(struct unpacker *, int, const char *), const char *name)
{
    if (u->flags & UNPACK_MERGE)
        return make_temp(u->part, top(u)->fd, make, u);
    int err = make(u, top(u)->fd, name);
    return err == EEXIST ? EINVAL : err;
}

static int settle(struct unpacker *u)
{
    if (!*u->part)
        return 0;
    int dir = top(u)->fd;
    const char *slash = strrchr(u->entry.path, '/');
    if (renameat(dir, u->part, dir, slash ? slash + 1 : u->entry.path) < 0)
        return errno;
    unlinkat(dir, u->part, 0); /* a rename between two names of one file does nothing */
    *u->part = 0;
    return 0;
}

static bool mount_point(int dir, const char *name, const struct stat *st)
{
    struct { uint32_t mask, block; uint64_t attributes; uint8_t rest[240]; } x; /* struct statx, which not every libc has */
    struct stat above;

    if (fstat(dir, &above) < 0 || above.st_dev != st->st_dev)
        return true;
    return syscall(SYS_statx, dir, name, AT_SYMLINK_NOFOLLOW, 0, &x) == 0 && x.attributes & ATTR_MOUNT_ROOT;
}

/* The place that the tree is built in: beside the target or, where that cannot be, inside. */
static int make_place(struct unpacker *u, bool exists, const struct stat *old)
{
    int err = EBUSY;

    if (!exists || !mount_point(u->parent, u->name, old)) {
        u->base = u->parent;
        err = make_temp(u->temp, u->base, make_dir, u);
    }
    if (exists && (err == EBUSY || err == EACCES || err == EPERM || err == EROFS)) {
        u->base = openat(u->parent, u->name, OPEN_HERE);
        if (u->base < 0)
            return errno;
        err = make_temp(u->temp, u->base, make_dir, u);
    }
    if (err)
        return err;
    int temp = openat(u->base, u->temp, OPEN_HERE);
    if (temp < 0)
        return errno;
    err = enter_dir(u, temp, "new");
    close(temp);
    return err;
}

static int begin_root(struct unpacker *u)
{
    struct stat old;
    bool exists = fstatat(u->parent, u->name, &old, AT_SYMLINK_NOFOLLOW) == 0;

    if (*u->entry.path || u->entry.type == 'l' || u->entry.hard_link)
        return EINVAL;
    if (!exists && errno != ENOENT)
        return errno;
    u->is_file = u->entry.type == 'f';
    if (exists && (u->flags & UNPACK_NEW || (u->flags & UNPACK_NO_DIR && S_ISDIR(old.st_mode))))
        return EEXIST;
    if (exists && u->is_file == S_ISDIR(old.st_mode))
        return u->is_file ? EISDIR : ENOTDIR;
    if (exists && !u->is_file && S_ISLNK(old.st_mode))
        return ENOTDIR;
    if (!u->is_file)
        return u->flags & UNPACK_MERGE ? enter_dir(u, u->parent, u->name) : make_place(u, exists, &old);
    u->base = u->parent;
    return make_temp(u->temp, u->parent, make_file, u);
}

/* Goes up to the directory that an entry is in: everything in the directories below it has come. */
static int climb(struct unpacker *u, const char **name)
{
    const char *slash = strrchr(u->entry.path, '/');
    size_t prefix = slash ? (size_t)(slash + 1 - u->entry.path) : 0;
    int err = 0;

    while (!err && u->depth > 1 && (top(u)->prefix != prefix || memcmp(u->dir, u->entry.path, prefix)))
        err = finish_dir(u);
    *name = u->entry.path + prefix;
    return err ? err : top(u)->prefix == prefix ? 0 : EINVAL;
}

static int on_entry(struct unpacker *u, struct slice payload)
{
    const char *name = "";

    if (u->file >= 0 || !entry_decode(payload, &u->entry))
        return EINVAL;
    bool is_root = !u->tally.entries;
    u->tally.entries++;
    int err = is_root ? begin_root(u) : u->is_file || !*u->entry.path ? EINVAL : climb(u, &name);
    if (err)
        return err;
    u->tally.files += u->entry.type == 'f';
    u->tally.directories += u->entry.type == 'd';
    u->tally.links += u->entry.type == 'l';
    u->at = 0;
    if (!is_root && u->entry.type == 'd')
        return enter_dir(u, top(u)->fd, name);
    if (!is_root) {
        err = make_entry(u, u->entry.hard_link ? make_hard_link : u->entry.type == 'l' ? make_link : make_file, name);
        if (!err && u->file < 0)
            err = settle(u);
    }
    if (!err && u->file >= 0)
        set_xattrs(u, u->file);
    return err;
}

static int on_content(struct unpacker *u, const struct record *r)
{
    struct slice rest = r->payload;

    if (u->file < 0 || r->offset < u->at || r->offset > INT64_MAX - rest.size)
        return EINVAL;
    u->at = r->offset;
    while (rest.size) {
        ssize_t n = pwrite(u->file, rest.data, rest.size, (off_t)u->at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        rest.data += n;
        rest.size -= (size_t)n;
        u->at += (uint64_t)n;
    }
    u->tally.bytes += (int64_t)r->payload.size;
    return 0;
}

static int on_file_end(struct unpacker *u, uint64_t size)
{
    if (u->file < 0 || size < u->at || size > INT64_MAX)
        return EINVAL;
    if (size != u->at && ftruncate(u->file, (off_t)size) < 0)
        return errno;
    if (u->entry.mode & 07000 && fchmod(u->file, (mode_t)u->entry.mode) < 0) /* writing takes these bits away */
        return errno;
    int err = set_mtime(u->file, NULL, u->entry.mtime_ns);
    int fd = u->file;
    u->file = -1;
    if (close(fd) < 0 && !err)
        err = errno;
    return err ? err : settle(u);
}

static int on_tree_end(struct unpacker *u, struct slice payload)
{
    int64_t entries = -1, bytes = -1;
    struct want wants[] = {{1, &entries, NULL}, {2, &bytes, NULL}};

    u->ended = true;
    if (u->file >= 0 || !u->tally.entries || !fields_decode(payload, wants, 2))
        return EINVAL;
    return entries == u->tally.entries && bytes == u->tally.bytes ? 0 : EINVAL;
}

int unpacker_feed(struct unpacker *u, struct slice bytes)
{
    struct record r;
    int more = 0, err = 0;

    while (!err && bytes.size && (more = record_next(&u->records, &bytes, &r)) > 0) {
        if (u->ended)
            return EINVAL;
        fs_beat();
        switch (r.kind) {
        case R_ENTRY: err = on_entry(u, r.payload); break;
        case R_CONTENT: err = on_content(u, &r); break;
        case R_FILE_END: err = on_file_end(u, r.offset); break;
        case R_SKIPPED: err = u->file >= 0 ? EINVAL : 0; break;
        default: err = on_tree_end(u, r.payload);
        }
    }
    return err ? err : more < 0 ? EINVAL : 0;
}

int unpacker_finish(struct unpacker *u)
{
    int err = 0;

    if (!u->ended || !records_complete(&u->records))
        return EINVAL;
    while (!err && u->depth > (u->flags & UNPACK_MERGE ? 0 : 1))
        err = finish_dir(u);
    return err;
}

int unpacker_open(struct unpacker *u, const char *path, int64_t flags)
{
    char directory[PATH_MAX], real[PATH_MAX];

    u->parent = u->base = u->file = -1;
    u->flags = flags;
    snprintf(u->path, sizeof u->path, "%s", path);
    for (size_t n = strlen(u->path); n > 1 && u->path[n - 1] == '/'; n--)
        u->path[n - 1] = 0;
    if (!split_path(u->path, directory, u->name)) {
        if (strlen(strrchr(u->path, '/')) > NAME_MAX + 1)
            return ENAMETOOLONG;
        if (!realpath(u->path, real)) /* it ends in "." or "..", or is the root */
            return errno;
        if (!split_path(real, directory, u->name)) {
            snprintf(directory, sizeof directory, "/");
            snprintf(u->name, sizeof u->name, ".");
        }
    }
    int err = flags & UNPACK_PARENTS ? make_directories(directory) : 0;
    if (err)
        return err;
    u->parent = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return u->parent < 0 ? errno : 0;
}

void unpacker_close(struct unpacker *u)
{
    if (*u->part && u->depth)
        unlinkat(top(u)->fd, u->part, 0);
    while (u->depth)
        close(u->stack[--u->depth].fd);
    if (u->file >= 0)
        close(u->file);
    if (u->base >= 0 && u->base != u->parent)
        close(u->base);
    if (u->parent >= 0)
        close(u->parent);
    buf_free(&u->records.held);
}
