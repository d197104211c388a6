/* The tables of a WATCH. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "watch/watch.h"

#define BUCKETS 1024
#define SEEN_BUCKETS 4096

struct seen {
    struct seen *next;
    int wd;
    char name[];
};

static size_t hash(uintptr_t key, const char *name, size_t buckets)
{
    uint64_t h = 1469598103934665603u ^ key;

    for (; name && *name; name++)
        h = (h ^ (uint8_t)*name) * 1099511628211u;
    return (h ^ h >> 29) % buckets;
}

static struct node **name_chain(const struct tree *t, const struct node *parent, const char *name)
{
    return &t->by_name[hash((uintptr_t)parent >> 4, name, BUCKETS)];
}

bool tree_init(struct tree *t)
{
    t->by_wd = calloc(BUCKETS, sizeof *t->by_wd);
    t->by_name = calloc(BUCKETS, sizeof *t->by_name);
    return t->by_wd && t->by_name;
}

void tree_free(struct tree *t)
{
    if (t->root)
        tree_drop(t, t->root, NULL, NULL);
    seen_clear(t);
    free(t->by_wd);
    free(t->by_name);
    *t = (struct tree){0};
}

struct node *tree_find(const struct tree *t, int wd)
{
    struct node *n = t->by_wd[(unsigned)wd % BUCKETS];

    while (n && n->wd != wd)
        n = n->same_wd;
    return n;
}

struct node *tree_child(const struct tree *t, const struct node *parent, const char *name)
{
    struct node *n = *name_chain(t, parent, name);

    while (n && (n->parent != parent || strcmp(n->name, name)))
        n = n->same_name;
    return n;
}

static void link_in(struct tree *t, struct node *n, struct node *parent)
{
    struct node **chain = name_chain(t, parent, n->name);

    n->parent = parent;
    n->same_name = *chain;
    *chain = n;
    n->prev = NULL;
    n->next = parent ? parent->child : NULL;
    if (n->next)
        n->next->prev = n;
    if (parent)
        parent->child = n;
}

static void link_out(struct tree *t, struct node *n)
{
    struct node **at = name_chain(t, n->parent, n->name);

    while (*at != n)
        at = &(*at)->same_name;
    *at = n->same_name;
    if (n->next)
        n->next->prev = n->prev;
    if (n->prev)
        n->prev->next = n->next;
    else if (n->parent)
        n->parent->child = n->next;
}

struct node *tree_add(struct tree *t, struct node *parent, const char *name, int wd)
{
    struct node *n = calloc(1, sizeof *n);

    if (!n || !(n->name = strdup(name))) {
        free(n);
        return NULL;
    }
    n->wd = wd;
    n->same_wd = t->by_wd[(unsigned)wd % BUCKETS];
    t->by_wd[(unsigned)wd % BUCKETS] = n;
    link_in(t, n, parent);
    t->count++;
    if (!t->root)
        t->root = n;
    return n;
}

bool tree_move(struct tree *t, struct node *n, struct node *parent, const char *name)
{
    char *copy = strdup(name);

    if (!copy)
        return false;
    link_out(t, n);
    free(n->name);
    n->name = copy;
    link_in(t, n, parent);
    return true;
}

static void unqueue(struct tree *t, struct node *n)
{
    struct node *before = NULL, *at = t->first;

    while (at != n) {
        before = at;
        at = at->todo;
    }
    if (before)
        before->todo = n->todo;
    else
        t->first = n->todo;
    if (t->last == n)
        t->last = before;
}

static void drop_one(struct tree *t, struct node *n)
{
    struct node **at = &t->by_wd[(unsigned)n->wd % BUCKETS];

    while (*at != n)
        at = &(*at)->same_wd;
    *at = n->same_wd;
    link_out(t, n);
    if (n->queued)
        unqueue(t, n);
    if (t->root == n)
        t->root = NULL;
    t->count--;
    free(n->name);
    free(n);
}

/* Without recursion: how deep a tree is, is the sandbox's choice. */
void tree_drop(struct tree *t, struct node *n, void (*gone)(void *, int), void *context)
{
    struct node *at = n, *above;

    do {
        while (at->child)
            at = at->child;
        above = at == n ? NULL : at->parent;
        if (gone)
            gone(context, at->wd);
        drop_one(t, at);
        at = above;
    } while (at);
}

bool tree_above(const struct node *n, const struct node *of)
{
    while (of && of != n)
        of = of->parent;
    return of == n;
}

const char *tree_path(const struct node *n, const char *name, char to[WATCH_PATH])
{
    size_t at = WATCH_PATH - 1;

    to[at] = 0;
    for (const char *part = name ? name : n->name;; part = n->name) {
        size_t size = strlen(part);
        if (part != name) {
            if (!n->parent)
                break;
            n = n->parent;
        }
        if (size + 1 > at)
            return NULL;
        if (to[at])
            to[--at] = '/';
        at -= size;
        memcpy(to + at, part, size);
    }
    return to + at;
}

void tree_queue(struct tree *t, struct node *n)
{
    n->again = false;
    if (n->queued)
        return;
    n->queued = true;
    n->todo = NULL;
    if (t->first)
        t->last->todo = n;
    else
        t->first = n;
    t->last = n;
}

struct node *tree_next(struct tree *t)
{
    struct node *n = t->first;

    if (!n)
        return NULL;
    t->first = n->todo;
    n->queued = false;
    return n;
}

bool seen_add(struct tree *t, int wd, const char *name)
{
    size_t size = strlen(name) + 1;

    if (!t->seen && !(t->seen = calloc(SEEN_BUCKETS, sizeof *t->seen)))
        return false;
    struct seen *s = malloc(sizeof *s + size);
    if (!s)
        return false;
    struct seen **chain = &t->seen[hash((unsigned)wd, name, SEEN_BUCKETS)];
    s->next = *chain;
    s->wd = wd;
    memcpy(s->name, name, size);
    *chain = s;
    t->seen_count++;
    return true;
}

bool seen_take(struct tree *t, int wd, const char *name)
{
    if (!t->seen)
        return false;
    struct seen **at = &t->seen[hash((unsigned)wd, name, SEEN_BUCKETS)], *found;

    while (*at && ((*at)->wd != wd || strcmp((*at)->name, name)))
        at = &(*at)->next;
    if (!(found = *at))
        return false;
    *at = found->next;
    free(found);
    t->seen_count--;
    return true;
}

void seen_clear(struct tree *t)
{
    for (size_t i = 0; t->seen && i < SEEN_BUCKETS; i++)
        for (struct seen *s = t->seen[i], *next; s; s = next) {
            next = s->next;
            free(s);
        }
    free(t->seen);
    t->seen = NULL;
    t->seen_count = 0;
}
