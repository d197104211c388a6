/* DIAL: a stream of a client joined to a TCP connection. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "net/dial.h"
#include "base/errors.h"

#define MAX_DIALS 1024
#define REPAY_AT 32768 /* input credit goes back in steps of at least this */

struct dial {
    struct stream stream;
    struct watch socket;
    uint16_t port;
    char address[INET6_ADDRSTRLEN];
    bool fallback;  /* nobody listens at this address: try ::1 next */
    bool connected, readable;
    bool ended;     /* the socket has no more */
    bool input_ended, shut; /* the client has no more; the socket knows */
    int error;      /* writing failed; what has come is still read first */
    struct buf buffer; /* what the socket did not take yet */
    uint64_t credit, input_credit, input_owed, sent, received;
};

static void dial_free(struct dial *d)
{
    watch_close(&d->socket);
    buf_free(&d->buffer);
    stream_end(&d->stream);
    agent.dials--;
    if (d->connected)
        idle_touch();
    free(d);
}

static void dial_fail(struct dial *d, int err)
{
    char message[128];
    const char *code = err == ECONNREFUSED ? "PORT_CLOSED" : error_code(err);

    snprintf(message, sizeof message, "port %u at %s: %s", d->port, d->address, error_text(err));
    conn_error(d->stream.conn, d->stream.id, code, err, message);
    dial_free(d);
}

/* False: it has failed and was freed. */
static bool dial_listen(struct dial *d)
{
    uint32_t writes = !d->connected || buf_size(&d->buffer) ? EPOLLOUT : 0;
    uint32_t reads = d->connected && !d->ended && !d->readable ? EPOLLIN : 0;

    if (watch_set(&d->socket, writes | reads) == 0)
        return true;
    dial_fail(d, ENOMEM);
    return false;
}

static void repay(struct dial *d, size_t bytes)
{
    d->input_owed += bytes;
    if (d->input_owed < REPAY_AT || d->input_ended)
        return;
    put_credit(&d->stream.conn->out, d->stream.id, 0, (uint32_t)d->input_owed);
    d->input_credit += d->input_owed;
    d->input_owed = 0;
    conn_touch(d->stream.conn);
}

/* As much as the socket takes; after a failure everything, to nowhere. */
static size_t send_some(struct dial *d, const uint8_t *data, size_t size)
{
    size_t done = 0;

    while (done < size && d->connected && !d->error) {
        ssize_t n = send(d->socket.fd, data + done, size - done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            d->error = errno;
            d->readable = true;
        } else {
            done += (size_t)n;
            d->sent += (uint64_t)n;
        }
    }
    if (d->error)
        done = size;
    repay(d, done);
    return done;
}

/* Sends what waits, and the end behind it. */
static void flush(struct dial *d)
{
    buf_consume(&d->buffer, send_some(d, buf_front(&d->buffer), buf_size(&d->buffer)));
    if (buf_size(&d->buffer))
        return;
    buf_free(&d->buffer);
    if (d->connected && d->input_ended && !d->shut && !d->error) {
        d->shut = true;
        if (shutdown(d->socket.fd, SHUT_WR) < 0) {
            d->error = errno;
            d->readable = true;
        }
    }
    conn_touch(d->stream.conn);
}

static void dial_start(struct dial *d);

/* A connection to an unused port in the range for clients may connect to itself. */
static bool met_itself(int fd)
{
    struct sockaddr_in6 here = {0}, there = {0};
    socklen_t size = sizeof here, other = sizeof there;

    return getsockname(fd, (struct sockaddr *)&here, &size) == 0 && getpeername(fd, (struct sockaddr *)&there, &other) == 0
           && size == other && !memcmp(&here, &there, size);
}

static void dial_done(struct dial *d, int err)
{
    struct conn *c = d->stream.conn;
    int on = 1;

    if (!err && met_itself(d->socket.fd))
        err = ECONNREFUSED;
    if (err == ECONNREFUSED && d->fallback) {
        d->fallback = false;
        watch_close(&d->socket);
        strcpy(d->address, "::1");
        return dial_start(d);
    }
    if (err)
        return dial_fail(d, err);
    setsockopt(d->socket.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* the client has already gathered the data */
    d->connected = true;
    size_t mark = frame_begin(&c->out, d->stream.id, T_REPLY, 0);
    put_text(&c->out, 1, d->address);
    frame_end(&c->out, mark);
    conn_touch(c);
    flush(d);
    dial_listen(d);
}

static void dial_ready(struct watch *w, uint32_t events)
{
    struct dial *d = container_of(w, struct dial, socket);
    int err = 0;
    socklen_t size = sizeof err;

    if (!d->connected) {
        if (getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &err, &size) < 0)
            err = errno;
        return dial_done(d, err);
    }
    if (events & ~(uint32_t)EPOLLOUT)
        d->readable = true;
    if (events & EPOLLOUT)
        flush(d);
    conn_touch(d->stream.conn);
    dial_listen(d);
}

static socklen_t parse_address(const char *text, uint16_t port, struct sockaddr_in6 *to)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)to;

    memset(to, 0, sizeof *to);
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        return sizeof *v4;
    }
    if (inet_pton(AF_INET6, text, &to->sin6_addr) != 1)
        return 0;
    to->sin6_family = AF_INET6;
    to->sin6_port = htons(port);
    return sizeof *to;
}

static void dial_start(struct dial *d)
{
    struct sockaddr_in6 to;
    socklen_t size = parse_address(d->address, d->port, &to);
    int fd = socket(to.sin6_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    watch_init(&d->socket, fd, dial_ready);
    /* A sandbox without IPv6 has nobody at ::1. */
    if (fd < 0)
        return dial_fail(d, errno == EAFNOSUPPORT ? ECONNREFUSED : errno);
    if (connect(fd, (struct sockaddr *)&to, size) == 0)
        return dial_done(d, 0);
    if (errno == EADDRNOTAVAIL && !strcmp(d->address, "::1"))
        errno = ECONNREFUSED;
    if (errno != EINPROGRESS)
        return dial_done(d, errno);
    dial_listen(d);
}

static bool on_frame(struct stream *s, const struct frame *f)
{
    struct dial *d = container_of(s, struct dial, stream);
    uint64_t offset;
    struct slice bytes;
    uint32_t amount;

    if (f->flags & F_CHANNEL)
        return false;
    if (f->type == T_CREDIT) {
        if (!credit_decode(f->payload, &amount))
            return false;
        d->credit += amount;
        conn_touch(s->conn);
        return true;
    }
    if (!data_decode(f->payload, &offset, &bytes) || d->input_ended || bytes.size > d->input_credit)
        return false;
    d->input_credit -= bytes.size;
    d->input_ended = f->flags & F_END;
    size_t taken = buf_size(&d->buffer) ? 0 : send_some(d, bytes.data, bytes.size);
    buf_put(&d->buffer, bytes.data + taken, bytes.size - taken);
    if (d->buffer.failed) {
        dial_fail(d, ENOMEM);
        return true;
    }
    flush(d);
    dial_listen(d);
    return true;
}

/* The other side sees a reset: a client that gave up has not said that this was all. */
static void on_drop(struct stream *s)
{
    struct dial *d = container_of(s, struct dial, stream);
    struct linger at_once = {1, 0};

    if (d->connected)
        setsockopt(d->socket.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    dial_free(d);
}

static bool finish(struct dial *d)
{
    struct buf *b = &d->stream.conn->out;
    size_t mark = frame_begin(b, d->stream.id, T_REPLY, F_FINAL);

    put_int(b, 1, (int64_t)d->sent);
    put_int(b, 2, (int64_t)d->received);
    frame_end(b, mark);
    dial_free(d);
    return true;
}

/* Without credit, only check for the end of the stream, which needs none. */
static bool receive(struct dial *d)
{
    size_t size = d->credit < CHUNK ? (size_t)d->credit : CHUNK;
    ssize_t n = recv(d->socket.fd, agent.scratch, size ? size : 1, MSG_DONTWAIT | (size ? 0 : MSG_PEEK));
    struct iovec piece = {agent.scratch, n > 0 ? (size_t)n : 0};

    if (n > 0 && !size)
        return false;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        d->readable = false;
        if (dial_listen(d))
            return false;
        return true;
    }
    if (n < 0 || (n == 0 && d->error)) {
        dial_fail(d, d->error ? d->error : errno);
        return true;
    }
    if (n == 0) {
        d->ended = true;
        put_data_head(&d->stream.conn->out, d->stream.id, F_END, d->received, 0);
        return true;
    }
    agent.untidy = true;
    d->credit -= (uint64_t)n;
    conn_data(d->stream.conn, d->stream.id, 0, d->received, &piece, 1);
    d->received += (uint64_t)n;
    return true;
}

static bool on_pull(struct stream *s)
{
    struct dial *d = container_of(s, struct dial, stream);

    if (d->ended && d->error) {
        dial_fail(d, d->error);
        return true;
    }
    if (d->ended && d->shut)
        return finish(d);
    return d->connected && !d->ended && d->readable && receive(d);
}

static const struct stream_ops dial_ops = {on_frame, on_drop, on_pull};

bool port_dial(struct conn *c, const struct frame *f)
{
    int64_t port = 0, window = DEFAULT_WINDOW;
    struct slice address = {0};
    struct want wants[] = {{1, &port, NULL}, {2, NULL, &address}, {6, &window, NULL}};
    struct sockaddr_in6 to;
    char text[INET6_ADDRSTRLEN] = "127.0.0.1";

    if (!fields_decode(f->payload, wants, 3))
        return false;
    if (address.size && address.size < sizeof text && !slice_has_nul(address))
        snprintf(text, sizeof text, "%.*s", (int)address.size, (const char *)address.data);
    if (port < 1 || port > 65535 || window < 0 || address.size >= sizeof text || slice_has_nul(address)
        || !parse_address(text, (uint16_t)port, &to)) {
        conn_error(c, f->stream, "INVALID_ARGUMENT", 0, "a port is 1 to 65535, an address one of IPv4 or IPv6, a window not negative");
        return true;
    }
    struct dial *d = agent.dials < MAX_DIALS ? calloc(1, sizeof *d) : NULL;
    if (!d) {
        conn_error(c, f->stream, "QUOTA_EXCEEDED", 0, "a sandbox has at most 1024 connections to its ports");
        return true;
    }
    d->port = (uint16_t)port;
    d->fallback = !address.size;
    strcpy(d->address, text);
    d->credit = (uint64_t)window;
    d->input_credit = INPUT_WINDOW;
    agent.dials++;
    stream_open(&d->stream, c, f->stream, &dial_ops);
    dial_start(d);
    return true;
}
