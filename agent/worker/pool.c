/* File workers: starts them, feeds them, looks after them, and replaces one that dies or hangs. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "link/conn.h"
#include "worker/client.h"
#include "worker/worker.h"

#define QUEUE_LOW (256u << 10) /* below: connections that feed it are read again */
#define PACKETS 32             /* taken from a worker at one event */
#define LOOK_MS 1000
#ifndef HANG_LOOKS
#define HANG_LOOKS 25 /* seconds for one system call; less than a client waits for the answer to its PING */
#endif

static void release_held(struct worker *w)
{
    for (struct conn *c = agent.conns; c; c = c->next)
        if (c->held_by == w) {
            c->held_by = NULL;
            conn_touch(c);
        }
}

/* Everything that the worker has not taken: first what is in its socket, then what is queued here. */
static struct buf take_back(struct worker *w)
{
    struct buf untaken = {0};
    ssize_t n;

    while ((n = recv(w->inbox, agent.scratch, SCRATCH, MSG_DONTWAIT)) > 0 || (n < 0 && errno == EINTR))
        buf_put(&untaken, agent.scratch, n > 0 ? (size_t)n : 0);
    buf_put(&untaken, buf_front(&w->queue), buf_size(&w->queue));
    return untaken;
}

static struct file **file_find(struct file **list, uint32_t id)
{
    while (*list && (*list)->id != id)
        list = &(*list)->next;
    return list;
}

static void push(struct file **list, struct file *file)
{
    file->next = *list;
    *list = file;
}

/* The streams whose request is in `untaken`: nothing has been done for them yet. */
static struct file *not_begun(struct worker *w, const struct buf *untaken)
{
    struct file *found = NULL;
    struct frame f;
    long size;

    for (size_t at = 0; (size = frame_decode(buf_front(untaken) + at, buf_size(untaken) - at, &f)) > 0; at += (size_t)size) {
        struct file **place = f.type >= T_START ? file_find(&w->files, f.stream) : NULL, *file = place ? *place : NULL;
        if (!file)
            continue;
        *place = file->next;
        push(&found, file);
    }
    return found;
}

static void fail_all(struct file **files, const char *code, const char *why)
{
    while (*files) {
        struct file *file = *files;
        conn_error(file->stream.conn, file->stream.id, code, 0, why);
        if (file->worker->files != file) { /* file_remove takes it from there */
            *files = file->next;
            push(&file->worker->files, file);
        }
        file_remove(file);
    }
}

/* Their frames, in order, under the ids that the streams get there. */
static void hand_over(struct file *files, const struct buf *untaken, struct worker *to)
{
    struct frame f;
    long size;

    for (size_t at = 0; (size = frame_decode(buf_front(untaken) + at, buf_size(untaken) - at, &f)) > 0; at += (size_t)size) {
        struct file *file = *file_find(&files, f.stream);
        if (!file)
            continue;
        uint32_t id = to->last_id + f.stream; /* ascending as they were, and above all it has had */
        size_t mark = frame_begin(&to->queue, id, f.type, f.flags);
        buf_put(&to->queue, f.payload.data, f.payload.size);
        frame_end(&to->queue, mark);
    }
    uint32_t base = to->last_id;
    while (files) {
        struct file *file = files;
        files = file->next;
        file->worker = to;
        file->id += base;
        to->last_id = file->id > to->last_id ? file->id : to->last_id;
        push(&to->files, file);
    }
}

/* Fails the streams that the worker has begun to serve; another worker does what it has not begun. */
static void worker_lost(struct worker *w, const char *why)
{
    struct buf untaken = take_back(w);
    /* If a worker dies before it has taken anything, so would the next ones. */
    struct file *waiting = untaken.failed || !w->pulse->beats ? NULL : not_begun(w, &untaken);

    watch_close(&w->watch);
    close(w->inbox);
    munmap(w->pulse, sizeof *w->pulse);
    buf_free(&w->queue);
    w->queue.failed = false;
    fail_all(&w->files, "IO_ERROR", why);
    release_held(w);
    struct worker *next = waiting ? worker_for(w->name) : NULL;
    if (next) {
        hand_over(waiting, &untaken, next);
        buf_free(&untaken);
        return worker_send(next);
    }
    fail_all(&waiting, "QUOTA_EXCEEDED", "no file worker can be started");
    buf_free(&untaken);
}

/* The queue is frames back to back; each goes as one packet. */
static void queue_flush(struct worker *w)
{
    while (buf_size(&w->queue)) {
        struct frame f;
        long size = frame_decode(buf_front(&w->queue), buf_size(&w->queue), &f);
        ssize_t n = send(w->watch.fd, buf_front(&w->queue), (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == ENOBUFS))
            break;
        if (n < 0)
            return worker_lost(w, "the file worker was killed");
        buf_consume(&w->queue, (size_t)size);
    }
    if (buf_size(&w->queue) < QUEUE_LOW)
        release_held(w);
    watch_set(&w->watch, EPOLLIN | (buf_size(&w->queue) ? EPOLLOUT : 0));
}

void worker_data(struct worker *w, uint32_t id, uint8_t flags, uint64_t offset, struct slice bytes)
{
    uint8_t head[HEADER_SIZE + OFFSET_SIZE];
    struct iovec iov[2] = {{head, sizeof head}, {(void *)(uintptr_t)bytes.data, bytes.size}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

    header_encode(head, (uint32_t)(OFFSET_SIZE + bytes.size), id, T_DATA, flags);
    u64_encode(head + HEADER_SIZE, offset);
    if (!buf_size(&w->queue) && sendmsg(w->watch.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return;
    buf_put(&w->queue, head, sizeof head);
    buf_put(&w->queue, bytes.data, bytes.size);
}

void worker_send(struct worker *w)
{
    if (!agent.look)
        agent.look = now_ms() + LOOK_MS;
    if (w->queue.failed)
        worker_lost(w, "no memory");
    else if (!(w->watch.events & EPOLLOUT))
        queue_flush(w);
}

/* Takes at most `most` packets; false: the worker is lost. */
static bool take_packets(struct worker *w, int most)
{
    struct frame f;

    for (int i = 0; i < most; i++) {
        ssize_t n = recv(w->watch.fd, agent.scratch, SCRATCH, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n <= 0 || frame_decode(agent.scratch, (size_t)n, &f) != n) {
            kill(w->pid, SIGKILL);
            worker_lost(w, "the file worker was killed");
            return false;
        }
        agent.untidy = true;
        file_relay(w, &f);
    }
    return true;
}

static void worker_ready(struct watch *watch, uint32_t events)
{
    struct worker *w = container_of(watch, struct worker, watch);

    if (events & ~(uint32_t)EPOLLOUT && !take_packets(w, PACKETS))
        return;
    if (events & EPOLLOUT)
        queue_flush(w);
}

void worker_reaped(struct worker *w)
{
    w->pid = 0;
    if (w->watch.events && take_packets(w, INT_MAX)) /* what it has sent counts */
        worker_lost(w, "the file worker was killed");
}

void files_trim(void)
{
    for (size_t i = 0; i < MAX_WORKERS; i++)
        if (!buf_size(&agent.workers[i].queue))
            buf_free(&agent.workers[i].queue);
}

/* Whether it runs now; if not, errno says why. */
static bool worker_start(struct worker *w, const struct user *user)
{
    int pair[2];
    struct pulse *pulse = mmap(NULL, sizeof *pulse, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (pulse == MAP_FAILED)
        return false;
    pid_t pid = -1;
    bool paired = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0;
    if (paired && (pid = fork()) == 0) {
        agent.pulse = pulse;
        fs_worker(pair[1], user, agent.workdir);
    }
    int err = errno;
    w->pid = pid > 0 ? pid : 0;
    w->still = 0;
    if (paired) {
        widen(pair[0]);
        widen(pair[1]);
        watch_init(&w->watch, pair[0], worker_ready);
    }
    if (pid > 0 && watch_set(&w->watch, EPOLLIN) == 0) {
        w->inbox = pair[1];
        w->pulse = pulse;
        return true;
    }
    err = pid > 0 ? errno : err;
    if (paired) {
        watch_close(&w->watch); /* ends the worker, if there is one */
        close(pair[1]);
    }
    munmap(pulse, sizeof *pulse);
    errno = err;
    return false;
}

struct worker *worker_for(const char *name)
{
    struct worker *w = NULL;
    struct user user;

    for (int i = MAX_WORKERS - 1; i >= 0; i--) {
        struct worker *slot = &agent.workers[i];
        if (!strcmp(slot->name, name) && slot->watch.events)
            return slot;
        /* A dead one's slot can be used again once it has been reaped. */
        if (!slot->watch.events && !slot->pid)
            w = slot;
    }
    if (!user_find(name, &user)) {
        errno = EINVAL;
        return NULL;
    }
    if (!w) {
        errno = EAGAIN;
        return NULL;
    }
    if (name != w->name)
        snprintf(w->name, sizeof w->name, "%s", name);
    return worker_start(w, &user) ? w : NULL;
}

void files_init(void)
{
    struct worker *w = worker_for(agent.user);

    /* A worker that cannot be started now is tried again when it is needed. */
    if (!w || strcmp(w->name, "root"))
        worker_for("root");
}

int64_t files_next_wake(void) { return agent.look ? agent.look : -1; }

static bool serves(const struct worker *w)
{
    const struct file *file = w->files;

    while (file && file->watches)
        file = file->next;
    return file;
}

/* Count looks, not time: a worker that was frozen together with us has not hung. */
static void look_at(struct worker *w)
{
    uint8_t byte;
    uint64_t beats = w->pulse->beats;
    bool busy = w->pulse->errand || recv(w->inbox, &byte, 1, MSG_DONTWAIT | MSG_PEEK) > 0;

    w->still = busy && beats == w->beats ? w->still + 1 : 0;
    w->beats = beats;
    if (busy || serves(w))
        agent.look = now_ms() + LOOK_MS;
    if (w->still < HANG_LOOKS)
        return;
    kill(w->pid, SIGKILL);
    worker_lost(w, "the file system did not answer in time");
}

void files_look(void)
{
    if (!agent.look || now_ms() < agent.look)
        return;
    agent.look = 0;
    for (int i = 0; i < MAX_WORKERS; i++)
        if (agent.workers[i].watch.events)
            look_at(&agent.workers[i]);
}
