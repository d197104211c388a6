/* Requests that open a stream: who serves which, and those that are answered at once. */
#include "agent.h"
#include "link/conn.h"
#include "net/dial.h"
#include "link/life.h"
#include "proc/proc.h"

static bool request_env(struct conn *c, const struct frame *f)
{
    struct slice rest = f->payload, value;
    struct env changed = {0};
    uint8_t tag;
    const char *why = env_copy(&changed, &agent.env) ? NULL : "no memory";

    if (!fields_decode(f->payload, NULL, 0)) {
        env_free(&changed);
        return false;
    }
    while (!why && field_next(&rest, &tag, &value) > 0) {
        if (tag != 1 && tag != 2)
            continue;
        if (!env_valid(value, tag == 2))
            why = "set takes NAME=VALUE, unset takes NAME";
        else if (tag == 2)
            env_unset(&changed, value);
        else if (!env_set(&changed, value))
            why = "the environment is above 512 KiB";
    }
    if (why) {
        env_free(&changed);
        conn_error(c, f->stream, "INVALID_ARGUMENT", 0, why);
        return true;
    }
    env_free(&agent.env);
    agent.env = changed;
    if (f->payload.size) /* not only read */
        idle_touch();
    size_t mark = frame_begin(&c->out, f->stream, T_REPLY, F_FINAL);
    for (size_t i = 0; i < agent.env.count; i++)
        put_text(&c->out, 1, agent.env.list[i]);
    frame_end(&c->out, mark);
    conn_touch(c);
    return true;
}

bool request_open(struct conn *c, const struct frame *f)
{
    if (f->type == T_START && agent.drain_until) {
        conn_error(c, f->stream, "CONFLICT", 0, "the sandbox is ending");
        return true;
    }
    if (f->type != T_LIFE && f->type != T_PROCESSES)
        idle_begun();
    switch (f->type) {
    case T_START: return proc_start(c, f);
    case T_ATTACH: return proc_attach(c, f);
    case T_SIGNAL: return proc_signal(c, f);
    case T_RESIZE: return proc_resize(c, f);
    case T_PROCESSES: return procs_list(c, f);
    case T_ENV: return request_env(c, f);
    case T_LIFE: return request_life(c, f);
    case T_STATS: case T_READ: case T_WRITE: case T_LIST: case T_STAT: case T_MKDIR:
    case T_REMOVE: case T_RENAME: case T_CHMOD: case T_CHOWN: case T_SYMLINK:
    case T_COPY: case T_HASH: case T_PACK: case T_UNPACK: case T_WATCH: case T_PORTS:
        return files_open(c, f);
    case T_DIAL: return port_dial(c, f);
    default:
        conn_error(c, f->stream, "UNSUPPORTED", 0, "this agent does not know that request");
        return true;
    }
}
