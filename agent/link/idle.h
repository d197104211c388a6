/* Inactivity: for how long the sandbox has done no work. */
#ifndef IDLE_H
#define IDLE_H

#include <stdbool.h>
#include <stdint.h>

/* Times are CLOCK_BOOTTIME, ms. CPU time is not looked at while `limit` is 0. */
struct idle {
    int64_t limit;         /* the sandbox ends after this long without work */
    int64_t active;        /* when the sandbox was last seen at work */
    int64_t looked, next;  /* the last look at its processes, and the next */
    int64_t cpu_us;        /* what they had used then */
    int64_t tell, told_at; /* when the host is told next, 0: nothing is new; and when it was last */
    int64_t told;          /* `active` as it was told, -1: that it was at work */
};

/* From BOOT, before anything has run. */
void idle_init(int64_t limit);
/* Sets the limit; 0: stop measuring. */
void idle_set(int64_t limit);
/* Work was done just now. */
void idle_touch(void);
/* Work may have begun: check whether to tell the host. */
void idle_begun(void);
/* Tells the host, if it is time to, whether the sandbox is at work or when it last was. */
void idle_tell(void);
/* ms without work; 0 while nothing is measured. */
int64_t idle_for(void);
/* When to look or to tell next, -1: never. */
int64_t idle_next_wake(void);
/* Looks if it is time to; returns whether the limit is reached. */
bool idle_over(void);

#endif
