/* The sandbox's user and network namespaces: a process makes them and holds them until they are mounted where the runtime looks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher.h"

static struct __user_cap_data_struct all_caps[2];

void read_caps(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    if (syscall(SYS_capget, &header, all_caps)) die("capget");
}

void restore_caps(void) {
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

int hears(int fd) {
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

/* Make the user namespace and return a descriptor of it; the holder then makes the network namespace, which takes a millisecond. */
int begin_namespaces(const struct plan *plan, struct holder *holder) {
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

void finish_namespaces(const struct plan *plan, struct holder *holder) {
    int status;
    if (!hears(holder->hear)) die("network namespace");
    mount_namespace(holder, "net", plan->netns);
    if (!tells(holder->tell) || waitpid(holder->pid, &status, 0) != holder->pid || status != 0) die("network namespace");
    close(holder->hear), close(holder->tell);
}
