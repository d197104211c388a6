/* From a START request to a forked supervisor: checks, user, environment, pipes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "base/errors.h"
#include "proc/proc.h"
#include "proc/supervise.h"

#define LISTED_ARGV 4096

struct start {
    struct slice cwd, user;
    int64_t timeout_ms, window, flags, cols, rows;
    char **argv;
    struct env env;
    struct user as;
    char path[4096];
    char message[USER_UNKNOWN_SIZE];
    const char *why; /* what is wrong with it */
};

/* One block: the pointers, then the strings. */
static char **argv_build(struct slice payload)
{
    size_t count = 0, bytes = 0;
    struct slice rest = payload, value;
    uint8_t tag;

    while (field_next(&rest, &tag, &value) > 0) {
        if (tag != 1)
            continue;
        if (slice_has_nul(value))
            return NULL;
        count++;
        bytes += value.size + 1;
    }
    char **argv = count ? malloc((count + 1) * sizeof *argv + bytes) : NULL;
    if (!argv)
        return NULL;
    char *text = (char *)(argv + count + 1);
    argv[count] = NULL;
    rest = payload;
    for (size_t i = 0; i < count && field_next(&rest, &tag, &value) > 0;) {
        if (tag != 1)
            continue;
        argv[i++] = memcpy(text, value.data, value.size);
        text[value.size] = 0;
        text += value.size + 1;
    }
    return argv;
}

static bool env_build(struct start *s, struct slice payload)
{
    struct slice value;
    uint8_t tag;
    s->env.limit = MAX_START; /* the kernel decides what is too much for it */
    bool fits = env_copy(&s->env, &agent.env);
    const struct { const char *name, *value; } own[] = {{"HOME", s->as.home}, {"USER", s->as.name}, {"LOGNAME", s->as.name}};

    for (size_t i = 0; fits && i < 3; i++)
        if (!env_get(&s->env, own[i].name))
            fits = env_set_pair(&s->env, own[i].name, own[i].value);
    while (fits && field_next(&payload, &tag, &value) > 0) {
        if (tag != 2)
            continue;
        if (!env_valid(value, false)) {
            s->why = "an environment entry is not NAME=VALUE";
            return false;
        }
        fits = env_set(&s->env, value);
    }
    if (fits && (s->flags & START_TERMINAL) && !env_get(&s->env, "TERM"))
        fits = env_set_pair(&s->env, "TERM", "xterm-256color");
    if (!fits)
        s->why = "the environment is above 2 MiB";
    return fits;
}

/* Checks everything that can be wrong before a process is made; `why` says what is. */
static bool prepare(struct start *s, struct slice payload)
{
    char name[NAME_SIZE];
    const char *spec = agent.user;

    if (s->user.size) {
        snprintf(name, sizeof name, "%.*s", (int)(s->user.size < NAME_SIZE ? s->user.size : NAME_SIZE), (const char *)s->user.data);
        spec = name;
    }
    if (s->user.size >= NAME_SIZE || slice_has_nul(s->user) || !user_find(spec, &s->as)) {
        user_unknown(spec, s->message);
        s->why = s->message;
        return false;
    }
    bool absolute = s->cwd.size && s->cwd.data[0] == '/';
    int n = snprintf(s->path, sizeof s->path, "%s%s%.*s", absolute ? "" : agent.workdir, s->cwd.size && !absolute ? "/" : "",
                     (int)(s->cwd.size < sizeof s->path ? s->cwd.size : sizeof s->path), (const char *)s->cwd.data);
    if (n < 0 || (size_t)n >= sizeof s->path || slice_has_nul(s->cwd)) {
        s->why = "the working directory's name is too long or holds a NUL";
        return false;
    }
    if (s->timeout_ms < 0 || s->window < 0) {
        s->why = "a negative timeout or window";
        return false;
    }
    if ((s->flags & START_TERMINAL) && !terminal_size_valid(s->cols, s->rows)) {
        s->why = "a terminal has 1 to 10000 columns and rows";
        return false;
    }
    s->argv = argv_build(payload);
    if (!s->argv) {
        s->why = "argv is empty or holds a NUL";
        return false;
    }
    return env_build(s, payload);
}

static void remember(struct proc *p, const struct start *s)
{
    size_t total = 0;

    memcpy(p->user, s->as.name, sizeof p->user);
    snprintf(p->cwd, sizeof p->cwd, "%.255s", s->path);
    for (char **arg = s->argv; *arg && total < LISTED_ARGV; arg++) {
        size_t size = strlen(*arg);
        if (size > LISTED_ARGV - total)
            size = LISTED_ARGV - total;
        put_bytes(&p->argv, 4, *arg, size);
        total += size + 1;
    }
}

/* pipes[i] for stdin, stdout, stderr; [0] is the agent's end, [1] the command's. */
static bool open_pipes(int pipes[3][2], bool with_input)
{
    for (int i = 0; i < 3; i++) {
        int ends[2];
        if (i == 0 && !with_input)
            continue;
        if (pipe2(ends, O_CLOEXEC) < 0)
            return false;
        pipes[i][0] = ends[i == 0];
        pipes[i][1] = ends[i != 0];
        if (fcntl(pipes[i][0], F_SETFL, O_NONBLOCK) < 0)
            return false;
    }
    return true;
}

static void close_ends(int pipes[3][2], int end)
{
    for (int i = 0; i < 3; i++)
        if (pipes[i][end] >= 0)
            close(pipes[i][end]);
}

/* Returns an errno. */
static int launch(struct proc *p, struct start *s)
{
    int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}}, sock = -1;
    const char *path = env_get(&s->env, "PATH");

    bool opened = p->cols ? terminal_open(pipes, &s->as, p->cols, p->rows) : open_pipes(pipes, s->flags & START_STDIN);
    if (!opened) {
        int err = errno;
        close_ends(pipes, 0);
        close_ends(pipes, 1);
        return err;
    }
    struct launch l = {
        .argv = s->argv, .envp = s->env.list, .cwd = s->path, .path = path ? path : DEFAULT_PATH, .user = &s->as,
        .stdio = {pipes[0][1] >= 0 ? pipes[0][1] : agent.null_fd, pipes[1][1], pipes[2][1]}, .terminal = p->cols,
    };
    if (l.terminal)
        l.stdio[0] = l.stdio[2] = pipes[1][1];
    p->supervisor = supervise(&l, &sock);
    int err = errno;
    if (p->supervisor > 0 && p->cols) { /* kept open while it runs: else the terminal hangs up when a program closes its own */
        p->out[0].slave = pipes[1][1];
        p->out[1].state = OUT_DONE;
        pipes[1][1] = -1;
    }
    close_ends(pipes, 1);
    if (p->supervisor < 0) {
        close_ends(pipes, 0);
        return err;
    }
    p->reports.fd = sock;
    input_init(&p->in, pipes[0][0]);
    output_init(&p->out[0], p, 0, pipes[1][0]);
    output_init(&p->out[1], p, 1, pipes[2][0]);
    return 0;
}

struct spawned proc_spawn(struct conn *c, const struct frame *f)
{
    struct start s = {.window = DEFAULT_WINDOW, .cols = 80, .rows = 24};
    struct spawned result = {0};
    struct want wants[] = {{3, NULL, &s.cwd}, {4, NULL, &s.user}, {5, &s.timeout_ms, NULL}, {6, &s.window, NULL}, {7, &s.flags, NULL},
                           {8, &s.cols, NULL}, {9, &s.rows, NULL}};

    if (!fields_decode(f->payload, wants, 7)) {
        result.malformed = true;
        return result;
    }
    struct proc *p = calloc(1, sizeof *p);
    int err = p ? 0 : ENOMEM;
    if (!prepare(&s, f->payload)) {
        conn_error(c, f->stream, "INVALID_ARGUMENT", 0, s.why);
        err = -1;
    }
    if (!err) {
        p->foreground = s.flags & START_FOREGROUND;
        if (s.flags & START_TERMINAL) {
            p->cols = (int)s.cols;
            p->rows = (int)s.rows;
        }
        oom_look();
        p->started_ms = wall_ms();
        p->started_us = now_us();
        remember(p, &s);
        err = launch(p, &s);
    }
    if (err > 0)
        conn_error(c, f->stream, error_code(err), err, error_text(err));
    if (err && p)
        buf_free(&p->argv);
    if (err)
        free(p);
    else
        result = (struct spawned){p, s.timeout_ms, s.window, false};
    free(s.argv);
    env_free(&s.env);
    return result;
}
