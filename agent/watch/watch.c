/* WATCH: tells what changes below a path. */
#include "watch/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/loop.h"

#define KEPT (4u << 20) /* events that the client has not taken; above, the kernel's queue fills */
#define FRAME_MAX 65536
enum { RECURSIVE = 1 };

void watch_emit(struct watching *w, const char *kind, const char *path, bool dir, const char *from)
{
    struct buf *b = &w->pending;
    uint8_t length[4] = {0};
    size_t before = buf_size(b);

    buf_put(b, length, sizeof length);
    put_text(b, 1, kind);
    put_text(b, 2, path);
    if (strcmp(kind, "overflow"))
        put_text(b, 3, dir ? "dir" : "file");
    if (from)
        put_text(b, 4, from);
    if (b->failed) {
        w->error = ENOMEM;
        return;
    }
    size_t size = buf_size(b) - before;
    uint8_t *event = buf_front(b) + before;
    u32_encode(event, (uint32_t)size - 4);
    bool repeats = (*kind == 'm' || *kind == 'a') && w->last == size && !memcmp(event - size, event, size);
    if (repeats) {
        b->tail -= size;
        return;
    }
    w->last = size;
    w->count++;
}

/* Registers everything again, silently; a client that looks after `overflow` then misses no change. */
static void start_over(struct watching *w)
{
    watch_end(w);
    int err = watch_begin(w);
    if (err == ENOENT || err == ENOTDIR) {
        watch_emit(w, "removed", "", S_ISDIR(w->st.st_mode), NULL);
        w->gone = true;
    } else if (err) {
        w->error = err;
    }
}

static uint32_t event_size(const uint8_t *at)
{
    return 4 + ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}

/* One frame of as many whole events as fit; how many bytes they are. */
static size_t send_events(struct fs *fs, struct watching *w)
{
    size_t limit = w->job.credit < FRAME_MAX ? (size_t)w->job.credit : FRAME_MAX, size = 0, left = buf_size(&w->pending);
    const uint8_t *events = buf_front(&w->pending);

    while (size < left && size + event_size(events + size) <= limit)
        size += event_size(events + size);
    if (!size)
        return 0;
    put_data_head(&fs->out, w->job.id, 0, w->sent, size);
    buf_put(&fs->out, events, size);
    fs_send(fs);
    buf_consume(&w->pending, size);
    if (!buf_size(&w->pending)) {
        buf_free(&w->pending);
        w->last = 0;
    }
    w->sent += size;
    w->job.credit -= size;
    return size;
}

static void establish(struct fs *fs, struct watching *w)
{
    size_t mark = frame_begin(&fs->out, w->job.id, T_REPLY, 0);

    put_int(&fs->out, 1, S_ISDIR(w->st.st_mode) ? (int64_t)w->tree.count : 0);
    frame_end(&fs->out, mark);
    fs_send(fs);
    w->established = true;
}

/* Makes some progress; false if there is nothing to do until the kernel or the client says more. */
static bool advance(struct fs *fs, struct watching *w)
{
    if (w->gone || w->error || buf_size(&w->pending) >= KEPT)
        return false;
    if (w->scan >= 0 || w->tree.first) {
        watch_scan(fs, w);
        return true;
    }
    if (!w->established) {
        establish(fs, w);
        return true;
    }
    return watch_read(w);
}

static bool watch_step(struct fs *fs, struct job *job)
{
    struct watching *w = (struct watching *)job;
    int64_t now = now_ms();
    bool busy = advance(fs, w);

    if (w->lost && !w->error && !w->gone) {
        w->lost = false;
        w->overflows = true;
        start_over(w);
        busy = true;
    }
    if (w->overflows && !w->tree.first && w->scan < 0 && !w->gone && !w->error) {
        w->overflows = false;
        if (w->established)
            watch_emit(w, "overflow", "", false, NULL);
    }
    bool open = !w->gone && !w->error && buf_size(&w->pending) < KEPT;
    job->wake = busy || !open ? 0 : watch_settle(w, now);
    if (w->error && !w->established)
        return fs_fail(fs, job->id, w->error, w->path);
    size_t sent = w->established ? send_events(fs, w) : 0;
    if (!buf_size(&w->pending)) {
        if (w->error)
            return fs_fail(fs, job->id, w->error, w->path);
        if (w->gone) {
            fs_count(fs, job->id, w->count);
            return false;
        }
    } else if (!sent && (int64_t)job->credit >= w->window) {
        return fs_fail(fs, job->id, EINVAL, "window"); /* with all its credit back, the client cannot take this event */
    }
    job->stalled = !busy && !sent;
    job->listens = open;
    return true;
}

static void watch_free(struct job *job)
{
    struct watching *w = (struct watching *)job;

    watch_end(w);
    buf_free(&w->pending);
    free(w);
}

static const struct job_ops watch_ops = {watch_step, NULL, watch_free};

void fs_watch(struct fs *fs, const struct request *r)
{
    int64_t flags = 0, window = DEFAULT_WINDOW;
    struct want wants[] = {{3, &flags, NULL}, {6, &window, NULL}};

    if (!fields_decode(r->payload, wants, 2))
        return (void)fs_fail(fs, r->id, EINVAL, "flags");
    struct watching *w = calloc(1, sizeof *w);
    if (!w)
        return (void)fs_fail(fs, r->id, ENOMEM, r->path);
    strcpy(w->path, r->path);
    w->recursive = flags & RECURSIVE;
    w->window = window;
    int err = watch_begin(w);
    if (err) {
        watch_free(&w->job);
        return (void)fs_fail(fs, r->id, err, r->path);
    }
    fs_add_job(fs, &w->job, r->id, &watch_ops);
}
