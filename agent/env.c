/* Environments. Every string is owned by its list; the lists are short, so lookups walk them. */
#include "env.h"

#include <stdlib.h>
#include <string.h>

#define PAIR_COST 5 /* what a field costs on the wire beside its bytes */

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

static char **find(const struct env *e, const void *name, size_t size)
{
    for (size_t i = 0; i < e->count; i++)
        if (!strncmp(e->list[i], name, size) && e->list[i][size] == '=')
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
    e->list[e->count++] = text;
    e->list[e->count] = NULL;
    e->bytes += strlen(text) + PAIR_COST;
    return true;
}

bool env_set(struct env *e, struct slice pair)
{
    char **old = find(e, pair.data, name_size(pair));
    size_t freed = old ? strlen(*old) + PAIR_COST : 0;

    if (e->bytes - freed + pair.size + PAIR_COST > ENV_LIMIT)
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
    e->bytes -= strlen(*at) + PAIR_COST;
    free(*at);
    memmove(at, at + 1, (size_t)(e->list + e->count - at) * sizeof *at);
    e->count--;
}

const char *env_get(const struct env *e, const char *name)
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
    *e = (struct env){0};
}
