/* How the sandbox ends: when told to, at its deadline, with its lease, or after inactivity. */
#ifndef LIFE_H
#define LIFE_H

#include <stdbool.h>
#include <stdint.h>

struct conn;
struct frame;

bool request_life(struct conn *c, const struct frame *f);
/* As LIFE `end` with a grace: a process outside has sent SIGTERM, as a machine that shuts down does. */
void life_terminate(void);
/* When the end may be due next, -1: unknown. */
int64_t life_next_wake(void);
/* Why the sandbox ends now, NULL: it does not. */
const char *life_over(void);
/* Tells the host that the sandbox is at work (-1), or when it last was; returns whether that could be written. */
bool life_note(int64_t active);
/* Tells the host why it ends and what the environment was. */
void life_last_words(const char *reason);

#endif
