/* READ and WRITE. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "link/conn.h"
#include "base/errors.h"
#include "worker/worker.h"

#define OPEN_FLAGS (O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
#define MAX_LINKS 40
enum { WRITE_APPEND = 1, WRITE_PARENTS = 2, WRITE_NEW = 4 };

struct reading {
    struct job job;
    int fd;
    int64_t offset, left, total; /* left -1: to the end */
};

/* Only a regular file will do: others may block, or do something when they are opened. */
static int refuse_special(mode_t mode)
{
    return S_ISREG(mode) ? 0 : S_ISDIR(mode) ? EISDIR : NOT_A_FILE_ERRNO;
}

static bool read_step(struct fs *fs, struct job *job)
{
    struct reading *r = (struct reading *)job;
    const size_t head = HEADER_SIZE + OFFSET_SIZE;
    size_t want = r->left >= 0 && r->left < CHUNK ? (size_t)r->left : CHUNK;

    if (want && !job->credit) {
        job->stalled = true;
        return true;
    }
    if (want > job->credit)
        want = (size_t)job->credit;
    ssize_t n = want ? pread(r->fd, fs->io + head, want, r->offset) : 0;
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0)
        return fs_fail(fs, job->id, errno, "read");
    put_data_head(&fs->out, job->id, n ? 0 : F_END, (uint64_t)r->offset, (size_t)n);
    buf_put(&fs->out, fs->io + head, (size_t)n);
    fs_send(fs);
    if (n == 0) {
        fs_count(fs, job->id, r->total);
        return false;
    }
    job->credit -= (size_t)n;
    r->offset += n;
    r->total += n;
    r->left -= r->left >= 0 ? n : 0;
    return true;
}

static void read_free(struct job *job)
{
    close(((struct reading *)job)->fd);
    free(job);
}

static const struct job_ops read_ops = {read_step, NULL, read_free};

/* Whether it is a process memory file: a worker can open its own, which holds what the agent knew when it was started. */
static bool is_memory(int fd)
{
    char link[32], target[64];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    return !strncmp(target, "/proc/", 6) && !strcmp(strrchr(target, '/'), "/mem");
}

/* Opens a regular file; 0 or an errno. */
static int open_regular(const char *path, int *fd, struct stat *st)
{
    if (stat(path, st) < 0)
        return errno;
    int err = refuse_special(st->st_mode);
    if (err)
        return err;
    *fd = open(path, O_RDONLY | OPEN_FLAGS);
    if (*fd < 0)
        return errno;
    err = fstat(*fd, st) < 0 ? errno : refuse_special(st->st_mode);
    if (!err && !st->st_size && is_memory(*fd))
        err = EACCES;
    if (err)
        close(*fd);
    return err;
}

void fs_read(struct fs *fs, const struct request *r)
{
    struct stat st;
    int fd = -1;
    int64_t offset = 0, length = -1;
    struct want wants[] = {{3, &offset, NULL}, {4, &length, NULL}};

    if (!fields_decode(r->payload, wants, 2) || offset < 0 || length < -1)
        return (void)fs_fail(fs, r->id, EINVAL, "offset or length");
    int err = open_regular(r->path, &fd, &st);
    if (err)
        return (void)fs_fail(fs, r->id, err, r->path);
    struct reading *job = calloc(1, sizeof *job);
    if (!job) {
        close(fd);
        return (void)fs_fail(fs, r->id, ENOMEM, r->path);
    }
    job->fd = fd;
    job->offset = offset;
    job->left = length;
    fs_add_job(fs, &job->job, r->id, &read_ops);
    fs_reply_info(fs, r->id, 0, r->path, &st, NULL);
}

/* A write in progress: into `temp` in `dir`, or straight into the file when it appends (temp is empty). */
struct writing {
    struct job job;
    int fd, dir;
    bool must_be_new;
    mode_t mode;
    uint64_t owed;
    bool conditional;
    char if_match[ETAG_SIZE]; /* empty: it must not exist */
    char name[NAME_MAX + 1], temp[NAME_MAX + 1], path[PATH_MAX];
};

/* Whether the target still is what the client thinks it is. */
static int check_match(const struct writing *w)
{
    struct stat st;
    char etag[ETAG_SIZE] = "";

    if (!w->conditional)
        return 0;
    if (fstatat(w->dir, w->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        etag_of(&st, etag);
    else if (errno != ENOENT)
        return errno;
    return strcmp(etag, w->if_match) ? CONFLICT_ERRNO : 0;
}

/* The rename changes the time that the etag is made of, so it is asked for afterwards, by a second descriptor. */
static int put_in_place(struct writing *w, int again, struct stat *st)
{
    int err = check_match(w);

    if (err)
        return err;
    if (rename_as(w->dir, w->temp, w->dir, w->name, w->must_be_new ? RENAME_NOREPLACE : 0) < 0)
        return errno;
    *w->temp = 0;
    return fstat(again, st) < 0 ? errno : 0;
}

static int commit(struct writing *w, struct stat *st)
{
    if (*w->temp && fchmod(w->fd, w->mode) < 0)
        return errno;
    if (fstat(w->fd, st) < 0)
        return errno;
    int again = *w->temp ? fcntl(w->fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (*w->temp && again < 0)
        return errno;
    int fd = w->fd;
    w->fd = -1;
    int err = close(fd) < 0 ? errno : 0;
    if (!err && *w->temp)
        err = put_in_place(w, again, st);
    if (again >= 0)
        close(again);
    return err;
}

/* Removes what is half-written before the client learns of the failure. */
static bool write_failed(struct fs *fs, struct writing *w, int err)
{
    if (*w->temp)
        unlinkat(w->dir, w->temp, 0);
    *w->temp = 0;
    return fs_fail(fs, w->job.id, err, w->path);
}

static bool write_data(struct fs *fs, struct job *job, struct slice bytes, bool end)
{
    struct writing *w = (struct writing *)job;
    struct stat st;

    w->owed += bytes.size;
    while (bytes.size) {
        ssize_t n = write(w->fd, bytes.data, bytes.size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return write_failed(fs, w, errno);
        bytes.data += n;
        bytes.size -= (size_t)n;
    }
    if (!end) {
        if (w->owed >= REPAY_AT) {
            put_credit(&fs->out, job->id, 0, (uint32_t)w->owed);
            fs_send(fs);
            w->owed = 0;
        }
        return true;
    }
    int err = commit(w, &st);
    if (err)
        return write_failed(fs, w, err);
    fs_reply_info(fs, job->id, F_FINAL, w->path, &st, NULL);
    return false;
}

static void write_free(struct job *job)
{
    struct writing *w = (struct writing *)job;

    if (*w->temp)
        unlinkat(w->dir, w->temp, 0);
    if (w->fd >= 0)
        close(w->fd);
    if (w->dir >= 0)
        close(w->dir);
    free(w);
}

static const struct job_ops write_ops = {NULL, write_data, write_free};

/* Opens the directory that the target really lies in, link after link; 0 or an errno. */
static int find_target(struct writing *w, const char *path)
{
    char directory[PATH_MAX], link[PATH_MAX], next[PATH_MAX];

    snprintf(next, sizeof next, "%s", path);
    for (int i = 0; i < MAX_LINKS; i++) {
        /* A link's text may have no slash, or be relative to where the link is. */
        bool bare = !strchr(next, '/');
        if (bare) {
            snprintf(link, sizeof link, "%s", next);
            snprintf(next, sizeof next, "./%.*s", PATH_MAX - 3, link);
        }
        if (!split_path(next, directory, w->name))
            return strlen(strrchr(next, '/')) > NAME_MAX + 1 ? ENAMETOOLONG : EISDIR;
        int dir = openat(w->dir < 0 ? AT_FDCWD : w->dir, directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
            return errno;
        if (w->dir >= 0)
            close(w->dir);
        w->dir = dir;
        ssize_t n = readlinkat(dir, w->name, link, sizeof link - 1);
        if (n < 0)
            return errno == EINVAL || errno == ENOENT ? 0 : errno;
        if (w->must_be_new)
            return EEXIST;
        link[n] = 0;
        memcpy(next, link, (size_t)n + 1);
    }
    return ELOOP;
}

static bool may_write(int dir, const char *name)
{
    if (syscall(SYS_faccessat2, dir, name, W_OK, AT_EACCESS | AT_SYMLINK_NOFOLLOW) == 0)
        return true;
    if (errno != ENOSYS && errno != EINVAL && errno != EPERM)
        return false;
    int fd = openat(dir, name, O_WRONLY | O_NOFOLLOW | OPEN_FLAGS); /* an old kernel, or a filter that does not know the call */
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static int make_temp(struct writing *w)
{
    for (int i = 0; i < 16; i++) {
        int n = snprintf(w->temp, sizeof w->temp, ".%.200s.skerry-", w->name);
        int err = temp_letters(w->temp + n);
        if (err) {
            *w->temp = 0;
            return err;
        }
        w->fd = openat(w->dir, w->temp, O_WRONLY | O_CREAT | O_EXCL | OPEN_FLAGS, 0600);
        if (w->fd >= 0)
            return 0;
        if (errno != EEXIST)
            break;
    }
    *w->temp = 0;
    return errno;
}

/* The replacement gets the owner first, so that a refusal comes before any content. */
static int prepare_temp(struct writing *w, const struct stat *old)
{
    struct stat st;
    int err = make_temp(w);

    if (err || !old)
        return err;
    w->mode = old->st_mode & 07777;
    if (fstat(w->fd, &st) < 0)
        return errno;
    if (st.st_uid == old->st_uid && st.st_gid == old->st_gid)
        return 0;
    return fchown(w->fd, old->st_uid, old->st_gid) < 0 ? errno : 0;
}

static int open_append(struct writing *w, bool exists)
{
    struct stat st;

    w->fd = openat(w->dir, w->name, O_WRONLY | O_APPEND | O_NOFOLLOW | OPEN_FLAGS | (exists ? 0 : O_CREAT | O_EXCL), w->mode);
    if (w->fd < 0 || fstat(w->fd, &st) < 0)
        return errno;
    return refuse_special(st.st_mode);
}

static int open_target(struct writing *w, int64_t flags)
{
    char directory[PATH_MAX], name[NAME_MAX + 1];
    struct stat old;

    if (flags & WRITE_PARENTS && split_path(w->path, directory, name)) {
        int err = make_directories(directory);
        if (err)
            return err;
    }
    int err = find_target(w, w->path);
    if (err)
        return err;
    bool exists = fstatat(w->dir, w->name, &old, AT_SYMLINK_NOFOLLOW) == 0;
    if (!exists && errno != ENOENT)
        return errno;
    if (exists && w->must_be_new)
        return EEXIST;
    if (exists && (err = refuse_special(old.st_mode)))
        return err;
    if ((err = check_match(w)))
        return err;
    if (exists && !may_write(w->dir, w->name))
        return errno == EROFS ? EROFS : EACCES;
    return flags & WRITE_APPEND ? open_append(w, exists) : prepare_temp(w, exists ? &old : NULL);
}

void fs_write(struct fs *fs, const struct request *r)
{
    int64_t mode = 0644, flags = 0;
    struct slice if_match = {0};
    struct want wants[] = {{3, &mode, NULL}, {4, &flags, NULL}, {5, NULL, &if_match}};

    if (!fields_decode(r->payload, wants, 3) || mode < 0 || mode > 07777)
        return (void)fs_fail(fs, r->id, EINVAL, "mode");
    struct writing *w = calloc(1, sizeof *w);
    if (!w)
        return (void)fs_fail(fs, r->id, ENOMEM, r->path);
    w->fd = w->dir = -1;
    w->mode = (mode_t)mode;
    w->owed = fs_window(fs);
    w->must_be_new = flags & WRITE_NEW;
    w->conditional = if_match.data;
    /* One that is too long for an etag stays too long, and matches nothing. */
    snprintf(w->if_match, sizeof w->if_match, "%.*s", (int)(if_match.size < ETAG_SIZE ? if_match.size : ETAG_SIZE), (const char *)if_match.data);
    snprintf(w->path, sizeof w->path, "%s", r->path);
    int err = open_target(w, flags);
    if (err) {
        write_free(&w->job);
        return (void)fs_fail(fs, r->id, err, r->path);
    }
    fs_add_job(fs, &w->job, r->id, &write_ops);
}
