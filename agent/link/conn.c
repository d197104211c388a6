/* Connections: accept, cut frames, queue answers. A client can break only its own connection. */
#include "link/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"

#define MAX_CONNS 256
#define MAX_STREAMS 1024
#define OUT_HIGH (4u << 20) /* above: the client is not read */
#define OUT_LOW 65536       /* below: output is pulled */
#define READ_SIZE 131072
#define PING_MAX 64
#define DIRECT 16384 /* smaller pieces of output are copied, so that several frames share a write */

void conn_touch(struct conn *c)
{
    if (c->dirty)
        return;
    c->dirty = true;
    c->next_dirty = agent.dirty;
    agent.dirty = c;
}

void conn_error(struct conn *c, uint32_t stream, const char *code, int err, const char *message)
{
    put_error(&c->out, stream, code, err, message);
    conn_touch(c);
}

void conn_break(struct conn *c, const char *code, const char *why)
{
    if (!c->dead)
        conn_error(c, 0, code, 0, why);
    c->dead = true;
}

void conn_data(struct conn *c, uint32_t stream, uint8_t channel, uint64_t offset, const struct iovec *piece, int pieces)
{
    uint8_t head[HEADER_SIZE + OFFSET_SIZE];
    struct iovec iov[3] = {{head, sizeof head}};
    size_t size = 0, sent = 0;

    for (int i = 0; i < pieces; i++) {
        iov[i + 1] = piece[i];
        size += piece[i].iov_len;
    }
    header_encode(head, (uint32_t)(OFFSET_SIZE + size), stream, T_DATA, channel);
    u64_encode(head + HEADER_SIZE, offset);
    agent.untidy = agent.untidy || size > 4096;
    if (size >= DIRECT && !buf_size(&c->out)) {
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)pieces + 1};
        ssize_t n = sendmsg(c->watch.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            c->dead = true;
        sent = n > 0 ? (size_t)n : 0;
    }
    for (int i = 0; i <= pieces; i++) {
        size_t skip = sent < iov[i].iov_len ? sent : iov[i].iov_len;
        buf_put(&c->out, (uint8_t *)iov[i].iov_base + skip, iov[i].iov_len - skip);
        sent -= skip;
    }
    conn_touch(c);
}

void stream_open(struct stream *s, struct conn *c, uint32_t id, const struct stream_ops *ops)
{
    s->conn = c;
    s->id = id;
    s->ops = ops;
    if (c->streams) {
        s->next = c->streams;
        s->prev = c->streams->prev;
        s->prev->next = s->next->prev = s;
    } else {
        s->next = s->prev = c->streams = s;
    }
    c->stream_count++;
    conn_touch(c);
}

void stream_end(struct stream *s)
{
    struct conn *c = s->conn;

    if (c->streams == s)
        c->streams = s->next == s ? NULL : s->next;
    s->next->prev = s->prev;
    s->prev->next = s->next;
    c->stream_count--;
}

static struct stream *stream_find(struct conn *c, uint32_t id)
{
    struct stream *s = c->streams;

    for (unsigned i = 0; i < c->stream_count; i++, s = s->next)
        if (s->id == id)
            return s;
    return NULL;
}

/* Every byte is looked at, so that the time says nothing about where they differ. */
static bool token_matches(struct slice given)
{
    unsigned difference = given.size != agent.token.size;

    for (size_t i = 0; i < given.size && agent.token.size; i++)
        difference |= given.data[i] ^ agent.token.data[i % agent.token.size];
    return !difference;
}

static void greet(struct conn *c, const struct frame *f)
{
    int64_t generation = 0;
    struct slice token = {0};
    struct want wants[] = {{1, &generation, NULL}, {2, NULL, &token}};

    if (f->type != T_HELLO || f->stream != 0)
        return conn_break(c, "UNAUTHENTICATED", "the first frame is HELLO on stream 0");
    if (!fields_decode(f->payload, wants, 2) || generation < 1)
        return conn_break(c, "INVALID_ARGUMENT", "malformed HELLO");
    if (!token_matches(token))
        return conn_break(c, "UNAUTHENTICATED", "wrong token");
    c->greeted = agent.greeted = true;
    size_t mark = frame_begin(&c->out, 0, T_HELLO, 0);
    put_int(&c->out, 1, GENERATION);
    put_text(&c->out, 3, AGENT_VERSION);
    put_int(&c->out, 4, now_ms() - agent.started);
    frame_end(&c->out, mark);
    conn_touch(c);
}

static bool opener(struct conn *c, const struct frame *f)
{
    if (f->stream == 0 || f->stream <= c->last_stream)
        return false;
    c->last_stream = f->stream;
    if (c->stream_count >= MAX_STREAMS) {
        conn_error(c, f->stream, "QUOTA_EXCEEDED", 0, "too many open streams");
        return true;
    }
    return request_open(c, f);
}

static bool on_stream(struct conn *c, const struct frame *f)
{
    if (f->stream == 0 || f->stream > c->last_stream)
        return false;
    struct stream *s = stream_find(c, f->stream);
    if (!s)
        return true; /* it has ended here; this was in flight */
    if (f->type != T_CLOSE)
        return s->ops->frame(s, f);
    s->ops->drop(s);
    return true;
}

static void dispatch(struct conn *c, const struct frame *f)
{
    bool good = false;

    if (!c->greeted)
        return greet(c, f);
    switch (f->type) {
    case T_PING:
        good = f->stream == 0 && f->payload.size <= PING_MAX;
        if (good) {
            size_t mark = frame_begin(&c->out, 0, T_PONG, 0);
            buf_put(&c->out, f->payload.data, f->payload.size);
            frame_end(&c->out, mark);
            conn_touch(c);
        }
        break;
    case T_PONG:
        good = f->stream == 0;
        break;
    case T_CREDIT: case T_DATA: case T_CLOSE:
        good = on_stream(c, f);
        break;
    default:
        good = f->type >= T_START && opener(c, f);
    }
    if (!good)
        conn_break(c, "INVALID_ARGUMENT", "the client broke the protocol");
}

static bool blocked(const struct conn *c)
{
    return buf_size(&c->out) > OUT_HIGH || c->held_by;
}

static void parse(struct conn *c)
{
    c->stalled = false;
    while (!c->dead && !c->in.failed) {
        struct frame f;
        if (blocked(c)) {
            c->stalled = true;
            break;
        }
        long size = frame_decode(buf_front(&c->in), buf_size(&c->in), &f);
        if (size == 0)
            break;
        if (size < 0)
            return conn_break(c, "INVALID_ARGUMENT", "a frame longer than 1 MiB, or a START longer than 2 MiB");
        dispatch(c, &f);
        buf_consume(&c->in, (size_t)size);
    }
}

static void readable(struct watch *w, uint32_t events)
{
    struct conn *c = container_of(w, struct conn, watch);

    conn_touch(c);
    if (blocked(c)) {
        if (events & (EPOLLHUP | EPOLLERR))
            c->dead = true;
        return;
    }
    if (!(events & ~(uint32_t)EPOLLOUT))
        return;
    if (!buf_reserve(&c->in, READ_SIZE)) {
        c->dead = true;
        return;
    }
    agent.untidy = true;
    ssize_t n = recv(w->fd, c->in.data + c->in.tail, READ_SIZE, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        c->dead = true;
        return;
    }
    c->in.tail += (size_t)n;
    parse(c);
}

/* Asks the streams in turn for output until enough is queued or none has any. */
static void pull(struct conn *c)
{
    unsigned idle = 0;

    while (!c->dead && buf_size(&c->out) < OUT_LOW && idle < c->stream_count) {
        struct stream *s = c->streams;
        c->streams = s->next;
        idle = s->ops->pull(s) ? 0 : idle + 1;
    }
}

static void write_out(struct conn *c)
{
    for (;;) {
        pull(c);
        if (!buf_size(&c->out))
            return;
        ssize_t n = send(c->watch.fd, buf_front(&c->out), buf_size(&c->out), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            c->dead = true;
        if (n <= 0)
            return;
        buf_consume(&c->out, (size_t)n);
    }
}

static void destroy(struct conn *c)
{
    struct conn **at = &agent.conns;

    while (c->streams)
        c->streams->ops->drop(c->streams);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    for (at = &agent.dirty; *at && *at != c; at = &(*at)->next_dirty)
        ;
    if (*at)
        *at = c->next_dirty;
    agent.conn_count--;
    watch_set(&agent.listener, EPOLLIN); /* it may have stopped for want of a descriptor */
    watch_close(&c->watch);
    buf_free(&c->in);
    buf_free(&c->out);
    if (c->leases && !agent.ending)
        agent.ending = "lease";
    free(c);
}

void conns_flush(void)
{
    struct conn *c;

    while ((c = agent.dirty)) {
        agent.dirty = c->next_dirty;
        c->dirty = false;
        write_out(c);
        if (c->stalled && !c->dead && !blocked(c)) {
            parse(c);
            conn_touch(c);
        }
        /* Never 0: the hang-up of a client that is held back must still be seen. */
        uint32_t events = (uint32_t)EPOLLERR | (blocked(c) ? 0 : EPOLLIN) | (buf_size(&c->out) ? EPOLLOUT : 0);
        if (c->dead || c->out.failed || c->in.failed || watch_set(&c->watch, events) < 0)
            destroy(c);
    }
}

void conns_trim(void)
{
    for (struct conn *c = agent.conns; c; c = c->next) {
        if (!buf_size(&c->out))
            buf_free(&c->out);
        if (!buf_size(&c->in))
            buf_free(&c->in);
    }
}

static void accept_one(struct watch *w, uint32_t events)
{
    (void)events;
    int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        /* Out of descriptors: wait for a connection to go instead of spinning. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            watch_set(w, agent.conn_count ? 0 : w->events);
        return;
    }
    struct conn *c = agent.conn_count < MAX_CONNS ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        close(fd);
        return;
    }
    widen(fd);
    watch_init(&c->watch, fd, readable);
    c->next = agent.conns;
    agent.conns = c;
    agent.conn_count++;
    if (watch_set(&c->watch, EPOLLIN) < 0)
        c->dead = true;
    conn_touch(c);
}

int conns_listen(int fd)
{
    watch_init(&agent.listener, fd, accept_one);
    return watch_set(&agent.listener, EPOLLIN);
}
