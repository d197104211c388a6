/* LIST: entries of a walk, as far as credit goes. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "fs.h"
#include "walk.h"

#define FRAME_MAX 65536

struct listing {
    struct job job;
    int64_t depth, window, total;
    uint64_t sent;
    struct buf entry; /* one that waits for credit, whole */
    struct walk walk;
    bool descend; /* the entry that waits is a directory to go into */
};

/* Goes into the directory we are at. One that cannot be opened is listed but stays closed. */
static int go_down(struct fs *fs, struct listing *l)
{
    l->descend = false;
    if (l->walk.levels >= l->depth)
        return 0;
    int err = walk_enter(&l->walk, fs->io, FS_IO);
    return err == EMFILE || err == ENFILE || err == ENOMEM ? err : 0;
}

/* Puts the next entry that still exists into l->entry; false at the end. */
static bool next_entry(struct fs *fs, struct listing *l)
{
    struct walk *w = &l->walk;
    char target[PATH_MAX];
    uint8_t length[4] = {0};

    do
        if (!walk_next(w))
            return false;
    while (w->err);
    ssize_t n = S_ISLNK(w->st.st_mode) ? readlinkat(w->dir, w->name, target, sizeof target - 1) : -1;
    if (n >= 0)
        target[n] = 0;
    buf_put(&l->entry, length, sizeof length);
    put_info(fs, &l->entry, w->path, &w->st, n >= 0 ? target : NULL);
    if (!l->entry.failed)
        u32_encode(buf_front(&l->entry), (uint32_t)buf_size(&l->entry) - 4);
    l->descend = S_ISDIR(w->st.st_mode);
    return true;
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
        return fs_fail(fs, job->id, err ? err : ENOMEM, l->walk.path);
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

    walk_end(&l->walk);
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
    int err = walk_start(&l->walk, fd, fs->io, FS_IO);
    if (err) {
        list_free(&l->job);
        return (void)fs_fail(fs, r->id, err, r->path);
    }
    fs_add_job(fs, &l->job, r->id, &list_ops);
}
