/* libFuzzer target: the tree record parser gives the same for every way of splitting its input, and stays in bounds. */
#include <stdlib.h>
#include <string.h>

#include "tree/records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was found, with the pieces of one CONTENT joined; false if the input is malformed. */
static bool parse(struct slice input, size_t step, struct buf *found)
{
    struct records records = {0};
    struct record r;
    struct entry e;
    bool fine = true;

    while (fine && input.size) {
        struct slice piece = {input.data, step < input.size ? step : input.size};
        int more;
        input.data += piece.size;
        input.size -= piece.size;
        while ((more = record_next(&records, &piece, &r)) > 0) {
            if (r.kind != R_CONTENT)
                buf_put(found, &r.kind, 1);
            buf_put(found, r.payload.data, r.payload.size);
            if (r.kind == R_ENTRY && entry_decode(r.payload, &e)) {
                struct slice rest = e.fields, value;
                const char *name;
                if (!strncmp(e.path, "..", 3) || strstr(e.path, "/../") || *e.path == '/')
                    abort();
                while (entry_xattr(&rest, &name, &value))
                    buf_put(found, value.data, value.size);
            }
        }
        fine = more == 0;
    }
    buf_free(&records.held);
    return fine;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    struct buf whole = {0}, split = {0};
    struct slice input = {data + 1, size - 1};
    bool fine = parse(input, input.size, &whole);

    if (parse(input, data[0] % 32 + 1, &split) != fine)
        abort();
    if (fine && (buf_size(&whole) != buf_size(&split) || (buf_size(&whole) && memcmp(buf_front(&whole), buf_front(&split), buf_size(&whole)))))
        abort();
    buf_free(&whole);
    buf_free(&split);
    return 0;
}
