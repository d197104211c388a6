/* What handling events needs of the scan. */
#ifndef FSWATCHSCAN_H
#define FSWATCHSCAN_H

#include "watch/watch.h"

/* The absolute path of `name` in `n`; false if it is too long. */
bool watch_full_path(const struct watching *w, const struct node *n, const char *name, char to[PATH_MAX]);
/* Watches the directory `name` of `parent`, which is at the path `at` now; one that is new will be scanned. */
void watch_place(struct watching *w, struct node *parent, const char *name, const char *at, bool announce);
/* Another directory than `n` may have its name by now, if names are reused faster than events are read. */
void watch_check(struct watching *w, const struct node *n);
/* It is no longer in the tree, with all below it. */
void watch_forget(struct watching *w, struct node *n);

#endif
