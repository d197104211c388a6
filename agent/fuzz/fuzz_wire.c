/* libFuzzer target: cuts the input into frames, takes every payload apart, and encodes what it found again. */
#include <stdlib.h>
#include <string.h>

#include "base/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was decoded as fields must encode to the same bytes. */
static void fields(struct slice payload)
{
    struct buf copy = {0};
    struct slice rest = payload, value, bytes[4] = {{0}};
    int64_t numbers[4] = {0};
    uint8_t tag;
    int more;

    while ((more = field_next(&rest, &tag, &value)) > 0) {
        volatile bool nul = slice_has_nul(value);
        (void)nul;
        put_bytes(&copy, tag, value.data, value.size);
    }
    if (more == 0 && (buf_size(&copy) != payload.size || (payload.size && memcmp(buf_front(&copy), payload.data, payload.size))))
        abort();
    struct want wants[] = {{1, &numbers[0], NULL}, {2, NULL, &bytes[0]}, {3, &numbers[1], NULL}, {4, NULL, &bytes[1]}, {6, &numbers[2], NULL}};
    if (fields_decode(payload, wants, 5) && more != 0)
        abort();
    for (int i = 0; i < 2; i++)
        if (bytes[i].size && (bytes[i].data < payload.data || bytes[i].data + bytes[i].size > payload.data + payload.size))
            abort();
    buf_free(&copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf in = {0}, out = {0};
    struct frame f;
    long used;

    buf_put(&in, data, size);
    while ((used = frame_decode(buf_front(&in), buf_size(&in), &f)) > 0) {
        uint64_t offset;
        uint32_t amount;
        struct slice bytes;
        fields(f.payload);
        if (data_decode(f.payload, &offset, &bytes)) {
            put_data_head(&out, f.stream, f.flags, offset, bytes.size);
            buf_put(&out, bytes.data, bytes.size);
        }
        if (credit_decode(f.payload, &amount))
            put_credit(&out, f.stream, f.flags, amount);
        size_t mark = frame_begin(&out, f.stream, f.type, f.flags);
        buf_put(&out, f.payload.data, f.payload.size);
        frame_end(&out, mark);
        struct frame again;
        if (frame_decode(buf_front(&out) + mark, buf_size(&out) - mark, &again) != used || again.type != f.type)
            abort();
        buf_consume(&in, (size_t)used);
        buf_consume(&out, buf_size(&out) / 2);
    }
    buf_free(&in);
    buf_free(&out);
    return 0;
}
