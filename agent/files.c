/* File requests pass through here to a worker and back; the loop itself never touches a file. */
#include "files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "conn.h"
#include "fs.h"
#include "users.h"

#define OPENER_MAX 65536       /* paths are at most 4 KiB */
#define QUEUE_HIGH (1u << 20)  /* above: connections that feed it are not read */
#define QUEUE_LOW (256u << 10) /* below: they are again */
#define GRANT_MAX (1u << 20)   /* bytes that workers may have under way to one connection */
#define GRANT_STEP (512u << 10)
#define WATCH_STEP (64u << 10) /* of a watch, which may keep it unused: not counted above */
#define PACKETS 32 /* taken from a worker at one event */

/* A stream of a client and of a worker at once. */
struct file {
    struct stream stream;
    struct worker *worker;
    struct file *next;
    uint32_t id; /* the worker's */
    bool writes, watches, ended;
    bool works; /* the sandbox is not idle meanwhile */
    uint64_t credit;       /* the client's, not yet passed on */
    uint64_t granted;      /* passed on, not yet used */
    uint64_t input_credit; /* what the client may still send */
};

static void file_remove(struct file *file)
{
    struct file **at = &file->worker->files;

    while (*at != file)
        at = &(*at)->next;
    *at = file->next;
    file->stream.conn->granted -= file->watches ? 0 : file->granted;
    stream_end(&file->stream);
    if (file->works) {
        agent.file_jobs--;
        idle_touch();
    }
    free(file);
}

static void release_held(struct worker *w)
{
    for (struct conn *c = agent.conns; c; c = c->next)
        if (c->held_by == w) {
            c->held_by = NULL;
            conn_touch(c);
        }
}

static void worker_lost(struct worker *w)
{
    watch_close(&w->watch);
    buf_free(&w->queue);
    w->queue.failed = false;
    while (w->files) {
        struct file *file = w->files;
        conn_error(file->stream.conn, file->stream.id, "IO_ERROR", 0, "the file worker was killed");
        file_remove(file);
    }
    release_held(w);
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
            return worker_lost(w);
        buf_consume(&w->queue, (size_t)size);
    }
    if (buf_size(&w->queue) < QUEUE_LOW)
        release_held(w);
    watch_set(&w->watch, EPOLLIN | (buf_size(&w->queue) ? EPOLLOUT : 0));
}

static void worker_send(struct worker *w)
{
    if (w->queue.failed)
        worker_lost(w);
    else if (!(w->watch.events & EPOLLOUT))
        queue_flush(w);
}

/* Passes on what the client has granted, in large steps, as far as the connection keeps up. */
static bool file_pull(struct stream *s)
{
    struct file *file = container_of(s, struct file, stream);
    uint64_t step = file->watches ? WATCH_STEP : GRANT_STEP, room = step - file->granted;
    uint64_t amount = file->credit < room ? file->credit : room;

    if (!amount || (amount < file->credit && amount < step / 4))
        return false;
    if (!file->watches && s->conn->granted + amount > GRANT_MAX)
        return false;
    file->credit -= amount;
    file->granted += amount;
    s->conn->granted += file->watches ? 0 : amount;
    put_credit(&file->worker->queue, file->id, 0, (uint32_t)amount);
    worker_send(file->worker);
    return false;
}

/* In packets that a socket takes; the end goes with the last. */
static void forward_data(struct file *file, uint8_t flags, uint64_t offset, struct slice bytes)
{
    struct buf *queue = &file->worker->queue;

    do {
        size_t size = bytes.size < CHUNK ? bytes.size : CHUNK;
        put_data_head(queue, file->id, size == bytes.size ? flags : 0, offset, size);
        buf_put(queue, bytes.data, size);
        offset += size;
        bytes.data += size;
        bytes.size -= size;
    } while (bytes.size);
    if (buf_size(queue) > QUEUE_HIGH)
        file->stream.conn->held_by = file->worker;
    worker_send(file->worker);
}

static bool file_frame(struct stream *s, const struct frame *f)
{
    struct file *file = container_of(s, struct file, stream);
    uint64_t offset;
    struct slice bytes;
    uint32_t amount;

    if (f->type == T_CREDIT) {
        if (!credit_decode(f->payload, &amount) || (f->flags & F_CHANNEL))
            return false;
        file->credit += amount;
        conn_touch(s->conn);
        return true;
    }
    if (!data_decode(f->payload, &offset, &bytes) || (f->flags & F_CHANNEL) || !file->writes || file->ended)
        return false;
    if (bytes.size > file->input_credit)
        return false;
    file->input_credit -= bytes.size;
    file->ended = f->flags & F_END;
    forward_data(file, f->flags, offset, bytes);
    return true;
}

static void file_drop(struct stream *s)
{
    struct file *file = container_of(s, struct file, stream);
    struct worker *w = file->worker;

    frame_end(&w->queue, frame_begin(&w->queue, file->id, T_CLOSE, 0));
    file_remove(file);
    worker_send(w);
}

static const struct stream_ops file_ops = {file_frame, file_drop, file_pull};

/* A frame of the worker goes to the client under the client's stream id. */
static void relay(struct worker *w, const struct frame *f)
{
    struct file *file = w->files;
    uint64_t offset;
    struct slice bytes;
    uint32_t amount;

    while (file && file->id != f->stream)
        file = file->next;
    if (!file)
        return; /* closed by the client meanwhile */
    struct conn *c = file->stream.conn;
    if (f->type == T_DATA && data_decode(f->payload, &offset, &bytes)) {
        uint64_t used = bytes.size < file->granted ? bytes.size : file->granted;
        struct iovec piece = {(void *)(uintptr_t)bytes.data, bytes.size};
        file->granted -= used;
        c->granted -= file->watches ? 0 : used;
        return conn_data(c, file->stream.id, f->flags, offset, &piece, 1);
    }
    if (f->type == T_CREDIT && credit_decode(f->payload, &amount))
        file->input_credit += amount;
    size_t mark = frame_begin(&c->out, file->stream.id, f->type, f->flags);
    buf_put(&c->out, f->payload.data, f->payload.size);
    frame_end(&c->out, mark);
    conn_touch(c);
    if (f->type == T_ERROR || (f->type == T_REPLY && f->flags & F_FINAL))
        file_remove(file);
}

static void worker_ready(struct watch *watch, uint32_t events)
{
    struct worker *w = container_of(watch, struct worker, watch);
    struct frame f;

    for (int i = 0; i < PACKETS && events & ~(uint32_t)EPOLLOUT; i++) {
        ssize_t n = recv(watch->fd, agent.scratch, SCRATCH, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n <= 0 || frame_decode(agent.scratch, (size_t)n, &f) != n)
            return worker_lost(w);
        agent.untidy = true;
        relay(w, &f);
    }
    if (events & EPOLLOUT)
        queue_flush(w);
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

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return false;
    pid_t pid = fork();
    if (pid == 0)
        fs_worker(pair[1], user, agent.workdir);
    close(pair[1]);
    w->pid = pid > 0 ? pid : 0;
    watch_init(&w->watch, pair[0], worker_ready);
    if (pid < 0 || watch_set(&w->watch, EPOLLIN) < 0) {
        int err = errno;
        watch_close(&w->watch); /* ends the worker, if there is one */
        errno = err;
        return false;
    }
    return true;
}

/* The running worker of that user, started if need be; NULL with errno (EINVAL: no such user). */
static struct worker *worker_for(const char *name)
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
    snprintf(w->name, sizeof w->name, "%s", name);
    return worker_start(w, &user) ? w : NULL;
}

void files_init(void)
{
    struct worker *w = worker_for(agent.user);

    /* One that cannot be had now is tried again when it is needed. */
    if (!w || strcmp(w->name, "root"))
        worker_for("root");
}

static bool refuse(struct conn *c, uint32_t stream, int err)
{
    if (err == EINVAL)
        conn_error(c, stream, "INVALID_ARGUMENT", 0, "no such user");
    else
        conn_error(c, stream, "QUOTA_EXCEEDED", err, "no file worker can be started");
    return true;
}

/* The tags of a request that are integers, as a string. */
static const char *numbers(uint8_t type)
{
    switch (type) {
    case T_READ: return "\3\4\6";
    case T_WRITE: case T_MKDIR: return "\3\4";
    case T_LIST: case T_WATCH: return "\3\6";
    case T_STAT: case T_REMOVE: case T_CHMOD: case T_HASH: case T_UNPACK: return "\3";
    case T_RENAME: case T_COPY: return "\4";
    case T_PACK: return "\3\5\6";
    default: return "";
    }
}

/* What only looks may be asked over and over; a watch waits for the work of others. */
static bool only_looks(uint8_t type)
{
    return type == T_STATS || type == T_PORTS || type == T_STAT || type == T_WATCH;
}

static bool has_no_path(uint8_t type)
{
    return type == T_STATS || type == T_PORTS;
}

/* The worker decodes the request; here only what ends a connection is looked for: fields and integers out of shape. */
static bool well_formed(const struct frame *f, struct slice *user, int64_t *window)
{
    int64_t ignored;
    struct want wants[4] = {{2, NULL, user}};
    size_t count = 1;

    if (has_no_path(f->type))
        return fields_decode(f->payload, NULL, 0);
    for (const char *tag = numbers(f->type); *tag; tag++)
        wants[count++] = (struct want){(uint8_t)*tag, *tag == 6 ? window : &ignored, NULL};
    return fields_decode(f->payload, wants, count);
}

static bool too_many_watches(void)
{
    unsigned count = 0;

    for (size_t i = 0; i < MAX_WORKERS; i++)
        for (struct file *file = agent.workers[i].files; file; file = file->next)
            count += file->watches;
    return count >= MAX_WATCHES;
}

bool files_open(struct conn *c, const struct frame *f)
{
    struct slice user = {0};
    int64_t window = DEFAULT_WINDOW;
    bool flows = f->type == T_READ || f->type == T_LIST || f->type == T_PACK ||
                 f->type == T_WATCH;
    char name[NAME_SIZE];

    if (!well_formed(f, &user, &window))
        return false;
    if (f->payload.size > OPENER_MAX || user.size >= sizeof name || slice_has_nul(user) || window < 0) {
        conn_error(c, f->stream, "INVALID_ARGUMENT", 0, "a path or user too long, a NUL in it, or a negative window");
        return true;
    }
    if (f->type == T_WATCH && too_many_watches()) {
        conn_error(c, f->stream, "QUOTA_EXCEEDED", 0, "a sandbox has at most 32 watches");
        return true;
    }
    snprintf(name, sizeof name, "%.*s", (int)user.size, (const char *)user.data);
    const char *who = has_no_path(f->type) ? "root" : *name ? name : agent.user;
    struct worker *w = worker_for(who);
    if (!w)
        return refuse(c, f->stream, errno);
    struct file *file = calloc(1, sizeof *file);
    if (!file)
        return refuse(c, f->stream, ENOMEM);
    file->worker = w;
    file->id = ++w->last_id;
    file->writes = f->type == T_WRITE || f->type == T_UNPACK;
    file->watches = f->type == T_WATCH;
    file->works = !only_looks(f->type);
    agent.file_jobs += file->works;
    file->credit = flows ? (uint64_t)window : 0;
    file->input_credit = INPUT_WINDOW;
    file->next = w->files;
    w->files = file;
    stream_open(&file->stream, c, f->stream, &file_ops);
    size_t mark = frame_begin(&w->queue, file->id, f->type, f->flags);
    buf_put(&w->queue, f->payload.data, f->payload.size);
    frame_end(&w->queue, mark);
    worker_send(w);
    return true;
}
