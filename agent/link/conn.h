/* Connections of clients, and the streams open on them. */
#ifndef CONN_H
#define CONN_H

#include <sys/uio.h>

#include "base/loop.h"
#include "base/wire.h"

#define CHUNK (128 * 1024) /* of content in one DATA frame, at most */

struct conn;
struct stream;
struct worker;

struct stream_ops {
    bool (*frame)(struct stream *, const struct frame *); /* DATA or CREDIT; false: the client broke the protocol */
    void (*drop)(struct stream *);                        /* closed by the client or with its connection: free it */
    bool (*pull)(struct stream *);                        /* queue more output if there is some; may end the stream */
};

/* Embedded in what serves the stream; the streams of a connection are a circle. */
struct stream {
    struct stream *next, *prev;
    struct conn *conn;
    uint32_t id;
    const struct stream_ops *ops;
};

struct conn {
    struct watch watch;
    struct conn *next, *next_dirty;
    bool dirty, dead, greeted, leases, stalled;
    uint32_t last_stream;
    struct stream *streams;
    unsigned stream_count;
    struct worker *held_by; /* its queue is full: nothing is read until it has drained */
    size_t granted;         /* bytes that file workers may still send us for this connection */
    struct buf in, out;
};

int conns_listen(int fd);
/* Writes what the last event has queued and frees connections that have ended. */
void conns_flush(void);
/* Gives back buffers that hold nothing. */
void conns_trim(void);
/* Marks it for the next conns_flush. */
void conn_touch(struct conn *c);
/* Says why on stream 0 and ends the connection. */
void conn_break(struct conn *c, const char *code, const char *why);
void conn_error(struct conn *c, uint32_t stream, const char *code, int err, const char *message);
/* Queues a DATA frame, written straight from the pieces if nothing is queued before it. */
void conn_data(struct conn *c, uint32_t stream, uint8_t channel, uint64_t offset, const struct iovec *piece, int pieces);

void stream_open(struct stream *s, struct conn *c, uint32_t id, const struct stream_ops *ops);
void stream_end(struct stream *s);

/* Serves a frame that opens a stream; false: malformed. */
bool request_open(struct conn *c, const struct frame *frame);

#endif
