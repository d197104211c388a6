/* File requests pass through here to a worker and back; the loop itself never touches a file. */
#include "worker/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "link/conn.h"
#include "worker/worker.h"
#include "base/users.h"

#define OPENER_MAX 65536       /* paths are at most 4 KiB */
#define QUEUE_HIGH (2u << 20)  /* above: connections that feed it are not read */
#define GRANT_MAX (1u << 20)   /* bytes that workers may have under way to one connection */
#define GRANT_STEP (512u << 10)
#define GRANT_LEAST (16u << 10) /* to a stream that has none, in any case: more than an entry of a LIST */
#define WATCH_STEP (64u << 10) /* of a watch, which may keep it unused: not counted above */

void file_remove(struct file *file)
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

/* Passes on what the client has granted, in large steps, as far as the connection keeps up. */
static bool file_pull(struct stream *s)
{
    struct file *file = container_of(s, struct file, stream);
    uint64_t step = file->watches ? WATCH_STEP : GRANT_STEP, room = step - file->granted;
    uint64_t amount = file->credit < room ? file->credit : room;

    if (!amount || (amount < file->credit && amount < step / 4))
        return false;
    if (!file->watches && s->conn->granted + amount > GRANT_MAX) {
        if (file->granted)
            return false;
        amount = amount < GRANT_LEAST ? amount : GRANT_LEAST; /* others may hold their credit for long without using it */
    }
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
    do {
        struct slice piece = {bytes.data, bytes.size < CHUNK ? bytes.size : CHUNK};
        worker_data(file->worker, file->id, piece.size == bytes.size ? flags : 0, offset, piece);
        offset += piece.size;
        bytes.data += piece.size;
        bytes.size -= piece.size;
    } while (bytes.size);
    if (buf_size(&file->worker->queue) > QUEUE_HIGH)
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

/* Under the client's own stream id. */
void file_relay(struct worker *w, const struct frame *f)
{
    struct file *file = w->files;
    uint64_t offset;
    struct slice bytes;
    uint32_t amount;

    while (file && file->id != f->stream)
        file = file->next;
    if (!file)
        return; /* the client has closed it */
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

static bool refuse(struct conn *c, uint32_t stream, int err, const char *user)
{
    char message[USER_UNKNOWN_SIZE];

    user_unknown(user, message);
    if (err == EINVAL)
        conn_error(c, stream, "INVALID_ARGUMENT", 0, message);
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

/* A request that only looks may come again and again; a watch waits for the work of others. */
static bool only_looks(uint8_t type)
{
    return type == T_STATS || type == T_PORTS || type == T_STAT || type == T_WATCH;
}

static bool has_no_path(uint8_t type)
{
    return type == T_STATS || type == T_PORTS;
}

/* The worker decodes the request; this only looks for what ends a connection: malformed fields and integers. */
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
        return refuse(c, f->stream, errno, who);
    struct file *file = calloc(1, sizeof *file);
    if (!file)
        return refuse(c, f->stream, ENOMEM, who);
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
