/* Files with several names: which one came first. */
#include <stdlib.h>
#include <string.h>

#include "tree/trees.h"

#define MOST 100000
#define NAMES_MAX (16u << 20)

static size_t place(const struct hardlinks *h, dev_t dev, ino_t ino)
{
    size_t at = (size_t)((ino ^ (uint64_t)dev << 32) * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (h->cap - 1);

    while (h->slot[at].name && (h->slot[at].dev != dev || h->slot[at].ino != ino))
        at = (at + 1) & (h->cap - 1);
    return at;
}

static bool grow(struct hardlinks *h)
{
    struct hardlinks larger = {.cap = h->cap ? h->cap * 2 : 64};

    larger.slot = calloc(larger.cap, sizeof *larger.slot);
    if (!larger.slot)
        return false;
    for (size_t i = 0; i < h->cap; i++)
        if (h->slot[i].name)
            larger.slot[place(&larger, h->slot[i].dev, h->slot[i].ino)] = h->slot[i];
    free(h->slot);
    h->slot = larger.slot;
    h->cap = larger.cap;
    return true;
}

const char *hardlink_find(const struct hardlinks *h, const struct stat *st)
{
    size_t at = h->cap ? place(h, st->st_dev, st->st_ino) : 0;

    return h->cap && h->slot[at].name ? (char *)buf_front(&h->names) + h->slot[at].name - 1 : NULL;
}

void hardlink_keep(struct hardlinks *h, const struct stat *st, const char *path)
{
    if (h->count >= MOST || buf_size(&h->names) > NAMES_MAX || (h->count * 2 >= h->cap && !grow(h)))
        return;
    size_t at = place(h, st->st_dev, st->st_ino);
    if (h->slot[at].name || !buf_reserve(&h->names, strlen(path) + 1))
        return;
    h->slot[at].dev = st->st_dev;
    h->slot[at].ino = st->st_ino;
    h->slot[at].name = (uint32_t)buf_size(&h->names) + 1;
    buf_put(&h->names, path, strlen(path) + 1);
    h->count++;
}

void hardlinks_free(struct hardlinks *h)
{
    free(h->slot);
    buf_free(&h->names);
    *h = (struct hardlinks){0};
}
