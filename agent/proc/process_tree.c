/* Stop, look again, kill: a stopped process cannot fork, so the tree stands still before the first process dies. */
#include "proc/process_tree.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/getdents.h"

#define PASSES 32

struct entry {
    pid_t pid, parent;
    char state;
    int64_t ticks; /* of CPU time, with that of the children it has waited for */
    bool marked;
};

/* In ascending order of pid, as /proc lists them. */
struct table {
    struct entry *list;
    size_t count, cap;
};

/* mmap rather than malloc: the supervisor is a fork and should not dirty the heap it shares. */
static bool table_add(struct table *t, struct entry e)
{
    if (t->count == t->cap) {
        size_t size = t->cap * sizeof e, more = size ? size * 2 : 4096;
        void *list = size ? mremap(t->list, size, more, MREMAP_MAYMOVE)
                          : mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (list == MAP_FAILED)
            return false;
        t->list = list;
        t->cap = more / sizeof e;
    }
    t->list[t->count++] = e;
    return true;
}

static void table_free(struct table *t)
{
    if (t->cap)
        munmap(t->list, t->cap * sizeof *t->list);
}

/* False: it is gone. */
static bool entry_read(pid_t pid, struct entry *e)
{
    char path[32], stat[512];
    unsigned long long ticks[4] = {0};

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, stat, sizeof stat - 1);
    close(fd);
    if (n <= 0)
        return false;
    stat[n] = 0;
    /* The name in parentheses may hold anything, so look from its end: ") S PPID". */
    char *end = strrchr(stat, ')');
    *e = (struct entry){.pid = pid};
    if (!end || sscanf(end + 1, " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu", &e->state, &e->parent,
                       &ticks[0], &ticks[1], &ticks[2], &ticks[3]) < 2)
        return false;
    e->ticks = (int64_t)(ticks[0] + ticks[1] + ticks[2] + ticks[3]);
    return true;
}

static void table_scan(struct table *t)
{
    char buffer[4096];
    long n;

    t->count = 0;
    int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    while ((n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0) {
        for (long at = 0; at < n;) {
            struct linux_dirent64 *d = (struct linux_dirent64 *)(void *)(buffer + at);
            at += d->d_reclen;
            struct entry e;
            pid_t pid = (pid_t)atoi(d->d_name);
            if (pid > 0 && entry_read(pid, &e) && !table_add(t, e))
                break;
        }
    }
    close(fd);
}

static struct entry *table_find(const struct table *t, pid_t pid)
{
    size_t low = 0, high = t->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (t->list[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < t->count && t->list[low].pid == pid ? &t->list[low] : NULL;
}

static bool kept(pid_t pid, const pid_t *keep, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (keep[i] == pid)
            return true;
    return false;
}

static void mark(struct table *t, pid_t root, const pid_t *keep, size_t keep_count)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < t->count; i++) {
            struct entry *e = &t->list[i];
            if (e->marked || kept(e->pid, keep, keep_count))
                continue;
            const struct entry *parent = table_find(t, e->parent);
            if (e->parent == root || (parent && parent->marked))
                e->marked = changed = true;
        }
    }
}

size_t tree_kill(pid_t root, const pid_t *keep, size_t keep_count)
{
    struct table now = {0}, before = {0};
    size_t found = 0;

    for (int pass = 0; pass < PASSES; pass++) {
        size_t fresh = 0;
        table_scan(&now);
        mark(&now, root, keep, keep_count);
        for (size_t i = 0; i < now.count; i++) {
            const struct entry *e = &now.list[i], *old = table_find(&before, e->pid);
            if (!e->marked || (old && old->marked))
                continue;
            kill(e->pid, SIGSTOP);
            fresh++;
        }
        if (!fresh)
            break;
        struct table swap = before;
        before = now;
        now = swap;
        now.count = 0;
    }
    /* After a pass that found nothing new `now` is the whole tree; if the passes ran out, `before` is the latest. */
    const struct table *last = now.count ? &now : &before;
    for (size_t i = 0; i < last->count; i++)
        if (last->list[i].marked) {
            kill(last->list[i].pid, SIGKILL);
            found++;
        }
    table_free(&now);
    table_free(&before);
    return found;
}

void tree_signal(pid_t root, pid_t but, int sig)
{
    struct table now = {0};

    table_scan(&now);
    mark(&now, root, NULL, 0);
    for (size_t i = 0; i < now.count; i++)
        if (now.list[i].marked && (!but || getpgid(now.list[i].pid) != but))
            kill(now.list[i].pid, sig);
    table_free(&now);
}

bool tree_held(pid_t pid)
{
    struct entry e;

    return entry_read(pid, &e) && (e.state == 'T' || e.state == 't');
}

int64_t tree_cpu_ticks(pid_t root, const pid_t *keep, size_t keep_count)
{
    struct table now = {0};
    int64_t ticks = 0;

    table_scan(&now);
    mark(&now, root, keep, keep_count);
    for (size_t i = 0; i < now.count; i++)
        ticks += now.list[i].marked ? now.list[i].ticks : 0;
    table_free(&now);
    return ticks;
}

static int64_t entry_peak(pid_t pid)
{
    char path[32], text[4096];

    snprintf(path, sizeof path, "/proc/%d/status", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *line = strstr(text, "\nVmHWM:"); /* a newline in the name is escaped there */
    return line ? strtoll(line + strlen("\nVmHWM:"), NULL, 10) : 0;
}

int64_t tree_peak(pid_t root)
{
    struct table now = {0};
    int64_t peak = 0;

    table_scan(&now);
    mark(&now, root, NULL, 0);
    for (size_t i = 0; i < now.count; i++) {
        int64_t size = now.list[i].marked ? entry_peak(now.list[i].pid) : 0;
        peak = size > peak ? size : peak;
    }
    table_free(&now);
    return peak;
}
