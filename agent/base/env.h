/* Environments: lists of K=V strings. */
#ifndef ENV_H
#define ENV_H

#include "base/wire.h"

#define ENV_LIMIT (512 * 1024)
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* `list` ends with NULL, so that it can be given to execve. `bytes` counts as on the wire. */
struct env {
    char **list;
    size_t count, bytes;
    size_t limit; /* of `bytes`; 0: ENV_LIMIT */
    /* Where in the list a name is, from 1 on, by its hash; NULL until it is needed. */
    uint32_t *slots;
    size_t slot_count; /* a power of two, or 0 */
};

/* K=V with a name and without NUL, or (for unset) a name alone. */
bool env_valid(struct slice pair, bool name_only);
/* Both return false when there is no memory or the environment would pass its limit. */
bool env_set(struct env *e, struct slice pair);
bool env_set_pair(struct env *e, const char *name, const char *value);
void env_unset(struct env *e, struct slice name);
const char *env_get(struct env *e, const char *name);
/* Into an empty one. */
bool env_copy(struct env *to, const struct env *from);
void env_free(struct env *e);

#endif
