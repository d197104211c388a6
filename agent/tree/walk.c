/* The walk that LIST, PACK and HASH share. */
#include "tree/walk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/getdents.h"

#define NAMES_MAX (64u << 20) /* bytes of names in one directory */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int read_names(struct level *l, uint8_t *buffer, size_t size)
{
    long n;

    while ((n = syscall(SYS_getdents64, l->fd, buffer, size)) > 0) {
        for (long at = 0; at < n;) {
            struct linux_dirent64 *d = (struct linux_dirent64 *)(void *)(buffer + at);
            at += d->d_reclen;
            if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
                continue;
            if (strlen(d->d_name) > NAME_MAX) /* which FUSE allows; our paths have no room for it */
                return ENAMETOOLONG;
            buf_put(&l->names, d->d_name, strlen(d->d_name) + 1);
            l->count++;
        }
        if (l->names.failed || buf_size(&l->names) > NAMES_MAX)
            return ENOMEM;
    }
    if (n < 0)
        return errno;
    l->order = l->count ? malloc(l->count * sizeof *l->order) : NULL;
    if (l->count && !l->order)
        return ENOMEM;
    const char *name = (char *)buf_front(&l->names);
    for (size_t i = 0; i < l->count; i++, name += strlen(name) + 1)
        l->order[i] = name;
    if (l->count)
        qsort(l->order, l->count, sizeof *l->order, by_name);
    return 0;
}

static void pop(struct walk *w)
{
    struct level *level = &w->level[--w->levels];

    close(level->fd);
    buf_free(&level->names);
    free(level->order);
}

static int push(struct walk *w, int fd, size_t prefix, uint8_t *scratch, size_t size)
{
    w->level[w->levels] = (struct level){.fd = fd, .prefix = prefix};
    int err = read_names(&w->level[w->levels++], scratch, size);
    if (err)
        pop(w);
    return err;
}

int walk_start(struct walk *w, int fd, uint8_t *scratch, size_t size)
{
    w->levels = 0;
    w->path[0] = 0;
    return push(w, fd, 0, scratch, size);
}

bool walk_next(struct walk *w)
{
    while (w->levels) {
        struct level *level = &w->level[w->levels - 1];
        if (level->at == level->count) {
            pop(w);
            continue;
        }
        w->dir = level->fd;
        w->name = level->order[level->at++];
        w->err = fstatat(w->dir, w->name, &w->st, AT_SYMLINK_NOFOLLOW) < 0 ? errno : 0;
        strcpy(w->path + level->prefix, w->name);
        return true;
    }
    return false;
}

int walk_enter(struct walk *w, uint8_t *scratch, size_t size)
{
    size_t length = strlen(w->path);

    if (w->levels == LEVELS || length + NAME_MAX + 2 > sizeof w->path)
        return EMFILE;
    int fd = openat(w->dir, w->name, OPEN_DIR | O_NOFOLLOW);
    if (fd < 0)
        return errno;
    int err = push(w, fd, length + 1, scratch, size);
    if (!err)
        memcpy(w->path + length, "/", 2);
    return err;
}

void walk_end(struct walk *w)
{
    while (w->levels)
        pop(w);
}
