/* The sandbox's root: its layers, its volumes, the agent, and what it gets of the machine. launcher.c says what is not trusted. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launcher.h"

#define USER 1000 /* the owner of a directory made for a volume */

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

int open_directory(const char *path) {
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
    /* EAGAIN: a process renamed something on the way, which a sandbox that shares a volume can do without end */
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

void mount_volume(const struct plan *plan, int root, char *volume, int userns) {
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

void mount_root(const struct plan *plan, int userns) {
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

void open_parts(struct plan *plan) {
    plan->agent.tree = open_agent(plan);
    for (int i = 0; i < plan->parts; i++) {
        struct part *part = &plan->part[i];
        part->tree = part->shared ? overlaid(part->source, plan->empty, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID) : bound(part->source);
    }
}

/* Whether a part is inside one that came before it. */
static int within_another(const struct plan *plan, int number) {
    for (int i = 0; i < number; i++) {
        size_t length = strlen(plan->part[i].path);
        if (!strncmp(plan->part[number].path, plan->part[i].path, length) && plan->part[number].path[length] == '/') return 1;
    }
    return 0;
}

/* In the agent's place, removes anything that is not a directory, and in that directory anything that is not a file. */
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

void mount_parts(const struct plan *plan, int root) {
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

/* What is mounted in /dev and has the sandbox's files, as /dev/shm may: a copy in no place yet, with all that is mounted below it.
 * -1: the files are elsewhere. */
static int below_devices(const char *files, char *where, size_t room) {
    if (strncmp(files, "/dev/", 5)) return -1;
    size_t length = 5 + strcspn(files + 5, "/");
    if (length >= room) errno = ENAMETOOLONG, die("keep %s", files);
    memcpy(where, files, length);
    where[length] = 0;
    int tree = syscall(SYS_open_tree, AT_FDCWD, where, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (tree < 0) die("open_tree %s", where);
    return tree;
}

/* The runtime binds devices of the machine into the sandbox. Here it finds them with inodes of the sandbox's own. It remounts them,
 * which is quick where the mount has no attributes to keep. If a machine's devices are mounts themselves, these are used. */
void own_devices(const struct plan *plan) {
    struct stat info;
    int tree = overlaid("/dev", plan->empty, 0);
    if (fstatat(tree, "null", &info, 0) || !S_ISCHR(info.st_mode)) {
        close(tree);
        return;
    }
    char home[256];
    int kept = below_devices(plan->scratch, home, sizeof home);
    attach(tree, open_directory("/dev"), "/dev");
    if (kept >= 0) attach(kept, open_directory(home), home);
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0) die("open /dev/null");
    if (null > 2) close(null);
}

/* On a read-only mount, what the runtime starts cannot overwrite the runtime, so it need not copy itself. The mount gets a place,
 * since the kernel takes a millisecond to take apart one that has none. */
void mount_runtime(const char *runtime) {
    int target = open(runtime, O_PATH | O_CLOEXEC);
    if (target < 0) die("open %s", runtime);
    attach(bound(runtime), target, runtime);
}
