/* Tree records: the parser takes any split and holds at most one record. */
#include "tree/records.h"

#include <string.h>

#define CONTENT_HEAD (RECORD_HEAD + OFFSET_SIZE)

static uint32_t length_at(const uint8_t *at)
{
    return (uint32_t)at[1] | (uint32_t)at[2] << 8 | (uint32_t)at[3] << 16 | (uint32_t)at[4] << 24;
}

static bool length_fits(uint8_t kind, uint32_t length)
{
    switch (kind) {
    case R_CONTENT: return length >= OFFSET_SIZE && length <= RECORD_MAX + OFFSET_SIZE;
    case R_FILE_END: return length == OFFSET_SIZE;
    case R_ENTRY: case R_SKIPPED: case R_TREE_END: return length <= RECORD_MAX;
    default: return false;
    }
}

static struct slice take(struct slice *bytes, size_t size)
{
    struct slice taken = {bytes->data, size < bytes->size ? size : bytes->size};

    bytes->data += taken.size;
    bytes->size -= taken.size;
    return taken;
}

/* At least `size` bytes of the record in one piece, from where they came or from what was held; NULL: not yet. */
static const uint8_t *gather(struct records *r, struct slice *bytes, size_t size)
{
    size_t have = buf_size(&r->held);

    if (!have && bytes->size >= size)
        return bytes->data;
    if (have < size) {
        struct slice more = take(bytes, size - have);
        buf_put(&r->held, more.data, more.size);
    }
    return !r->held.failed && buf_size(&r->held) >= size ? buf_front(&r->held) : NULL;
}

static void drop(struct records *r, struct slice *bytes, size_t size)
{
    if (buf_size(&r->held))
        buf_consume(&r->held, size);
    else
        take(bytes, size);
}

static int content_piece(struct records *r, struct slice *bytes, struct record *record)
{
    *record = (struct record){R_CONTENT, r->offset, take(bytes, (size_t)r->left)};
    r->offset += record->payload.size;
    r->left -= record->payload.size;
    return 1;
}

int record_next(struct records *r, struct slice *bytes, struct record *record)
{
    struct slice ignored;

    if (!bytes->size)
        return 0;
    if (r->left)
        return content_piece(r, bytes, record);
    const uint8_t *head = gather(r, bytes, RECORD_HEAD);
    if (!head)
        return r->held.failed ? -1 : 0;
    uint8_t kind = head[0];
    uint32_t length = length_at(head);
    if (!length_fits(kind, length))
        return -1;
    size_t want = kind == R_CONTENT ? CONTENT_HEAD : RECORD_HEAD + length;
    head = gather(r, bytes, want);
    if (!head)
        return r->held.failed ? -1 : 0;
    *record = (struct record){kind, 0, {head + RECORD_HEAD, want - RECORD_HEAD}};
    if (kind == R_CONTENT || kind == R_FILE_END)
        data_decode(record->payload, &record->offset, &ignored);
    drop(r, bytes, want);
    if (kind != R_CONTENT)
        return 1;
    r->offset = record->offset;
    r->left = length - OFFSET_SIZE;
    return content_piece(r, bytes, record);
}

bool records_complete(const struct records *r)
{
    return !buf_size(&r->held) && !r->left;
}

bool tree_path_valid(struct slice path)
{
    if (path.size >= TREE_PATH_MAX || slice_has_nul(path))
        return false;
    if (!path.size)
        return true;
    for (size_t at = 0; at <= path.size;) {
        const uint8_t *part = path.data + at;
        const uint8_t *slash = memchr(part, '/', path.size - at);
        size_t size = slash ? (size_t)(slash - part) : path.size - at;
        if (!size || size > 255 || (size == 1 && part[0] == '.') || (size == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        at += size + 1;
    }
    return true;
}

bool entry_decode(struct slice payload, struct entry *e)
{
    struct slice path = {0}, type = {0};
    struct want wants[] = {{1, NULL, &path}, {2, NULL, &type}, {3, &e->mode, NULL}, {4, &e->mtime_ns, NULL},
                           {5, &e->size, NULL}, {6, NULL, &e->target}, {7, NULL, &e->same_as}};

    e->mode = e->mtime_ns = e->size = 0;
    e->target = e->same_as = (struct slice){0};
    e->fields = payload;
    if (!fields_decode(payload, wants, 7) || !path.data || !tree_path_valid(path) || e->mode < 0 || e->mode > 07777 || e->size < 0)
        return false;
    memcpy(e->path, path.data, path.size);
    e->path[path.size] = 0;
    e->hard_link = e->same_as.data;
    e->type = 0;
    for (size_t i = 0; i < 3; i++) {
        const char *name = (const char *[]){"file", "dir", "link"}[i];
        if (type.size == strlen(name) && !memcmp(type.data, name, type.size))
            e->type = *name;
    }
    if (e->type == 'l' && (!e->target.size || e->target.size >= 4096 || slice_has_nul(e->target)))
        return false;
    if (e->hard_link && (e->type == 'd' || !e->same_as.size || !tree_path_valid(e->same_as)))
        return false;
    return e->type;
}

bool entry_xattr(struct slice *rest, const char **name, struct slice *value)
{
    uint8_t tag;
    struct slice field;

    while (field_next(rest, &tag, &field) > 0) {
        const uint8_t *nul = field.size ? memchr(field.data, 0, field.size) : NULL;
        if (tag != 8 || !nul || strncmp((const char *)field.data, "user.", 5) != 0)
            continue;
        *name = (const char *)field.data;
        *value = (struct slice){nul + 1, field.size - (size_t)(nul + 1 - field.data)};
        return true;
    }
    return false;
}

size_t record_begin(struct buf *b, uint8_t kind)
{
    size_t mark = buf_size(b);
    uint8_t head[RECORD_HEAD] = {kind};

    buf_put(b, head, sizeof head);
    return mark;
}

void record_end(struct buf *b, size_t mark)
{
    if (!b->failed)
        u32_encode(buf_front(b) + mark + 1, (uint32_t)(buf_size(b) - mark - RECORD_HEAD));
}
