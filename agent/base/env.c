/* Environments. Every string is owned by its list. Lookups walk a short list; a long one has an index. */
#include "base/env.h"

#include <stdlib.h>
#include <string.h>

#define PAIR_COST 5   /* what a field costs on the wire beside its bytes */
#define INDEX_FROM 64 /* variables from which on an index is worth it */

bool env_valid(struct slice pair, bool name_only)
{
    if (!pair.size || slice_has_nul(pair))
        return false;
    const uint8_t *equals = memchr(pair.data, '=', pair.size);
    return name_only ? !equals : equals && equals != pair.data;
}

static size_t name_size(struct slice pair)
{
    const uint8_t *equals = memchr(pair.data, '=', pair.size);

    return equals ? (size_t)(equals - pair.data) : pair.size;
}

static bool is_named(const char *pair, const void *name, size_t size)
{
    return !strncmp(pair, name, size) && pair[size] == '=';
}

/* The slot that has this name, or the free one where it belongs. */
static size_t slot_of(const struct env *e, const void *name, size_t size)
{
    const uint8_t *bytes = name;
    uint32_t hash = 2166136261u;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    size_t at = hash & (e->slot_count - 1);
    while (e->slots[at] && !is_named(e->list[e->slots[at] - 1], name, size))
        at = (at + 1) & (e->slot_count - 1);
    return at;
}

static void drop_index(struct env *e)
{
    free(e->slots);
    e->slots = NULL;
    e->slot_count = 0;
}

/* At most half full; without memory for it, lookups walk the list. */
static void build_index(struct env *e)
{
    drop_index(e);
    size_t count = 4 * INDEX_FROM;
    while (count < 4 * e->count)
        count *= 2;
    e->slots = calloc(count, sizeof *e->slots);
    if (!e->slots)
        return;
    e->slot_count = count;
    for (size_t i = 0; i < e->count; i++) {
        struct slice pair = {(uint8_t *)e->list[i], strlen(e->list[i])};
        e->slots[slot_of(e, pair.data, name_size(pair))] = (uint32_t)i + 1;
    }
}

static char **find(struct env *e, const void *name, size_t size)
{
    if (e->count >= INDEX_FROM && 2 * e->count > e->slot_count)
        build_index(e);
    if (e->slots) {
        uint32_t place = e->slots[slot_of(e, name, size)];
        return place ? &e->list[place - 1] : NULL;
    }
    for (size_t i = 0; i < e->count; i++)
        if (is_named(e->list[i], name, size))
            return &e->list[i];
    return NULL;
}

static char *copy(struct slice s)
{
    char *text = malloc(s.size + 1);

    if (text) {
        memcpy(text, s.data, s.size);
        text[s.size] = 0;
    }
    return text;
}

static bool append(struct env *e, char *text)
{
    if (!text)
        return false;
    if (e->count % 16 == 0) {
        char **list = realloc(e->list, (e->count + 17) * sizeof *list);
        if (!list) {
            free(text);
            return false;
        }
        e->list = list;
    }
    struct slice pair = {(uint8_t *)text, strlen(text)};
    e->list[e->count++] = text;
    e->list[e->count] = NULL;
    if (e->slots && 2 * e->count <= e->slot_count)
        e->slots[slot_of(e, text, name_size(pair))] = (uint32_t)e->count;
    e->bytes += strlen(text) + PAIR_COST;
    return true;
}

bool env_set(struct env *e, struct slice pair)
{
    char **old = find(e, pair.data, name_size(pair));
    size_t freed = old ? strlen(*old) + PAIR_COST : 0;

    if (e->bytes - freed + pair.size + PAIR_COST > (e->limit ? e->limit : ENV_LIMIT))
        return false;
    char *text = copy(pair);
    if (!old || !text)
        return append(e, text);
    free(*old);
    *old = text;
    e->bytes += pair.size + PAIR_COST - freed;
    return true;
}

bool env_set_pair(struct env *e, const char *name, const char *value)
{
    size_t n = strlen(name), v = strlen(value);
    char *pair = malloc(n + v + 2);

    if (!pair)
        return false;
    memcpy(pair, name, n);
    pair[n] = '=';
    memcpy(pair + n + 1, value, v + 1);
    bool done = env_set(e, (struct slice){(uint8_t *)pair, n + v + 1});
    free(pair);
    return done;
}

void env_unset(struct env *e, struct slice name)
{
    char **at = find(e, name.data, name.size);

    if (!at)
        return;
    drop_index(e); /* those behind it move */
    e->bytes -= strlen(*at) + PAIR_COST;
    free(*at);
    memmove(at, at + 1, (size_t)(e->list + e->count - at) * sizeof *at);
    e->count--;
}

const char *env_get(struct env *e, const char *name)
{
    char **at = find(e, name, strlen(name));

    return at ? *at + strlen(name) + 1 : NULL;
}

bool env_copy(struct env *to, const struct env *from)
{
    for (size_t i = 0; i < from->count; i++)
        if (!append(to, copy((struct slice){(uint8_t *)from->list[i], strlen(from->list[i])})))
            return false;
    return true;
}

void env_free(struct env *e)
{
    for (size_t i = 0; i < e->count; i++)
        free(e->list[i]);
    free(e->list);
    drop_index(e);
    *e = (struct env){0};
}
