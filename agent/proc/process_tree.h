/* Process trees, as /proc shows them. */
#ifndef TREE_H
#define TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Stops every descendant of `root`, until a pass finds no new one, and kills them all. Branches that start at a pid in
 * `keep` are left alone. Forks nothing. The caller reaps, and repeats while it still has children. Returns how many it
 * found.
 */
size_t tree_kill(pid_t root, const pid_t *keep, size_t keep_count);
/* Signals every descendant of `root` but those in the process group `but` (0: none). */
void tree_signal(pid_t root, pid_t but, int sig);
/* Whether it is stopped, by a signal or by a tracer. */
bool tree_held(pid_t pid);
/* The most kB that any living descendant of `root` has had in memory. */
int64_t tree_peak(pid_t root);
/* The CPU time of the descendants of `root`, and of those they have waited for, without the branches in `keep`. */
int64_t tree_cpu_ticks(pid_t root, const pid_t *keep, size_t keep_count);

#endif
