/* Prepares one sandbox's root and limits in a private mount namespace, then becomes the OCI runtime.
 *
 * Nothing it mounts is visible on the host, so a crash at any point leaves no mount behind. The work is in C because a
 * Python process cannot enter namespaces without taking all its threads along, and because this is the hot path of create.
 *
 *   launcher parent=PID ids=BASE userns=FILE netns=FILE log=FILE [mask=DIR] [join=FILE …] lower=DIR … upper=DIR scratch=DIR root=DIR empty=DIR
 *            agent=PATH:SOURCE [share=PATH:SOURCE …] [bind=PATH:SOURCE …] [volume=rw|ro:LENGTH:PATH:LENGTH:SUBPATH:SOURCE …] [inotify=N] [files=N]
 *            [oom=FILE:FD] [words=FILE:FD] [go=FD] [unsynced=1] -- RUNTIME ARG …
 *
 * parent   who started it: the launcher and the runtime die with that process
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
 * unsynced what programs in the sandbox ask to be on disk may stay in memory; such an upper cannot be mounted again
 * userns, netns   files on which the user and the network namespace are mounted, for the runtime to join
 *
 * What is in the root was written by the sandbox or came from somewhere else. So no link in it is followed, whatever is mounted, and
 * what the machine or the runtime puts there stands on directories of the root itself. What is in the way is told by a line of the
 * log that begins with "refused: ".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ID_COUNT 65536
#define MAX_LAYERS 64
#define MAX_JOINS 16
#define MAX_PARTS 64
#define MAX_VOLUMES 64
#define USER 1000 /* who a directory made for a volume belongs to */

/* <sys/mount.h>, which declares it, cannot be included together with <linux/mount.h>. */
int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data);

/* A directory or file of the machine in the sandbox; tree: its mount, in no place yet. */
struct part {
    char *path, *source;
    int shared, tree;
};

struct plan {
    unsigned ids;
    pid_t parent;
    const char *mask, *upper, *scratch, *root, *empty, *userns, *netns, *inotify;
    char *oom, *words;
    int go;
    unsigned long files;
    int unsynced;
    const char *lower[MAX_LAYERS];
    int lowers;
    const char *join[MAX_JOINS];
    int joins;
    struct part agent, part[MAX_PARTS];
    int parts;
    char *volume[MAX_VOLUMES];
    int volumes;
    int log;
};

static int log_fd = 2;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    int saved = errno;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dprintf(log_fd, "launcher: %s: %s\n", text, strerror(saved));
    _exit(1);
}

/* For what the sandbox's own files are the reason of. */
__attribute__((noreturn, format(printf, 1, 2))) static void refuse(const char *format, ...) {
    char text[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dprintf(log_fd, "refused: %s\n", text);
    _exit(1);
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) die("open %s", path);
    if (write(fd, text, strlen(text)) < 0) die("write %s", path);
    close(fd);
}

static struct __user_cap_data_struct all_caps[2];

static void read_caps(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    if (syscall(SYS_capget, &header, all_caps)) die("capget");
}

static void restore_caps(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    if (syscall(SYS_capset, &header, all_caps)) die("capset");
}

/* The namespace belongs to the sandbox's own first id, not to host root: the kernel charges inotify instances and the like
 * to the owner of a namespace, so one sandbox cannot use up what another needs. */
static void enter_userns(unsigned ids) {
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)) die("keepcaps");
    if (syscall(SYS_setresgid, ids, ids, ids) || syscall(SYS_setresuid, ids, ids, ids)) die("setresuid");
    restore_caps();
    if (unshare(CLONE_NEWUSER)) die("unshare user namespace");
}

static void write_map(pid_t pid, const char *which, unsigned ids) {
    char path[64], map[64];
    snprintf(path, sizeof path, "/proc/%d/%s_map", pid, which);
    snprintf(map, sizeof map, "0 %u %u\n", ids, ID_COUNT);
    write_file(path, map);
}

/* The process that makes the sandbox's namespaces and holds them until they are mounted where the runtime will look. */
struct holder {
    pid_t pid;
    int hear, tell;
};

static int hears(int fd) {
    char byte;
    return read(fd, &byte, 1) == 1;
}

static int tells(int fd) { return write(fd, "", 1) == 1; }

static void raise_loopback(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request)) die("loopback");
    close(fd);
}

__attribute__((noreturn)) static void hold(const struct plan *plan, int hear, int tell) {
    enter_userns(plan->ids);
    if (!tells(tell) || !hears(hear)) _exit(1);
    if (plan->inotify) write_file("/proc/sys/user/max_inotify_instances", plan->inotify);
    if (unshare(CLONE_NEWNET)) die("unshare network namespace");
    raise_loopback();
    _exit(!tells(tell) || !hears(hear));
}

static void mount_namespace(const struct holder *holder, const char *which, const char *target) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", holder->pid, which);
    if (mount(path, target, NULL, MS_BIND, NULL)) die("mount %s", target);
}

/* Make the user namespace and return a descriptor of it; the holder goes on to the network namespace, which takes a millisecond. */
static int begin_namespaces(const struct plan *plan, struct holder *holder) {
    int up[2], down[2];
    if (pipe2(up, O_CLOEXEC) || pipe2(down, O_CLOEXEC)) die("pipe");
    holder->pid = fork();
    if (holder->pid < 0) die("fork");
    if (holder->pid == 0) {
        close(up[0]), close(down[1]); /* or it would wait for itself when the launcher is killed */
        hold(plan, down[0], up[1]);
    }
    close(up[1]), close(down[0]);
    holder->hear = up[0], holder->tell = down[1];
    if (!hears(holder->hear)) die("user namespace");
    write_map(holder->pid, "uid", plan->ids);
    write_map(holder->pid, "gid", plan->ids);
    mount_namespace(holder, "user", plan->userns);
    int fd = open(plan->userns, O_RDONLY | O_CLOEXEC);
    if (fd < 0) die("open %s", plan->userns);
    if (!tells(holder->tell)) die("user namespace");
    return fd;
}

static void finish_namespaces(const struct plan *plan, struct holder *holder) {
    int status;
    if (!hears(holder->hear)) die("network namespace");
    mount_namespace(holder, "net", plan->netns);
    if (!tells(holder->tell) || waitpid(holder->pid, &status, 0) != holder->pid || status != 0) die("network namespace");
    close(holder->hear), close(holder->tell);
}

/* A copy of the mount of the open directory `source`, which is closed, in which the ids 0… on disk are the sandbox's ids: layers
 * stay portable between id ranges. */
static int idmapped(int source, const char *name, int userns, int read_only) {
    struct mount_attr attr = {
        .attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID | (read_only ? MOUNT_ATTR_RDONLY : 0),
        .userns_fd = userns,
    };
    int tree = syscall(SYS_open_tree, source, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (tree < 0) die("open_tree %s", name);
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr)) die("idmap %s", name);
    close(source);
    return tree;
}

static int open_directory(const char *path) {
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) die("open %s", path);
    return fd;
}

static void mount_idmapped(const char *source, const char *target, int userns, int read_only) {
    int tree = idmapped(open_directory(source), source, userns, read_only);
    if (syscall(SYS_move_mount, tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH)) die("mount %s", target);
    close(tree);
}

/* overlayfs and new directories take the caller's file-system ids, which must exist in the idmapped upper */
static void act_as(unsigned id) {
    setfsgid(id);
    setfsuid(id);
    if (id) restore_caps();
}

static int resolve(int directory, const char *path, unsigned long flags, unsigned long how_to) {
    struct open_how how = {.flags = O_PATH | O_CLOEXEC | flags, .resolve = how_to | RESOLVE_NO_MAGICLINKS};
    int fd = -1;
    /* EAGAIN: somebody renamed something on the way, which a sandbox that shares a volume can do without end */
    for (int tries = 0; tries < 1000 && fd < 0; tries++) {
        fd = syscall(SYS_openat2, directory, path, &how, sizeof how);
        if (fd < 0 && errno != EAGAIN) break;
    }
    return fd;
}

/* `path` below the root, as it is written there: no link is followed, and unless `across`, no mount is crossed. */
static int open_inside(int root, const char *path, unsigned long flags, int across) {
    return resolve(root, path + 1, flags, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | (across ? 0 : RESOLVE_NO_XDEV));
}

static const char *fault(int number) {
    return number == ELOOP ? "a link" : number == ENOTDIR ? "not a directory" : strerror(number);
}

static void attach(int tree, int target, const char *path) {
    if (syscall(SYS_move_mount, tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH)) die("mount %s", path);
    close(target);
    close(tree);
}

/* A directory directly in the root, made if it is not there. */
static int open_own(int root, const char *path, unsigned ids) {
    int fd = open_inside(root, path, O_DIRECTORY, 0);
    if (fd < 0 && errno == ENOENT) {
        act_as(ids);
        if (mkdirat(root, path + 1, 0755)) die("make %s in the sandbox", path);
        act_as(0);
        fd = open_inside(root, path, O_DIRECTORY, 0);
    }
    if (fd < 0) refuse("%s in the sandbox's files is %s", path, fault(errno));
    return fd;
}

/* Make the directories of `path` that are not there, one by one, each in the one before, and open the last. Volumes may be in
 * others, where other sandboxes are at work. */
static int make_directories(int root, const char *path, unsigned ids) {
    char so_far[4096];
    size_t length = strlen(path), done = 0;
    if (length >= sizeof so_far) errno = ENAMETOOLONG, die("volume %s", path);
    act_as(ids + USER);
    int parent = open_inside(root, "/.", O_DIRECTORY, 0), fd = -1;
    if (parent < 0) die("open the sandbox's root");
    for (size_t i = 1; i <= length; i++) {
        if (path[i] && path[i] != '/') continue;
        memcpy(so_far, path, i);
        so_far[i] = 0;
        char *name = so_far + done;
        fd = open_inside(parent, name, O_DIRECTORY, 1);
        if (fd < 0 && errno == ENOENT) {
            if (mkdirat(parent, name + 1, 0755) && errno != EEXIST)
                refuse("the volume for %s cannot be mounted: %s cannot be made: %s", path, so_far, strerror(errno));
            fd = open_inside(parent, name, O_DIRECTORY, 1);
        }
        if (fd < 0) refuse("the volume for %s cannot be mounted: %s is %s", path, so_far, fault(errno));
        close(parent);
        parent = fd;
        done = i;
    }
    act_as(0);
    return fd;
}

/* The text of LENGTH:TEXT: at `*at`, which moves behind it. */
static char *counted(char **at) {
    char *text;
    long length = strtol(*at, &text, 10);
    if (length < 0 || text == *at || *text != ':' || (long)strlen(++text) <= length || text[length] != ':') errno = EINVAL, die("volume %s", *at);
    text[length] = 0;
    *at = text + length + 1;
    return text;
}

static void mount_volume(const struct plan *plan, int root, char *volume, int userns) {
    int read_only = !strncmp(volume, "ro:", 3);
    if (!read_only && strncmp(volume, "rw:", 3)) errno = EINVAL, die("volume %s", volume);
    char *rest = volume + 3, *path = counted(&rest), *subpath = counted(&rest);
    int source = open_directory(rest);
    if (*subpath) {
        int below = resolve(source, subpath, O_DIRECTORY, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV);
        if (below < 0) die("open %s of the volume for %s", subpath, path);
        close(source);
        source = below;
    }
    int target = make_directories(root, path, plan->ids);
    attach(idmapped(source, path, userns, read_only), target, path);
}

static void mount_root(const struct plan *plan, int userns) {
    char options[4096], target[16];
    int length = snprintf(options, sizeof options, "lowerdir=");
    if (chdir(plan->scratch)) die("chdir %s", plan->scratch); /* short, relative names: mount data is one page */
    for (int i = 0; i < plan->lowers; i++) {
        snprintf(target, sizeof target, "l%d", i);
        mount_idmapped(plan->lower[i], target, userns, 1);
        length += snprintf(options + length, sizeof options - length, "%sl%d", i ? ":" : "", i);
    }
    mount_idmapped(plan->upper, "u", userns, 0);
    snprintf(options + length, sizeof options - length, ",upperdir=u/u,workdir=u/w,redirect_dir=off,metacopy=off%s", plan->unsynced ? ",volatile" : "");
    act_as(plan->ids); /* for overlayfs's work directory */
    if (mount("overlay", plan->root, "overlay", MS_NODEV | MS_NOSUID, options)) die("overlay on %s", plan->root);
    act_as(0);
}

/* A mount, in no place yet, of an overlay of the directory `source` alone, which nobody can write to. Its name is not among the
 * options, which the sandbox can read. */
static int overlaid(const char *source, const char *empty, unsigned attributes) {
    char lower[4096];
    if ((size_t)snprintf(lower, sizeof lower, "%s:.", empty) >= sizeof lower) errno = ENAMETOOLONG, die("share %s", source);
    int fs = syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC);
    if (fs < 0) die("fsopen");
    if (chdir(source)) die("chdir %s", source);
    const char *const options[][2] = {{"source", "overlay"}, {"lowerdir", lower}, {"redirect_dir", "nofollow"}, {"metacopy", "off"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, options[i][0], options[i][1], 0)) die("%s of %s", options[i][0], source);
    if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0)) die("overlay of %s", source);
    int tree = syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, attributes);
    if (tree < 0 || chdir("/")) die("overlay of %s", source);
    close(fs);
    return tree;
}

/* A read-only copy, in no place yet, of the mount that has `source`. */
static int bound(const char *source) {
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID};
    int tree = syscall(SYS_open_tree, AT_FDCWD, source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (tree < 0) die("open_tree %s", source);
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr)) die("bind %s", source);
    return tree;
}

/* The agent alone, of an overlay of the directory it is in. To be copied a mount needs a place, and the root is not there yet. */
static int open_agent(const struct plan *plan) {
    char path[4096];
    char *name = strrchr(plan->agent.source, '/');
    if (!name || snprintf(path, sizeof path, "%s%s", plan->root, name) >= (int)sizeof path)
        errno = EINVAL, die("agent %s", plan->agent.source);
    *name = 0;
    int tree = overlaid(plan->agent.source, plan->empty, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID);
    attach(tree, open_directory(plan->root), plan->root);
    return bound(path);
}

static void open_parts(struct plan *plan) {
    plan->agent.tree = open_agent(plan);
    for (int i = 0; i < plan->parts; i++) {
        struct part *part = &plan->part[i];
        part->tree = part->shared ? overlaid(part->source, plan->empty, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID) : bound(part->source);
    }
}

/* Whether a part stands in one that came before it. */
static int within_another(const struct plan *plan, int number) {
    for (int i = 0; i < number; i++) {
        size_t length = strlen(plan->part[i].path);
        if (!strncmp(plan->part[number].path, plan->part[i].path, length) && plan->part[number].path[length] == '/') return 1;
    }
    return 0;
}

/* What is no directory in the agent's place goes, and so does what is no file in that. */
static void mount_agent(const struct plan *plan, int root) {
    char directory[256];
    const char *name = strrchr(plan->agent.path, '/');
    if (snprintf(directory, sizeof directory, "%.*s", (int)(name - plan->agent.path), plan->agent.path) >= (int)sizeof directory)
        errno = ENAMETOOLONG, die("agent %s", plan->agent.path);
    act_as(plan->ids);
    if (unlinkat(root, directory + 1, 0) && errno != ENOENT && errno != EISDIR) die("replace %s", directory);
    int place = open_own(root, directory, plan->ids);
    act_as(plan->ids);
    struct stat info;
    if (fstatat(place, name + 1, &info, AT_SYMLINK_NOFOLLOW) || !S_ISREG(info.st_mode)) {
        if (unlinkat(place, name + 1, 0) && errno != ENOENT && (errno != EISDIR || unlinkat(place, name + 1, AT_REMOVEDIR)))
            refuse("%s in the sandbox's files is a directory that is not empty", plan->agent.path);
        if (mknodat(place, name + 1, S_IFREG | 0644, 0)) die("make %s in the sandbox", plan->agent.path);
    }
    act_as(0);
    int target = open_inside(place, name, 0, 0);
    if (target < 0) die("open %s in the sandbox", plan->agent.path);
    attach(plan->agent.tree, target, plan->agent.path);
    close(place);
}

static void mount_parts(const struct plan *plan, int root) {
    static const char *const runtimes[] = {"/proc", "/sys", "/dev"};
    for (size_t i = 0; i < sizeof runtimes / sizeof *runtimes; i++) close(open_own(root, runtimes[i], plan->ids));
    for (int i = 0; i < plan->parts; i++) {
        const struct part *part = &plan->part[i];
        int target = within_another(plan, i) ? open_inside(root, part->path, 0, 1) : open_own(root, part->path, plan->ids);
        if (target < 0) die("open %s in the sandbox", part->path);
        attach(part->tree, target, part->path);
    }
    mount_agent(plan, root);
}

/* The runtime binds devices of the machine into the sandbox. Here it finds them with inodes of the sandbox's own. It remounts them,
 * which is quick where the mount has no attributes to keep. A machine whose devices are mounts themselves has to do with these. */
static void own_devices(const struct plan *plan) {
    struct stat info;
    int tree = overlaid("/dev", plan->empty, 0);
    if (fstatat(tree, "null", &info, 0) || !S_ISCHR(info.st_mode)) {
        close(tree);
        return;
    }
    attach(tree, open_directory("/dev"), "/dev");
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0) die("open /dev/null");
    if (null > 2) close(null);
}

/* From a read-only mount the runtime need not copy itself to be safe from being overwritten by what it starts. The mount gets a
 * place, for the kernel waits a millisecond to take one apart that has none. */
static void mount_runtime(const char *runtime) {
    int target = open(runtime, O_PATH | O_CLOEXEC);
    if (target < 0) die("open %s", runtime);
    attach(bound(runtime), target, runtime);
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

/* Any change of ids takes it back: it is asked for again after the last one. */
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

/* Nothing else is to get that number. */
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
            close(fd); /* the low numbers are what the runtime is to find */
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
