/* LIST: entries of a walk, as far as credit goes. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/worker.h"
#include "tree/walk.h"

#define FRAME_MAX 65536

struct listing {
    struct job job;
    int64_t depth, window, total;
    uint64_t sent;
    struct buf entry; /* one that waits for credit, whole */
    struct walk walk;
    bool descend; /* the entry that waits is a directory to go into */
    char *after;  /* the path to continue after, a NUL behind each name */
    const char *next, *end; /* the name in it that is looked for, NULL once we are past it; and its end */
    int level;              /* where that name is looked for */
};

/* In a directory on the way to the path to continue after: skips the names before the one that leads there. */
static void skip(struct listing *l)
{
    struct level *level = &l->walk.level[l->walk.levels - 1];
    size_t low = 0, high = level->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(level->order[middle], l->next) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    level->at = low;
    l->level = l->walk.levels;
}

/* Goes into the directory we are at. One that cannot be opened is listed but stays closed. */
static int go_down(struct fs *fs, struct listing *l)
{
    l->descend = false;
    if (l->walk.levels >= l->depth)
        return 0;
    int err = walk_enter(&l->walk, fs->io, FS_IO);
    if (!err && l->next)
        skip(l);
    return err == EMFILE || err == ENFILE || err == ENOMEM ? err : 0;
}

/* Whether the current entry leads to the path to continue after, or is it: then it was listed before. */
static bool is_known(struct listing *l)
{
    if (!l->next)
        return false;
    bool known = l->walk.levels == l->level && !strcmp(l->walk.name, l->next);
    l->next = known ? l->next + strlen(l->next) + 1 : NULL;
    if (l->next && l->next >= l->end)
        l->next = NULL; /* what is in it comes after it, all of it */
    return known;
}

/* To the next entry that still exists and was not listed before; false at the end, or with *err. */
static bool advance(struct fs *fs, struct listing *l, int *err)
{
    for (;;) {
        if (!walk_next(&l->walk))
            return false;
        if (!is_known(l)) {
            if (!l->walk.err)
                return true;
            continue;
        }
        int levels = l->walk.levels;
        if (!l->walk.err && S_ISDIR(l->walk.st.st_mode) && (*err = go_down(fs, l)))
            return false;
        if (l->walk.levels == levels)
            l->next = NULL; /* it is not entered */
    }
}

/* Puts the next entry into l->entry; false at the end, or with *err. */
static bool next_entry(struct fs *fs, struct listing *l, int *err)
{
    struct walk *w = &l->walk;
    char target[PATH_MAX];
    uint8_t length[4] = {0};

    if (!advance(fs, l, err))
        return false;
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
    while (!err && (more = buf_size(&l->entry) || next_entry(fs, l, &err))) {
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
    free(l->after);
    free(l);
}

static const struct job_ops list_ops = {list_step, NULL, list_free};

/* Begins after an entry that was listed before. 0 or an errno. */
static int go_on_after(struct listing *l, struct slice path)
{
    l->after = malloc(path.size + 1);
    if (!l->after)
        return ENOMEM;
    memcpy(l->after, path.data, path.size);
    l->after[path.size] = 0;
    for (size_t i = 0; i < path.size; i++)
        if (l->after[i] == '/')
            l->after[i] = 0;
    l->next = l->after;
    l->end = l->after + path.size;
    return 0;
}

void fs_list(struct fs *fs, const struct request *r)
{
    int64_t depth = 1, window = DEFAULT_WINDOW;
    struct slice after = {0};
    struct want wants[] = {{3, &depth, NULL}, {6, &window, NULL}, {7, NULL, &after}};

    if (!fields_decode(r->payload, wants, 3) || depth < 1)
        return (void)fs_fail(fs, r->id, EINVAL, "depth");
    if (slice_has_nul(after))
        return (void)fs_fail(fs, r->id, EINVAL, "after");
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
    int err = after.size ? go_on_after(l, after) : 0; /* before the walk, which reads names where the request is */
    if (err)
        close(fd);
    else
        err = walk_start(&l->walk, fd, fs->io, FS_IO);
    if (!err && l->next)
        skip(l);
    if (err) {
        list_free(&l->job);
        return (void)fs_fail(fs, r->id, err, r->path);
    }
    fs_add_job(fs, &l->job, r->id, &list_ops);
}
