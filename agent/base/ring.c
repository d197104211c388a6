/* Rings; all of them together stay within a budget, beyond which they do not grow. */
#include "base/ring.h"

#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "proc/proc.h"

#define RING_FIRST 4096
#define RING_BUDGET (16u << 20)

static bool may_grow(const struct ring *r)
{
    if (!r->cap)
        return true; /* the first page is always given: without it a process could not speak at all */
    if (r->cap >= r->max)
        return false;
    while (agent.ring_bytes + r->cap > RING_BUDGET)
        if (!procs_drop_oldest())
            return false;
    return true;
}

static bool grow(struct ring *r)
{
    size_t cap = r->cap ? r->cap * 2 : RING_FIRST;
    uint8_t *data = may_grow(r) ? malloc(cap) : NULL;
    struct iovec piece[2];

    if (!data)
        return false;
    size_t used = (size_t)(r->end - r->start);
    int pieces = used ? ring_slices(r, r->start, used, piece) : 0;
    uint64_t at = r->start;
    for (int i = 0; i < pieces; i++) {
        /* A piece that is whole in the old ring may wrap in the new one. */
        size_t index = at & (cap - 1), first = piece[i].iov_len;
        if (first > cap - index)
            first = cap - index;
        memcpy(data + index, piece[i].iov_base, first);
        memcpy(data, (uint8_t *)piece[i].iov_base + first, piece[i].iov_len - first);
        at += piece[i].iov_len;
    }
    agent.ring_bytes += cap - r->cap;
    free(r->data);
    r->data = data;
    r->cap = cap;
    return true;
}

bool ring_may_take(const struct ring *r, uint64_t keep)
{
    return r->end - keep < r->cap || r->cap < r->max;
}

static size_t give_way(struct ring *r, size_t want, uint64_t keep)
{
    size_t room = r->cap - (size_t)(r->end - r->start);
    if (room >= want || keep <= r->start)
        return room;
    size_t old = (size_t)(keep - r->start);
    size_t drop = want - room < old ? want - room : old;
    r->start += drop;
    return room + drop;
}

size_t ring_make_room(struct ring *r, size_t want, uint64_t keep, bool thrifty)
{
    size_t room = thrifty ? give_way(r, want, keep) : r->cap - (size_t)(r->end - r->start);

    while (room < want && grow(r))
        room = r->cap - (size_t)(r->end - r->start);
    return give_way(r, want, keep);
}

int ring_slices(const struct ring *r, uint64_t at, size_t size, struct iovec piece[2])
{
    size_t index = at & (r->cap - 1);
    size_t first = size < r->cap - index ? size : r->cap - index;

    piece[0] = (struct iovec){r->data + index, first};
    piece[1] = (struct iovec){r->data, size - first};
    return size > first ? 2 : 1;
}

void ring_free(struct ring *r)
{
    free(r->data);
    agent.ring_bytes -= r->cap;
    agent.untidy = agent.untidy || r->cap > RING_FIRST;
    r->data = NULL;
    r->cap = 0;
    r->start = r->end;
}
