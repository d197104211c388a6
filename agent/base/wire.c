/* Encoding and decoding of frames and fields: the only place that takes bytes apart. */
#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

#define FIELD_HEAD 5

bool buf_reserve(struct buf *b, size_t more)
{
    if (b->failed)
        return false;
    if (b->cap - b->tail >= more)
        return true;
    size_t used = buf_size(b);
    if (b->cap - used >= more) {
        memmove(b->data, b->data + b->head, used);
    } else {
        size_t cap = b->cap ? b->cap : 512;
        while (cap - used < more)
            cap *= 2;
        uint8_t *data = malloc(cap);
        if (!data) {
            b->failed = true;
            return false;
        }
        if (used)
            memcpy(data, b->data + b->head, used);
        free(b->data);
        b->data = data;
        b->cap = cap;
    }
    b->head = 0;
    b->tail = used;
    return true;
}

void buf_put(struct buf *b, const void *data, size_t size)
{
    if (!size || !buf_reserve(b, size))
        return;
    memcpy(b->data + b->tail, data, size);
    b->tail += size;
}

void buf_consume(struct buf *b, size_t size)
{
    b->head += size;
    if (b->head == b->tail)
        b->head = b->tail = 0; /* the memory stays: a lull gives it back, not every frame */
}

void buf_free(struct buf *b)
{
    free(b->data);
    b->data = NULL;
    b->head = b->tail = b->cap = 0;
}

static uint32_t u32_decode(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t u64_decode(const uint8_t *at)
{
    return (uint64_t)u32_decode(at) | (uint64_t)u32_decode(at + 4) << 32;
}

void u32_encode(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

void u64_encode(uint8_t *at, uint64_t value)
{
    u32_encode(at, (uint32_t)value);
    u32_encode(at + 4, (uint32_t)(value >> 32));
}

long frame_decode(const uint8_t *data, size_t size, struct frame *frame)
{
    if (size < HEADER_SIZE)
        return 0;
    uint32_t length = u32_decode(data);
    if (length > (data[8] == T_START ? MAX_START : MAX_PAYLOAD))
        return -1;
    if (size - HEADER_SIZE < length)
        return 0;
    frame->stream = u32_decode(data + 4);
    frame->type = data[8];
    frame->flags = data[9];
    frame->payload = (struct slice){data + HEADER_SIZE, length};
    return HEADER_SIZE + (long)length;
}

int field_next(struct slice *rest, uint8_t *tag, struct slice *value)
{
    if (!rest->size)
        return 0;
    if (rest->size < FIELD_HEAD)
        return -1;
    uint32_t length = u32_decode(rest->data + 1);
    if (length > rest->size - FIELD_HEAD)
        return -1;
    *tag = rest->data[0];
    *value = (struct slice){rest->data + FIELD_HEAD, length};
    rest->data += FIELD_HEAD + length;
    rest->size -= FIELD_HEAD + length;
    return 1;
}

bool fields_decode(struct slice payload, const struct want *wants, size_t count)
{
    uint8_t tag;
    struct slice value;
    int more;

    while ((more = field_next(&payload, &tag, &value)) > 0) {
        for (size_t i = 0; i < count; i++) {
            if (wants[i].tag != tag)
                continue;
            if (wants[i].number && value.size != 8)
                return false;
            if (wants[i].number)
                *wants[i].number = (int64_t)u64_decode(value.data);
            else
                *wants[i].bytes = value;
        }
    }
    return more == 0;
}

bool data_decode(struct slice payload, uint64_t *offset, struct slice *bytes)
{
    if (payload.size < OFFSET_SIZE)
        return false;
    *offset = u64_decode(payload.data);
    *bytes = (struct slice){payload.data + OFFSET_SIZE, payload.size - OFFSET_SIZE};
    return true;
}

bool credit_decode(struct slice payload, uint32_t *amount)
{
    if (payload.size != 4)
        return false;
    *amount = u32_decode(payload.data);
    return true;
}

bool slice_has_nul(struct slice s)
{
    return s.size && memchr(s.data, 0, s.size);
}

void header_encode(uint8_t *at, uint32_t length, uint32_t stream, uint8_t type, uint8_t flags)
{
    u32_encode(at, length);
    u32_encode(at + 4, stream);
    at[8] = type;
    at[9] = flags;
    at[10] = at[11] = 0;
}

size_t frame_begin(struct buf *b, uint32_t stream, uint8_t type, uint8_t flags)
{
    uint8_t header[HEADER_SIZE];
    size_t mark = buf_size(b);

    header_encode(header, 0, stream, type, flags);
    buf_put(b, header, sizeof header);
    return mark;
}

void frame_end(struct buf *b, size_t mark)
{
    if (!b->failed)
        u32_encode(buf_front(b) + mark, (uint32_t)(buf_size(b) - mark - HEADER_SIZE));
}

void put_bytes(struct buf *b, uint8_t tag, const void *data, size_t size)
{
    uint8_t head[FIELD_HEAD] = {tag};

    u32_encode(head + 1, (uint32_t)size);
    buf_put(b, head, sizeof head);
    buf_put(b, data, size);
}

void put_int(struct buf *b, uint8_t tag, int64_t value)
{
    uint8_t bytes[8];

    u64_encode(bytes, (uint64_t)value);
    put_bytes(b, tag, bytes, sizeof bytes);
}

void put_text(struct buf *b, uint8_t tag, const char *text)
{
    put_bytes(b, tag, text, strlen(text));
}

void put_credit(struct buf *b, uint32_t stream, uint8_t channel, uint32_t amount)
{
    uint8_t frame[HEADER_SIZE + 4];

    header_encode(frame, 4, stream, T_CREDIT, channel);
    u32_encode(frame + HEADER_SIZE, amount);
    buf_put(b, frame, sizeof frame);
}

void put_data_head(struct buf *b, uint32_t stream, uint8_t flags, uint64_t offset, size_t size)
{
    uint8_t head[HEADER_SIZE + OFFSET_SIZE];

    header_encode(head, (uint32_t)(OFFSET_SIZE + size), stream, T_DATA, flags);
    u64_encode(head + HEADER_SIZE, offset);
    buf_put(b, head, sizeof head);
}

void put_error(struct buf *b, uint32_t stream, const char *code, int err, const char *message)
{
    size_t mark = frame_begin(b, stream, T_ERROR, 0);

    put_text(b, 1, code);
    put_int(b, 2, err);
    put_text(b, 3, message);
    frame_end(b, mark);
}
