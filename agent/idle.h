/* Inactivity: for how long the sandbox has done no work. */
#ifndef IDLE_H
#define IDLE_H

#include <stdbool.h>
#include <stdint.h>

/* Times are CLOCK_BOOTTIME, ms. Nothing is measured while `limit` is 0. */
struct idle {
    int64_t limit;        /* inactive for so long: the sandbox ends */
    int64_t active;       /* when it last was seen at work */
    int64_t looked, next; /* the last look at its processes, and the next */
    int64_t cpu_us;       /* what they had used then */
};

/* From BOOT, before anything has run. */
void idle_init(int64_t limit);
/* 0: measure no more. */
void idle_set(int64_t limit);
/* Work was done just now. */
void idle_touch(void);
/* ms without work; 0 while nothing is measured. */
int64_t idle_for(void);
/* When to look next, -1: never. */
int64_t idle_next_wake(void);
/* Looks if it is time to; whether the limit is reached. */
bool idle_over(void);

#endif
