/* The wire protocol: frames, fields and the buffers they are built in. See docs/design/wire.md. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEADER_SIZE 12
#define OFFSET_SIZE 8
#define MAX_PAYLOAD (1u << 20)
#define MAX_START ((2u << 20) + (1u << 16)) /* what a START may have: the kernel takes 2 MiB of arguments and environment */
#define INPUT_WINDOW 262144
#define DEFAULT_WINDOW 262144
#define GENERATION 2

enum frame_type {
    T_HELLO = 0x01, T_PING, T_PONG, T_CREDIT, T_DATA, T_CLOSE, T_REPLY, T_ERROR,
    T_WORDS = 0x0e, T_BOOT,
    T_START = 0x10, T_ATTACH, T_SIGNAL, T_PROCESSES, T_ENV, T_LIFE, T_STATS,
    T_READ = 0x20, T_WRITE, T_LIST, T_STAT, T_MKDIR, T_REMOVE, T_RENAME, T_CHMOD, T_CHOWN, T_SYMLINK,
    T_COPY, T_HASH,
    T_RESIZE = 0x30,
    T_WATCH = 0x40,
    T_PORTS = 0x50, T_DIAL,
    T_PACK = 0x60, T_UNPACK,
};

enum { F_END = 0x80, F_FINAL = 0x80, F_CHANNEL = 0x0f };

struct slice {
    const uint8_t *data;
    size_t size;
};

struct frame {
    uint32_t stream;
    uint8_t type, flags;
    struct slice payload;
};

/* A queue of bytes. After a failed allocation it stays `failed` and takes nothing more. */
struct buf {
    uint8_t *data;
    size_t head, tail, cap;
    bool failed;
};

static inline size_t buf_size(const struct buf *b) { return b->tail - b->head; }
/* NULL, not NULL + 0, of an empty one: that sum is undefined. */
static inline uint8_t *buf_front(const struct buf *b) { return b->head ? b->data + b->head : b->data; }
bool buf_reserve(struct buf *b, size_t more);
void buf_put(struct buf *b, const void *data, size_t size);
void buf_consume(struct buf *b, size_t size);
void buf_free(struct buf *b);

/* The size of the whole frame at `data`, 0 if it is not complete yet, -1 if it is longer than allowed. */
long frame_decode(const uint8_t *data, size_t size, struct frame *frame);

/* Takes the next field off `rest`: 1, or 0 at the end, or -1 if it does not fit. */
int field_next(struct slice *rest, uint8_t *tag, struct slice *value);

/* Where fields_decode puts the last value of a tag; exactly one of the two is set. */
struct want {
    uint8_t tag;
    int64_t *number;
    struct slice *bytes;
};
bool fields_decode(struct slice payload, const struct want *wants, size_t count);

bool data_decode(struct slice payload, uint64_t *offset, struct slice *bytes);
bool credit_decode(struct slice payload, uint32_t *amount);
bool slice_has_nul(struct slice s);

void header_encode(uint8_t *at, uint32_t length, uint32_t stream, uint8_t type, uint8_t flags);
void u32_encode(uint8_t *at, uint32_t value);
void u64_encode(uint8_t *at, uint64_t value);

/* Frames of fields are built in place: begin, put…, end. The mark stays valid while the buffer grows. */
size_t frame_begin(struct buf *b, uint32_t stream, uint8_t type, uint8_t flags);
void frame_end(struct buf *b, size_t mark);
void put_int(struct buf *b, uint8_t tag, int64_t value);
void put_bytes(struct buf *b, uint8_t tag, const void *data, size_t size);
void put_text(struct buf *b, uint8_t tag, const char *text);
void put_credit(struct buf *b, uint32_t stream, uint8_t channel, uint32_t amount);
void put_data_head(struct buf *b, uint32_t stream, uint8_t flags, uint64_t offset, size_t size);
void put_error(struct buf *b, uint32_t stream, const char *code, int err, const char *message);

#endif
