/* Prepares one sandbox's root and limits in a private mount namespace, then becomes the OCI runtime.
 *
 * Nothing it mounts is visible on the host, so a crash at any point leaves no mount behind. The work is in C because a
 * Python process cannot enter namespaces without taking all its threads along, and because this is the hot path of create.
 *
 *   launcher parent=PID ids=BASE userns=FILE netns=FILE log=FILE [mask=DIR] [join=FILE …] lower=DIR … upper=DIR scratch=DIR root=DIR empty=DIR
 *            agent=PATH:SOURCE [share=PATH:SOURCE …] [bind=PATH:SOURCE …] [volume=rw|ro:LENGTH:PATH:LENGTH:SUBPATH:SOURCE …] [inotify=N] [files=N]
 *            [oom=FILE:FD] [words=FILE:FD] [go=FD] [unsynced=1] -- RUNTIME ARG …
 *
 * parent   the process that started it: the launcher and the runtime die with that process
 * mask     a cgroup2 mount to hide: crun refuses hosts that mix cgroup v1 and v2
 * join     a cgroup's tasks or cgroup.procs file: the launcher enters it, and all that it becomes
 * lower    read-only layers, topmost first; upper holds u/ (the writable layer) and w/ (overlayfs's own)
 * scratch  holds the empty directories l0… and u, where the layers are mounted
 * root     where the sandbox's root is mounted: the same place for all of them, each in its own mount namespace; the sandbox's
 *          root must be able to walk to it
 * empty    a directory with nothing in it: overlayfs wants two layers
 * agent    SOURCE, the program that the runtime starts, read-only at PATH, a name in a directory of the root. Both are Skerry's own:
 *          what the sandbox's files have there is replaced
 * share    SOURCE, a directory of the machine, without what is mounted below it, read-only at PATH in the root, as an overlay of the
 *          sandbox's own: its inodes are nobody else's, so neither locks nor inotify reach from one sandbox to another, or to the
 *          machine
 * bind     SOURCE of the machine, for what overlayfs does not take: the machine's own inodes, read-only at PATH in the root
 * volume   SUBPATH of SOURCE, a directory of the machine, at PATH in the root, with the sandbox's ids; PATH is made if it is
 *          not there. Other sandboxes may be at work in SOURCE: no link in it is followed. LENGTH: the bytes of what follows it
 * ids      first host id of the sandbox's 65,536
 * inotify, files  how many inotify instances the sandbox, and open files each of its processes, may have
 * oom, words  files to leave open as FD, the first for reading, the second for writing
 * go       where a byte says that the layers are there, and a second one that the groups and the runtime's configuration are: the
 *          namespaces are made while the caller prepares the former, the layers are mounted while it prepares the latter
 * unsynced what programs in the sandbox sync to disk may stay in memory; such an upper cannot be mounted again
 * userns, netns   files on which the user and the network namespace are mounted, for the runtime to join
 *
 * What is in the root was written by the sandbox or came from somewhere else. So no link in it is followed, whatever is mounted, and
 * what the machine or the runtime puts there stands on directories of the root itself. If something is in the way, a line of the
 * log that begins with "refused: " says so.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "launcher.h"

static int log_fd = 2;

__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...) {
    int saved = errno;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dprintf(log_fd, "launcher: %s: %s\n", text, strerror(saved));
    _exit(1);
}

__attribute__((noreturn, format(printf, 1, 2))) void refuse(const char *format, ...) {
    char text[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dprintf(log_fd, "refused: %s\n", text);
    _exit(1);
}

void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) die("open %s", path);
    if (write(fd, text, strlen(text)) < 0) die("write %s", path);
    close(fd);
}

/* Set here and inherited: a runtime would need CAP_SYS_RESOURCE over the sandbox, which not every root has. */
static void limit(int resource, rlim_t value) {
    struct rlimit bounds = {value, value};
    if (setrlimit(resource, &bounds)) die("rlimit %d", resource);
}

/* 1 and not 0: a core_pattern that is a pipe runs the machine's handler, as the machine's root, for every limit but 1. */
static void forbid_cores(void) {
    struct rlimit bounds = {1, 1};
    if (!setrlimit(RLIMIT_CORE, &bounds)) return;
    /* the caller's own bound is 0, and it may not be raised: that is as good where there is no handler */
    char first = '|';
    int fd = open("/proc/sys/kernel/core_pattern", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, &first, 1) < 0 || first == '|' || first == '@') die("rlimit core");
    close(fd);
    limit(RLIMIT_CORE, 0);
}

/* Any change of ids clears it, so ask for it again after the last one. */
static void die_with(pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)) die("parent death signal");
    if (getppid() != parent) _exit(1); /* it died before that took hold */
}

static void await_go(const struct plan *plan) {
    if (plan->go && !hears(plan->go)) _exit(1); /* the caller gave up */
}

/* Opens `path` as the descriptor `number`, whatever that was. */
static void open_as(const char *path, int flags, int number) {
    int fd = open(path, flags);
    if (fd < 0 || dup2(fd, number) < 0) die("open %s", path);
    if (fd != number) close(fd);
}

/* The number of FILE:FD. */
static int number_of(const char *file) {
    const char *number = strrchr(file, ':');
    if (!number) errno = EINVAL, die("file %s", file);
    return atoi(number + 1);
}

/* Nothing else may get that number. */
static void reserve(const char *file) {
    if (file) open_as("/dev/null", O_PATH, number_of(file));
}

static void leave_open(char *file, int flags) {
    if (!file) return;
    int number = number_of(file);
    *strrchr(file, ':') = 0;
    open_as(file, flags | O_NOFOLLOW, number);
}

static struct part part_of(char *text, int shared) {
    char *source = strchr(text, ':');
    if (*text != '/' || !source) errno = EINVAL, die("part %s", text);
    *source++ = 0;
    return (struct part){.path = text, .source = source, .shared = shared, .tree = -1};
}

static void add_part(struct plan *plan, char *text, int shared) {
    if (plan->parts == MAX_PARTS) errno = E2BIG, die("part %s", text);
    plan->part[plan->parts++] = part_of(text, shared);
}

static int matches(const char *argument, const char *name, const char **value) {
    size_t length = strlen(name);
    if (strncmp(argument, name, length) || argument[length] != '=') return 0;
    *value = argument + length + 1;
    return 1;
}

static char **parse(int argc, char **argv, struct plan *plan) {
    const char *value;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--")) return argv + i + 1;
        if (matches(argv[i], "ids", &value)) plan->ids = strtoul(value, NULL, 10);
        else if (matches(argv[i], "parent", &value)) plan->parent = atoi(value);
        else if (matches(argv[i], "log", &value)) {
            int fd = open(value, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
            if (fd < 0 || (plan->log = fcntl(fd, F_DUPFD_CLOEXEC, 64)) < 0) die("open %s", value);
            close(fd); /* the runtime must find only its own descriptors at the low numbers */
            log_fd = plan->log;
        } else if (matches(argv[i], "mask", &value)) plan->mask = value;
        else if (matches(argv[i], "upper", &value)) plan->upper = value;
        else if (matches(argv[i], "scratch", &value)) plan->scratch = value;
        else if (matches(argv[i], "root", &value)) plan->root = value;
        else if (matches(argv[i], "userns", &value)) plan->userns = value;
        else if (matches(argv[i], "netns", &value)) plan->netns = value;
        else if (matches(argv[i], "empty", &value)) plan->empty = value;
        else if (matches(argv[i], "oom", &value)) plan->oom = argv[i] + 4;
        else if (matches(argv[i], "words", &value)) plan->words = argv[i] + 6;
        else if (matches(argv[i], "go", &value)) plan->go = atoi(value);
        else if (matches(argv[i], "unsynced", &value)) plan->unsynced = atoi(value);
        else if (matches(argv[i], "files", &value)) plan->files = strtoul(value, NULL, 10);
        else if (matches(argv[i], "agent", &value)) plan->agent = part_of(argv[i] + 6, 1);
        else if (matches(argv[i], "share", &value)) add_part(plan, argv[i] + 6, 1);
        else if (matches(argv[i], "bind", &value)) add_part(plan, argv[i] + 5, 0);
        else if (matches(argv[i], "volume", &value) && plan->volumes < MAX_VOLUMES) plan->volume[plan->volumes++] = argv[i] + 7;
        else if (matches(argv[i], "inotify", &value)) plan->inotify = value;
        else if (matches(argv[i], "lower", &value) && plan->lowers < MAX_LAYERS) plan->lower[plan->lowers++] = value;
        else if (matches(argv[i], "join", &value) && plan->joins < MAX_JOINS) plan->join[plan->joins++] = value;
        else errno = EINVAL, die("argument %s", argv[i]);
    }
    errno = EINVAL;
    die("no runtime given");
}

int main(int argc, char **argv) {
    struct plan plan = {0};
    char **runtime = parse(argc, argv, &plan);
    if (!*runtime || plan.ids < ID_COUNT || !plan.lowers || !plan.upper || !plan.scratch || !plan.root || !plan.empty || !plan.agent.path || !plan.userns || !plan.netns)
        errno = EINVAL, die("usage");
    die_with(plan.parent);
    reserve(plan.oom), reserve(plan.words);
    read_caps();
    if (unshare(CLONE_NEWNS)) die("unshare mount namespace");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("private mounts");
    if (plan.mask && mount("tmpfs", plan.mask, "tmpfs", 0, "size=64k")) die("mask %s", plan.mask);
    struct holder holder;
    int userns = begin_namespaces(&plan, &holder);
    open_parts(&plan);
    own_devices(&plan);
    mount_runtime(runtime[0]);
    await_go(&plan);
    mount_root(&plan, userns);
    int root = open_directory(plan.root);
    for (int i = 0; i < plan.volumes; i++) mount_volume(&plan, root, plan.volume[i], userns);
    mount_parts(&plan, root);
    if (chdir("/")) die("chdir /");
    finish_namespaces(&plan, &holder);
    await_go(&plan);
    if (plan.go) close(plan.go);
    /* "0" is the writer itself: moving a single thread skips the kernel's global fork lock, which can cost 10 ms */
    for (int i = 0; i < plan.joins; i++) write_file(plan.join[i], "0");
    leave_open(plan.oom, O_RDONLY);
    leave_open(plan.words, O_WRONLY);
    if (plan.files) limit(RLIMIT_NOFILE, plan.files);
    forbid_cores();
    die_with(plan.parent);
    execv(runtime[0], runtime);
    die("exec %s", runtime[0]);
}
