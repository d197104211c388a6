/* From the kernel's events to those of a WATCH. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "watch/scan.h"
#include "base/loop.h"

#define SETTLE_MS 10 /* the second half of a rename comes at once, but not always as the very next event */
#define BATCH 8192

static void emit_at(struct watching *w, const char *kind, const struct node *n, const char *name, bool dir)
{
    char buffer[WATCH_PATH];
    const char *path = tree_path(n, name, buffer);

    if (path)
        watch_emit(w, kind, path, dir, NULL);
    else
        w->error = EMFILE;
}

/* It was moved out of the watched tree. */
static void settle(struct watching *w, struct held *h)
{
    struct node *parent = tree_find(&w->tree, h->wd);

    h->cookie = 0;
    if (!parent)
        return;
    emit_at(w, "removed", parent, h->name, h->dir);
    struct node *child = h->dir ? tree_child(&w->tree, parent, h->name) : NULL;
    if (child)
        watch_forget(w, child);
}

int64_t watch_settle(struct watching *w, int64_t now)
{
    int64_t next = 0;

    for (struct held *h = w->held; h < w->held + HELD; h++) {
        if (h->cookie && h->due <= now)
            settle(w, h);
        if (h->cookie && (!next || h->due < next))
            next = h->due;
    }
    return next;
}

static void hold(struct watching *w, const struct node *n, const struct inotify_event *e)
{
    struct held *h = w->held, new = {.cookie = e->cookie, .wd = n->wd, .dir = e->mask & IN_ISDIR};

    for (struct held *other = w->held; other < w->held + HELD; other++)
        if (!other->cookie || (h->cookie && other->due < h->due))
            h = other;
    if (h->cookie)
        settle(w, h);
    new.due = now_ms() + SETTLE_MS;
    strncpy(new.name, e->name, NAME_MAX);
    *h = new;
}

/* Something new has the name of a held half of a rename: that one is gone for good. */
static void settle_name(struct watching *w, int wd, const char *name)
{
    for (struct held *h = w->held; h < w->held + HELD; h++)
        if (h->cookie && h->wd == wd && !strcmp(h->name, name))
            settle(w, h);
}

static void enter(struct watching *w, struct node *n, const char *name)
{
    char path[PATH_MAX];

    if (!w->recursive)
        return;
    if (watch_full_path(w, n, name, path))
        watch_place(w, n, name, path, true);
    else
        w->error = EMFILE;
}

/* Both halves are here; whether the directory, if it is one, was known and has moved with it. */
static bool renamed(struct watching *w, struct held *h, struct node *n, const char *name, bool announced)
{
    char old[WATCH_PATH], new[WATCH_PATH];
    struct node *parent = tree_find(&w->tree, h->wd), *child;
    const char *from = parent ? tree_path(parent, h->name, old) : NULL, *to = tree_path(n, name, new);

    h->cookie = 0;
    if (from && to)
        watch_emit(w, announced ? "removed" : "renamed", announced ? from : to, h->dir, announced ? NULL : from);
    child = parent && h->dir ? tree_child(&w->tree, parent, h->name) : NULL;
    struct node *there = tree_child(&w->tree, n, name);
    if (there && !tree_above(there, child))
        watch_forget(w, there);
    if (!child || tree_above(child, n))
        return false;
    if (tree_move(&w->tree, child, n, name))
        watch_check(w, child);
    else
        w->error = ENOMEM;
    return true;
}

static void arrived(struct watching *w, struct node *n, const struct inotify_event *e)
{
    bool dir = e->mask & IN_ISDIR, announced = seen_take(&w->tree, n->wd, e->name), moved = false;
    struct held *h = w->held;

    settle_name(w, n->wd, e->name);
    while (h < w->held + HELD && (!(e->mask & IN_MOVED_TO) || !h->cookie || h->cookie != e->cookie))
        h++;
    if (h < w->held + HELD)
        moved = renamed(w, h, n, e->name, announced);
    else if (!announced)
        emit_at(w, "created", n, e->name, dir);
    if (dir && !moved)
        enter(w, n, e->name);
}

static void departed(struct watching *w, struct node *n, const struct inotify_event *e)
{
    struct node *child = e->mask & IN_ISDIR ? tree_child(&w->tree, n, e->name) : NULL;

    seen_take(&w->tree, n->wd, e->name);
    if (e->mask & IN_MOVED_FROM)
        return hold(w, n, e);
    emit_at(w, "removed", n, e->name, e->mask & IN_ISDIR);
    if (child)
        watch_forget(w, child);
}

/* What happened to the path itself. */
static void on_root(struct watching *w, const struct inotify_event *e)
{
    struct stat st;
    bool dir = S_ISDIR(w->st.st_mode);

    /* A file that is held open is not deleted when its name goes; that changes its attributes only. */
    if (e->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)
        || (!dir && e->mask & IN_ATTRIB
            && (stat(w->path, &st) < 0 || st.st_ino != w->st.st_ino || st.st_dev != w->st.st_dev))) {
        watch_settle(w, INT64_MAX);
        watch_emit(w, "removed", "", dir, NULL);
        w->gone = true;
    } else if (e->mask & IN_MODIFY) {
        watch_emit(w, "modified", "", dir, NULL);
    } else if (e->mask & IN_ATTRIB) {
        watch_emit(w, "attributes", "", dir, NULL);
    }
}

static void on_event(struct watching *w, const struct inotify_event *e)
{
    struct node *n = tree_find(&w->tree, e->wd);
    bool dir = e->mask & IN_ISDIR;

    if (e->mask & IN_Q_OVERFLOW)
        w->lost = true;
    if (!n)
        return; /* it has left the tree since */
    if (n == w->tree.root && !e->len)
        return on_root(w, e);
    if (e->mask & IN_IGNORED)
        return watch_forget(w, n);
    if (!e->len)
        return; /* its parent says so too */
    if (n->queued || n->again)
        return; /* the scan that is to come finds what there is then */
    if (e->mask & (IN_CREATE | IN_MOVED_TO))
        arrived(w, n, e);
    else if (e->mask & (IN_DELETE | IN_MOVED_FROM))
        departed(w, n, e);
    else if (e->mask & IN_MODIFY)
        emit_at(w, "modified", n, e->name, dir);
    else if (e->mask & IN_ATTRIB) {
        emit_at(w, "attributes", n, e->name, dir);
        if (dir && !tree_child(&w->tree, n, e->name))
            enter(w, n, e->name); /* it may be readable only now */
    }
}

/* The queue is empty: no event repeats what a scan has found, and renames under way have been read. */
static void drained(struct watching *w)
{
    seen_clear(&w->tree);
    if (!w->again)
        return;
    w->again = false;
    for (struct node *n = w->tree.root; n;) {
        if (n->again)
            tree_queue(&w->tree, n);
        if (n->child) {
            n = n->child;
            continue;
        }
        while (n && !n->next)
            n = n->parent;
        n = n ? n->next : NULL;
    }
}

bool watch_read(struct watching *w)
{
    _Alignas(struct inotify_event) char batch[BATCH];
    ssize_t size = read(w->job.fd, batch, sizeof batch);

    if (size < 0 && errno != EAGAIN && errno != EINTR)
        w->error = errno;
    if (size <= 0) {
        drained(w);
        return w->tree.first;
    }
    for (char *at = batch; at < batch + size && !w->gone && !w->lost && !w->error;) {
        const struct inotify_event *e = (const struct inotify_event *)(void *)at;
        at += sizeof *e + e->len;
        on_event(w, e);
    }
    return true;
}
