/* LIST: walks a tree with one open directory a level, each read whole and sorted, and stops where credit ends. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs.h"

#define LEVELS 256
#define NAMES_MAX (64u << 20) /* bytes of names in one directory */
#define FRAME_MAX 65536
#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK)

struct level {
    int fd;
    struct buf names;
    uint32_t *order; /* where each name starts */
    size_t count, at;
    size_t prefix; /* length of the path of this directory, with its slash */
};

struct listing {
    struct job job;
    int64_t depth, window, total;
    uint64_t sent;
    struct buf entry; /* one that waits for credit, whole */
    struct level level[LEVELS];
    int levels;
    bool descend; /* the entry that waits is a directory to go into */
    char path[PATH_MAX * 2];
};

static int by_name(const void *a, const void *b, void *names)
{
    return strcmp((char *)names + *(const uint32_t *)a, (char *)names + *(const uint32_t *)b);
}

static int read_names(struct level *l, uint8_t *buffer, size_t size)
{
    long n;

    while ((n = syscall(SYS_getdents64, l->fd, buffer, size)) > 0) {
        for (long at = 0; at < n;) {
            struct dirent64 *d = (struct dirent64 *)(void *)(buffer + at);
            at += d->d_reclen;
            if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
                continue;
            buf_put(&l->names, d->d_name, strlen(d->d_name) + 1);
            l->count++;
        }
        if (l->names.failed || buf_size(&l->names) > NAMES_MAX)
            return ENOMEM;
    }
    if (n < 0)
        return errno;
    l->order = l->count ? malloc(l->count * sizeof *l->order) : NULL;
    if (l->count && !l->order)
        return ENOMEM;
    const char *names = (char *)buf_front(&l->names);
    for (size_t i = 0, at = 0; i < l->count; i++, at += strlen(names + at) + 1)
        l->order[i] = (uint32_t)at;
    if (l->count)
        qsort_r(l->order, l->count, sizeof *l->order, by_name, buf_front(&l->names));
    return 0;
}

static void pop(struct listing *l)
{
    struct level *level = &l->level[--l->levels];

    close(level->fd);
    buf_free(&level->names);
    free(level->order);
}

static int push(struct fs *fs, struct listing *l, int fd, size_t prefix)
{
    l->level[l->levels] = (struct level){.fd = fd, .prefix = prefix};
    int err = read_names(&l->level[l->levels++], fs->io, FS_IO);
    if (err)
        pop(l);
    return err;
}

/* Goes into the directory at l->path. One that cannot be opened is listed but stays closed. */
static int go_down(struct fs *fs, struct listing *l)
{
    struct level *level = &l->level[l->levels - 1];
    size_t size = strlen(l->path);

    l->descend = false;
    if (l->levels >= l->depth)
        return 0;
    if (l->levels == LEVELS || size + NAME_MAX + 2 > sizeof l->path)
        return EMFILE;
    int fd = openat(level->fd, l->path + level->prefix, OPEN_DIR | O_NOFOLLOW);
    if (fd < 0)
        return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? errno : 0;
    l->path[size] = '/';
    l->path[size + 1] = 0;
    return push(fs, l, fd, size + 1);
}

/* Puts the next entry that still exists into l->entry; false at the end. */
static bool next_entry(struct fs *fs, struct listing *l)
{
    struct stat st;
    char target[PATH_MAX];
    uint8_t length[4] = {0};

    while (l->levels) {
        struct level *level = &l->level[l->levels - 1];
        if (level->at == level->count) {
            pop(l);
            continue;
        }
        const char *name = (char *)buf_front(&level->names) + level->order[level->at++];
        if (fstatat(level->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        strcpy(l->path + level->prefix, name);
        ssize_t n = S_ISLNK(st.st_mode) ? readlinkat(level->fd, name, target, sizeof target - 1) : -1;
        if (n >= 0)
            target[n] = 0;
        buf_put(&l->entry, length, sizeof length);
        put_info(fs, &l->entry, l->path, &st, n >= 0 ? target : NULL);
        if (!l->entry.failed)
            u32_encode(buf_front(&l->entry), (uint32_t)buf_size(&l->entry) - 4);
        l->descend = S_ISDIR(st.st_mode);
        return true;
    }
    return false;
}

/* One frame of as many entries as fit. */
static bool list_step(struct fs *fs, struct job *job)
{
    struct listing *l = (struct listing *)job;
    size_t limit = job->credit < FRAME_MAX ? (size_t)job->credit : FRAME_MAX;
    int err = 0;
    bool more = true;

    put_data_head(&fs->out, job->id, 0, l->sent, 0);
    size_t head = buf_size(&fs->out);
    while (!err && (more = buf_size(&l->entry) || next_entry(fs, l))) {
        size_t size = buf_size(&l->entry);
        if (buf_size(&fs->out) - head + size > limit)
            break;
        buf_put(&fs->out, buf_front(&l->entry), size);
        buf_consume(&l->entry, size);
        l->total++;
        if (l->descend)
            err = go_down(fs, l);
    }
    size_t size = buf_size(&fs->out) - head;
    if (!fs->out.failed)
        u32_encode(buf_front(&fs->out), (uint32_t)(OFFSET_SIZE + size));
    if (size)
        fs_send(fs);
    else
        buf_consume(&fs->out, buf_size(&fs->out));
    job->credit -= size;
    l->sent += size;
    if (more && !err && !size && (int64_t)job->credit >= l->window)
        err = EINVAL; /* with all its credit back, the client still cannot take this entry */
    if (err || l->entry.failed)
        return fs_fail(fs, job->id, err ? err : ENOMEM, l->path);
    job->stalled = more && !size;
    if (more)
        return true;
    put_data_head(&fs->out, job->id, F_END, l->sent, 0);
    fs_send(fs);
    fs_count(fs, job->id, l->total);
    return false;
}

static void list_free(struct job *job)
{
    struct listing *l = (struct listing *)job;

    while (l->levels)
        pop(l);
    buf_free(&l->entry);
    free(l);
}

static const struct job_ops list_ops = {list_step, NULL, list_free};

void fs_list(struct fs *fs, const struct request *r)
{
    int64_t depth = 1, window = DEFAULT_WINDOW;
    struct want wants[] = {{3, &depth, NULL}, {6, &window, NULL}};

    if (!fields_decode(r->payload, wants, 2) || depth < 1)
        return (void)fs_fail(fs, r->id, EINVAL, "depth");
    int fd = open(r->path, OPEN_DIR);
    if (fd < 0)
        return (void)fs_fail(fs, r->id, errno, r->path);
    struct listing *l = calloc(1, sizeof *l);
    if (!l) {
        close(fd);
        return (void)fs_fail(fs, r->id, ENOMEM, r->path);
    }
    l->depth = depth;
    l->window = window;
    int err = push(fs, l, fd, 0);
    if (err) {
        list_free(&l->job);
        return (void)fs_fail(fs, r->id, err, r->path);
    }
    fs_add_job(fs, &l->job, r->id, &list_ops);
}
