/* The worker's loop: takes requests and moves its jobs on, one chunk of one job at a time. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "base/errors.h"
#include "worker/worker.h"

#define SOCK 3
#define LARGE_WINDOW (1u << 20)
#define LULL_MS 20 /* when jobs only wait for this long */
#define MAX_WAITING (MAX_WATCHES + 224) /* jobs whose descriptors are waited for at once */

/*
 * File access goes by the fs ids and capabilities alone. The other ids stay 0, so that the sandbox's user can neither
 * signal nor trace the worker.
 */
static bool take_rights(const struct user *user)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};

    if (geteuid() != 0)
        return geteuid() == user->uid;
    if (setgroups((size_t)user->group_count, user->groups) < 0)
        return false;
    /* These report no failure; asking for an impossible id returns the present one. */
    setfsgid(user->gid);
    setfsuid(user->uid);
    if ((gid_t)setfsgid((gid_t)-1) != user->gid || (uid_t)setfsuid((uid_t)-1) != user->uid)
        return false;
    return user->uid == 0 || syscall(SYS_capset, &header, none) == 0;
}

/*
 * A client that may only read files should not read the variables of processes, nor use what they have open; the kernel
 * would allow it to the same user. A process inside a Landlock domain cannot reach processes outside it through /proc. This
 * domain forbids nothing else that a worker does. False only if the kernel has Landlock and it fails.
 */
static bool leave_processes(void)
{
    const struct landlock_ruleset_attr handled = {.handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_REFER};
    int rules = (int)syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0);

    if (rules < 0)
        return errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL || errno == EPERM;
    /* To move and link from one directory to another is forbidden in every domain that does not allow it. */
    struct landlock_path_beneath_attr everywhere = {LANDLOCK_ACCESS_FS_REFER, open("/", O_PATH | O_CLOEXEC)};
    bool done = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &everywhere, 0) == 0
                && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(SYS_landlock_restrict_self, rules, 0) == 0;
    close(everywhere.parent_fd);
    close(rules);
    return done;
}

void fs_send(struct fs *fs)
{
    const struct timespec pause = {0, 10 * 1000000};

    while (!fs->out.failed && send(fs->sock, buf_front(&fs->out), buf_size(&fs->out), MSG_NOSIGNAL) < 0) {
        if (errno == ENOBUFS || errno == ENOMEM)
            nanosleep(&pause, NULL);
        else if (errno != EINTR)
            break;
    }
    if (fs->out.failed) /* never skip one answer: the worker ends instead, and the agent reports that */
        _exit(1);
    buf_consume(&fs->out, buf_size(&fs->out));
}

void fs_beat(void)
{
    if (agent.pulse)
        agent.pulse->beats++;
}

static void errand(uint32_t id)
{
    agent.pulse->errand = id;
    fs_beat();
}

bool fs_fail(struct fs *fs, uint32_t id, int err, const char *path)
{
    char message[512];

    snprintf(message, sizeof message, "%.300s: %s", path, error_text(err));
    put_error(&fs->out, id, error_code(err), err, message);
    fs_send(fs);
    return false;
}

void fs_count(struct fs *fs, uint32_t id, int64_t count)
{
    size_t mark = frame_begin(&fs->out, id, T_REPLY, F_FINAL);

    put_int(&fs->out, 1, count);
    frame_end(&fs->out, mark);
    fs_send(fs);
}

void fs_reply_info(struct fs *fs, uint32_t id, uint8_t flags, const char *path, const struct stat *st, const char *target)
{
    size_t mark = frame_begin(&fs->out, id, T_REPLY, flags);

    put_info(fs, &fs->out, path, st, target);
    frame_end(&fs->out, mark);
    fs_send(fs);
}

uint64_t fs_window(const struct fs *fs)
{
    for (const struct job *job = fs->jobs; job; job = job->next)
        if (job->ops->data)
            return 0;
    return LARGE_WINDOW - INPUT_WINDOW;
}

void fs_add_job(struct fs *fs, struct job *job, uint32_t id, const struct job_ops *ops)
{
    struct job **at = &fs->jobs;

    while (*at) /* behind the one that may be at work and end just now */
        at = &(*at)->next;
    job->id = id;
    job->ops = ops;
    *at = job;
}

/* The end of the pipe is the end of the deputy; a byte before it says that it has answered. */
static bool deputy_step(struct fs *fs, struct job *job)
{
    char byte;
    ssize_t n = read(job->fd, &byte, 1);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        job->stalled = true;
        return true;
    }
    if (n != 1)
        fs_fail(fs, job->id, EIO, "killed");
    return false;
}

static void deputy_free(struct job *job)
{
    close(job->fd);
    free(job);
}

static const struct job_ops deputy_ops = {deputy_step, NULL, deputy_free};

pid_t fs_deputy(struct fs *fs, uint32_t id)
{
    struct job *job = calloc(1, sizeof *job);
    int ends[2];

    if (!job || pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
        free(job);
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        agent.pulse = NULL;
        fs->done = ends[1];
        return 0;
    }
    int err = errno;
    close(ends[1]);
    job->fd = ends[0];
    if (pid > 0 && id) {
        job->listens = job->stalled = true;
        fs_add_job(fs, job, id, &deputy_ops);
    } else {
        deputy_free(job);
    }
    errno = err;
    return pid;
}

void fs_deputy_done(struct fs *fs)
{
    (void)!write(fs->done, "", 1);
    _exit(0);
}

static struct job **job_find(struct fs *fs, uint32_t id)
{
    struct job **at = &fs->jobs;

    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

static void job_end(struct job **at)
{
    struct job *job = *at;

    *at = job->next;
    job->ops->free(job);
}

static void on_request(struct fs *fs, const struct frame *f)
{
    struct request r = {.id = f->stream, .type = f->type, .payload = f->payload};
    struct slice path = {0};
    struct want wants[] = {{1, NULL, &path}};

    if (f->type == T_STATS)
        return fs_stats(fs, &r);
    if (f->type == T_PORTS)
        return fs_ports(fs, &r);
    if (!fields_decode(f->payload, wants, 1))
        return (void)fs_fail(fs, r.id, EINVAL, "fields");
    int err = fs_path(fs, path, r.path);
    if (err)
        return (void)fs_fail(fs, r.id, err, "path");
    switch (f->type) {
    case T_READ: return fs_read(fs, &r);
    case T_WRITE: return fs_write(fs, &r);
    case T_LIST: return fs_list(fs, &r);
    case T_REMOVE: return fs_remove(fs, &r);
    case T_PACK: return fs_pack(fs, &r);
    case T_UNPACK: return fs_unpack(fs, &r);
    case T_COPY: return fs_copy(fs, &r);
    case T_HASH: return fs_hash(fs, &r);
    case T_WATCH: return fs_watch(fs, &r);
    default: return fs_simple(fs, &r);
    }
}

static void on_frame(struct fs *fs, const struct frame *f)
{
    struct job **at = job_find(fs, f->stream);
    struct slice bytes;
    uint64_t offset;
    uint32_t amount;

    if (f->type >= T_START)
        return on_request(fs, f);
    if (!*at)
        return; /* it has ended with an answer that is on its way */
    if (f->type == T_CLOSE)
        return job_end(at);
    if (f->type == T_CREDIT && credit_decode(f->payload, &amount)) {
        (*at)->credit += amount;
        (*at)->stalled = false;
    }
    if (f->type == T_DATA && (*at)->ops->data && data_decode(f->payload, &offset, &bytes))
        if (!(*at)->ops->data(fs, *at, bytes, f->flags & F_END))
            job_end(at);
}

static struct job **next_runnable(struct fs *fs)
{
    struct job **at = &fs->jobs;

    while (*at && (!(*at)->ops->step || (*at)->stalled))
        at = &(*at)->next;
    return *at ? at : NULL;
}

/* Does one step of a job, and puts it at the end of the line. */
static void step(struct fs *fs, struct job **at)
{
    struct job *job = *at;

    if (!job->ops->step(fs, job))
        return job_end(at);
    *at = job->next;
    while (*at)
        at = &(*at)->next;
    *at = job;
    job->next = NULL;
}

/* Waits for a frame, or for what jobs wait for, which can then continue. */
static void wait_ready(struct fs *fs, int timeout)
{
    struct pollfd fds[1 + MAX_WAITING] = {{fs->sock, POLLIN, 0}};
    nfds_t count = 1;
    int64_t now = now_ms();

    for (struct job *job = fs->jobs; job; job = job->next) {
        if (job->fd && job->listens && count <= MAX_WAITING)
            fds[count++] = (struct pollfd){job->fd, POLLIN, 0};
        if (job->wake && (timeout < 0 || job->wake - now < timeout))
            timeout = job->wake > now ? (int)(job->wake - now) : 0;
    }
    if (poll(fds, count, timeout) < 0)
        return;
    now = now_ms();
    for (struct job *job = fs->jobs; job; job = job->next) {
        for (nfds_t i = 1; i < count; i++)
            if (fds[i].fd == job->fd && fds[i].revents)
                job->stalled = false;
        if (job->wake && job->wake <= now)
            job->stalled = false;
    }
}

static bool any_waits(const struct fs *fs)
{
    for (const struct job *job = fs->jobs; job; job = job->next)
        if (job->fd)
            return true;
    return false;
}

/* An idle worker should weigh nothing. */
static void rest(struct fs *fs)
{
    madvise(fs->io, FS_IO, MADV_DONTNEED);
}

static void serve(struct fs *fs)
{
    bool used = false;

    for (;;) {
        struct job **ready = next_runnable(fs);
        bool waits = any_waits(fs);
        if (!ready && waits) {
            wait_ready(fs, used ? LULL_MS : -1);
            ready = next_runnable(fs);
        }
        if (used && !fs->jobs) {
            rest(fs);
            used = false;
        }
        ssize_t n = recv(fs->sock, fs->io, FS_IO, ready || waits ? MSG_DONTWAIT : 0);
        struct frame f;
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return;
        if (n == 0)
            return;
        if (n < 0 && !ready && used) {
            rest(fs);
            used = false;
        }
        if (n > 0 && frame_decode(fs->io, (size_t)n, &f) == n) {
            errand(f.stream);
            on_frame(fs, &f);
        }
        used = used || ready || n > 8192;
        ready = next_runnable(fs);
        if (ready) {
            errand((*ready)->id);
            step(fs, ready);
        }
        errand(0);
    }
}

void fs_worker(int sock, const struct user *user, const char *workdir)
{
    struct fs fs = {.sock = SOCK, .workdir = workdir};

    block_signals(); /* ignore what is sent to everybody; a file above the limit is an error, do not die of it */
    if (sock != SOCK && dup3(sock, SOCK, O_CLOEXEC) < 0)
        _exit(1);
    close_between(SOCK + 1, ~0U);
    signal(SIGCHLD, SIG_IGN); /* nobody waits for a removal */
    umask(0);                 /* every mode is given in full */
    fs.io = mmap(NULL, FS_IO, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fs.io == MAP_FAILED || !take_rights(user) || !leave_processes())
        _exit(1);
    serve(&fs);
    while (fs.jobs)
        job_end(&fs.jobs);
    _exit(0);
}
