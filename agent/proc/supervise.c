/* The supervisor. It is a child subreaper, so "no child left" means that no descendant of the command is left. */
#include "proc/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "proc/process_tree.h"

#define SOCK 3
#define OOM_SCORE "500" /* commands go before the agent when memory runs out */

/* The command's main process, and what its tree has come to. */
struct watched {
    pid_t main;
    bool alive, killing; /* alive: the main process; killing: by us */
    int killed;          /* as in a report */
    int64_t peak;
};

static void send_report(struct report r)
{
    /* The agent reads all the time; if it has gone, the loop sees the end of the socket. */
    while (send(SOCK, &r, sizeof r, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

static void tell(int kind, int value, int stage)
{
    send_report((struct report){.kind = kind, .value = value, .stage = stage});
}

static int become(const struct user *user)
{
    if (geteuid() != 0 && geteuid() == user->uid)
        return 0;
    /* The bare system calls: glibc's would look for threads in memory that is not ours. */
    if (syscall(SYS_setgroups, (size_t)user->group_count, user->groups) < 0)
        return -1;
    if (syscall(SYS_setresgid, user->gid, user->gid, user->gid) < 0)
        return -1;
    return (int)syscall(SYS_setresuid, user->uid, user->uid, user->uid);
}

static void raise_oom_score(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    if (write(fd, OOM_SCORE, sizeof OOM_SCORE - 1) < 0) {
        /* Refused outside a sandbox of ours; it is a preference only. */
    }
    close(fd);
}

/* As execvp does it, but with the command's own PATH and without its fallback to a shell. */
static int search_and_exec(const struct launch *l)
{
    char file[4096];
    const char *name = l->argv[0];
    int err = ENOENT;

    if (!*name)
        return ENOENT;
    if (strchr(name, '/')) {
        execve(name, l->argv, l->envp);
        return errno;
    }
    for (const char *at = l->path; at; at = *at ? at + 1 : NULL) {
        size_t size = strcspn(at, ":");
        int n = snprintf(file, sizeof file, "%.*s%s%s", (int)size, at, size ? "/" : "", name);
        at += size;
        if (n < 0 || (size_t)n >= sizeof file)
            continue;
        execve(file, l->argv, l->envp);
        if (errno == EACCES)
            err = EACCES;
        else if (errno != ENOENT && errno != ENOTDIR)
            return errno;
    }
    return err;
}

/* Runs in the vforked child, in the supervisor's memory. */
static void become_command(struct launch *l)
{
    sigset_t none;

    tell(R_FORKED, (int)syscall(SYS_getpid), 0); /* the program may kill its supervisor before that can report it */
    raise_oom_score();
    setsid();
    if (l->terminal && ioctl(0, TIOCSCTTY, 0) < 0) {
        l->err = errno;
        return;
    }
    signal(SIGPIPE, SIG_DFL);
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (agent.nofile_raised)
        setrlimit(RLIMIT_NOFILE, &agent.nofile);
    l->stage = STAGE_USER;
    if (become(l->user) < 0) {
        l->err = errno;
        return;
    }
    l->stage = STAGE_CWD;
    if (chdir(l->cwd) < 0) {
        l->err = errno;
        return;
    }
    l->stage = STAGE_EXEC;
    l->err = search_and_exec(l);
}

static pid_t start_command(struct launch *l)
{
    l->err = 0;
    l->stage = STAGE_FORK;
    pid_t pid = vfork();
    if (pid == 0) {
        become_command(l);
        _exit(127);
    }
    if (pid < 0)
        l->err = errno;
    return pid;
}

/* Takes in all that have died; whether any child is left. */
static bool reap(struct watched *w)
{
    int status, of_main = 0;
    bool ended = false;
    struct rusage used;
    pid_t pid;

    while ((pid = wait4(-1, &status, WNOHANG, &used)) > 0) {
        if (used.ru_maxrss > w->peak)
            w->peak = used.ru_maxrss; /* includes the processes that it has waited for */
        if (pid != w->main) {
            w->killed += !w->killing && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
            continue;
        }
        ended = true;
        of_main = status;
    }
    bool left = pid == 0 || errno != ECHILD;
    if (ended) {
        w->alive = false;
        send_report((struct report){left ? R_EXITED : R_ENDED, of_main, 0, w->killed, w->peak});
    }
    return left;
}

/* Until nothing is left. A process that is stuck in the kernel is tried again, ever less often. */
static void kill_all(struct watched *w)
{
    sigset_t child;
    long wait_ms = 2;

    w->killing = true;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (;;) {
        if (w->alive)
            kill(-w->main, SIGKILL); /* finds its group even without /proc */
        tree_kill(getpid(), NULL, 0);
        struct timespec pause = {wait_ms / 1000, wait_ms % 1000 * 1000000};
        do {
            if (!reap(w))
                return;
        } while (sigtimedwait(&child, NULL, &pause) == SIGCHLD);
        wait_ms = wait_ms < 256 ? wait_ms * 2 : wait_ms;
    }
}

/* Once each, since a program may take the second time for impatience; and woken, should it be stopped. */
static void terminate(pid_t main, bool main_alive, int hangup)
{
    const int signals[] = {SIGTERM, hangup, SIGCONT};

    for (int i = 0; i < 3; i++) {
        if (main_alive && signals[i])
            kill(-main, signals[i]);
        if (signals[i] != SIGHUP)
            tree_signal(getpid(), main_alive ? main : 0, signals[i]);
    }
}

static void nothing(int sig) { (void)sig; }

static void serve(pid_t main)
{
    struct watched w = {.main = main, .alive = true};
    sigset_t but_child;
    struct pollfd p = {SOCK, POLLIN, 0};
    struct order order;

    memset(&but_child, 0xff, sizeof but_child); /* as block_signals does */
    sigdelset(&but_child, SIGCHLD);
    while (reap(&w)) {
        /* SIGCHLD is blocked but for this wait, so none is missed. */
        if (ppoll(&p, 1, NULL, &but_child) <= 0)
            continue;
        ssize_t n = recv(SOCK, &order, sizeof order, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n == sizeof order && order.kind == O_SIGNAL) {
            if (w.alive)
                kill(-main, order.signal);
            continue;
        }
        if (n == sizeof order && order.kind == O_TERMINATE) {
            terminate(main, w.alive, order.signal);
            continue;
        }
        kill_all(&w); /* as ordered, or because the agent is gone */
        break;
    }
    tell(R_GONE, 0, 0);
}

static _Noreturn void supervisor(struct launch *l, int sock)
{
    struct sigaction on_child = {.sa_handler = nothing};

    sigaction(SIGCHLD, &on_child, NULL); /* before the next: musl unblocks its own signals with the first handler */
    block_signals();                     /* ignore what the command sends to everybody, or to its parent */
    /* Our own 0, 1, 2 become the command's; the sources are all above 2. */
    for (int i = 0; i < 3; i++)
        if (dup2(l->stdio[i], i) < 0)
            _exit(1);
    if (sock != SOCK && dup3(sock, SOCK, O_CLOEXEC) < 0)
        _exit(1);
    close_between(SOCK + 1, ~0U);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t main = start_command(l);
    close_between(0, 2);
    if (l->err) {
        tell(R_FAILED, l->err, l->stage);
        _exit(0);
    }
    tell(R_STARTED, main, 0);
    serve(main);
    _exit(0);
}

pid_t supervise(struct launch *l, int *sock)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0)
        supervisor(l, pair[1]);
    int err = errno;
    close(pair[1]);
    if (pid < 0)
        close(pair[0]);
    *sock = pair[0];
    errno = err;
    return pid;
}
