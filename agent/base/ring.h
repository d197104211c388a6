/* A ring of the last bytes of a stream, addressed by their offset in it. */
#ifndef RING_H
#define RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Holds the bytes [start, end); `cap` is 0 or a power of two and grows to `max`. */
struct ring {
    uint8_t *data;
    size_t cap, max;
    uint64_t start, end;
};

/* Whether a byte may be taken in without losing one at or after `keep`, if the budget allows it. */
bool ring_may_take(const struct ring *r, uint64_t keep);
/* Free bytes after making room for up to `want`: first bytes before `keep` go if `thrifty`, then it grows, then they go. */
size_t ring_make_room(struct ring *r, size_t want, uint64_t keep, bool thrifty);
/* The memory of [at, at + size), in one or two pieces; returns how many. */
int ring_slices(const struct ring *r, uint64_t at, size_t size, struct iovec piece[2]);
void ring_free(struct ring *r);

#endif
