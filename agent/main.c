/* The agent: boots, then serves connections until the sandbox ends. `agent LISTEN_FD BOOT_FD [OOM_FD [WORDS_FD]]`. */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"
#include "link/conn.h"
#include "link/life.h"
#include "proc/proc.h"
#include "proc/supervise.h"

#define EXIT_GRACE_MS 2000

struct agent agent;

static _Noreturn void fail(const char *what)
{
    dprintf(2, "agent: %s: %s\n", what, strerror(errno));
    _exit(2);
}

void close_between(unsigned first, unsigned last)
{
    if (syscall(SYS_close_range, first, last, 0) == 0)
        return;
    long max = sysconf(_SC_OPEN_MAX);
    for (unsigned fd = first; fd <= last && fd < (unsigned long)max; fd++)
        close((int)fd);
}

/* The bare system call: a C library leaves out the signals that it keeps to itself, which end us like any other. */
void block_signals(void)
{
    const uint64_t all = ~0ULL;

    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all);
}

/* As PID 1 the kernel ends the rest with us. Elsewhere each supervisor does, when told or when its socket ends. */
void agent_exit(const char *reason)
{
    life_last_words(reason);
    if (getpid() == 1)
        _exit(0);
    int64_t until = now_ms() + EXIT_GRACE_MS;
    for (struct proc *p = agent.procs; p; p = p->next)
        if (p->reports.fd >= 0) {
            shutdown(p->reports.fd, SHUT_WR);
            if (p->supervisor)
                kill(p->supervisor, SIGCONT); /* in case a process has stopped it */
        }
    for (struct proc *p = agent.procs; p; p = p->next) {
        struct report r;
        struct pollfd poll_fd = {p->reports.fd, POLLIN, 0};
        if (p->reports.fd < 0)
            continue;
        while (now_ms() < until && poll(&poll_fd, 1, (int)(until - now_ms())) > 0)
            if (recv(p->reports.fd, &r, sizeof r, 0) <= 0)
                break;
    }
    _exit(0);
}

static int fd_argument(const char *text)
{
    char *end;
    long fd = strtol(text, &end, 10);

    if (*end || fd < 3 || fd > 1 << 20 || fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0) {
        dprintf(2, "agent: %s is not an open descriptor above 2\n", text);
        _exit(2);
    }
    return (int)fd;
}

static char *text_of(struct slice s, const char *otherwise)
{
    char *text = s.size ? strndup((const char *)s.data, s.size) : strdup(otherwise);

    if (!text)
        fail("boot");
    return text;
}

static void read_boot(int fd)
{
    struct buf b = {0};
    struct frame f;
    struct slice workdir = {0}, user = {0}, rest, value;
    int64_t deadline = 0, idle = 0;
    struct want wants[] = {{1, NULL, &agent.token}, {3, NULL, &workdir}, {4, NULL, &user}, {5, &deadline, NULL}, {6, &idle, NULL}};
    long size = 0;
    uint8_t tag;

    while (size == 0) {
        ssize_t n = read(fd, agent.scratch, SCRATCH);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            fail("the boot frame is cut off");
        buf_put(&b, agent.scratch, (size_t)n);
        size = b.failed ? -1 : frame_decode(buf_front(&b), buf_size(&b), &f);
    }
    close(fd);
    errno = EBADMSG;
    if (size < 0 || f.type != T_BOOT || !fields_decode(f.payload, wants, 5) || slice_has_nul(workdir) || user.size >= NAME_SIZE)
        fail("boot");
    agent.workdir = text_of(workdir, "/");
    agent.user = text_of(user, "root");
    agent.deadline = deadline > 0 ? agent.started + deadline : 0;
    if (idle > 0)
        idle_init(idle);
    rest = f.payload;
    while (field_next(&rest, &tag, &value) > 0)
        if (tag == 2 && env_valid(value, false))
            env_set(&agent.env, value);
    if (!env_get(&agent.env, "PATH"))
        env_set_pair(&agent.env, "PATH", DEFAULT_PATH);
    if (!env_get(&agent.env, "LANG"))
        env_set_pair(&agent.env, "LANG", "C.UTF-8");
    uint8_t *token = malloc(agent.token.size + 1);
    if (!token)
        fail("boot");
    memcpy(token, agent.token.data, agent.token.size);
    agent.token.data = token;
    buf_free(&b);
}

/* Numbers 0 to 2 must be taken, so that nothing of ours ever lands there; and a command may have no input. */
static void open_null(void)
{
    int ends[2];

    do {
        agent.null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (agent.null_fd < 0) { /* an empty root: a pipe at its end reads the same */
            if (pipe2(ends, O_CLOEXEC) < 0)
                fail("pipe");
            close(ends[1]);
            agent.null_fd = ends[0];
        }
    } while (agent.null_fd < 3);
}

static void lo_up(void)
{
    struct ifreq r = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return;
    if (ioctl(fd, SIOCGIFFLAGS, &r) == 0 && !(r.ifr_flags & IFF_UP)) {
        r.ifr_flags |= IFF_UP;
        ioctl(fd, SIOCSIFFLAGS, &r); /* fails where the network is not ours */
    }
    close(fd);
}

static void on_signal(struct watch *w, uint32_t events)
{
    struct signalfd_siginfo info;

    (void)events;
    if (read(w->fd, &info, sizeof info) != sizeof info)
        return;
    if (info.ssi_signo == SIGCHLD)
        procs_reap();
    /* A sender in another pid namespace has no number here; SI_USER, since the data of a queued signal is the sender's word. */
    else if (info.ssi_pid == 0 && info.ssi_code == SI_USER)
        life_terminate();
}

/* Everything at its default, so that a command needs to reset only what we change here. */
static void init_signals(void)
{
    sigset_t watched;
    uint64_t by_default[4] = {0}; /* the kernel's struct sigaction */

    /* The bare system call, as above: the process that started us may have ignored those signals too. */
    for (int sig = 1; sig <= 64; sig++)
        syscall(SYS_rt_sigaction, sig, by_default, NULL, sizeof(uint64_t));
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    if (getpid() == 1)
        sigaddset(&watched, SIGTERM); /* by default it ends any process but the first of a pid namespace */
    if (sigprocmask(SIG_SETMASK, &watched, NULL) < 0)
        fail("sigprocmask");
    watch_init(&agent.signals, signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK), on_signal);
    if (agent.signals.fd < 0 || watch_set(&agent.signals, EPOLLIN) < 0)
        fail("signalfd");
}

static void init_limits(void)
{
    if (getrlimit(RLIMIT_NOFILE, &agent.nofile) < 0)
        fail("getrlimit");
    struct rlimit raised = {agent.nofile.rlim_max, agent.nofile.rlim_max};
    if (raised.rlim_cur == RLIM_INFINITY || raised.rlim_cur > 1 << 16)
        raised.rlim_cur = 1 << 16;
    if (raised.rlim_cur > agent.nofile.rlim_cur) /* if refused, we serve fewer at once */
        agent.nofile_raised = setrlimit(RLIMIT_NOFILE, &raised) == 0;
}

static int timeout(void)
{
    int64_t next = procs_next_wake(), others[] = {life_next_wake(), files_next_wake()};

    for (int i = 0; i < 2; i++)
        if (others[i] >= 0 && (next < 0 || others[i] < next))
            next = others[i];
    if (next < 0)
        return -1;
    int64_t left = next - now_ms();
    return left < 0 ? 0 : left < 3600000 ? (int)left : 3600000;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        dprintf(1, "skerry-agent %s\n", AGENT_VERSION);
        return 0;
    }
    if (argc < 3 || argc > 5) {
        dprintf(2, "usage: agent LISTEN_FD BOOT_FD [OOM_FD [WORDS_FD]]\n");
        return 2;
    }
    prctl(PR_SET_DUMPABLE, 0);
    agent.started = now_ms();
    int listen_fd = fd_argument(argv[1]), boot_fd = fd_argument(argv[2]);
    bool counts = argc > 3 && strcmp(argv[3], "-");
    agent.words_fd = argc > 4 ? fd_argument(argv[4]) : -1;
    agent.oom_fd = counts ? fd_argument(argv[3]) : open("/sys/fs/cgroup/memory.events", O_RDONLY | O_CLOEXEC);
    if (agent.oom_fd < 0)
        agent.oom_fd = open("/sys/fs/cgroup/memory/memory.oom_control", O_RDONLY | O_CLOEXEC);
    open_null();
    if (getpid() == 1)
        lo_up();
    else if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        fail("prctl");
    init_limits();
    if (loop_init() < 0)
        fail("epoll_create1");
    init_signals();
    read_boot(boot_fd);
    if (set_nonblocking(listen_fd) < 0 || conns_listen(listen_fd) < 0)
        fail("listen");
    for (bool prepared = false;;) {
        loop_once(timeout());
        procs_run_timers();
        files_look();
        conns_flush();
        idle_tell();
        if (!prepared && agent.greeted) { /* only now: the client that waits for the sandbox has its answer */
            files_init();
            prepared = true;
        }
        const char *reason = life_over();
        if (reason)
            agent_exit(reason);
    }
}
