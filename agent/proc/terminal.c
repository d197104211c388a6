/* Pseudo-terminals: makes them for processes, resizes them, and tells the attached clients. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "agent.h"
#include "base/errors.h"
#include "proc/proc.h"

#define MAX_SIDE 10000

bool terminal_size_valid(int64_t cols, int64_t rows)
{
    return cols >= 1 && cols <= MAX_SIDE && rows >= 1 && rows <= MAX_SIDE;
}

static int set_size(int fd, int cols, int rows)
{
    struct winsize size = {.ws_col = (unsigned short)cols, .ws_row = (unsigned short)rows};

    return ioctl(fd, TIOCSWINSZ, &size);
}

static int open_slave(int master)
{
    int unlock = 0;
    char name[64];

    if (ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return -1;
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave >= 0 || (errno != EINVAL && errno != ENOTTY))
        return slave;
    if (ptsname_r(master, name, sizeof name) != 0)
        return -1;
    return open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

/* The user owns it, as after a login. Where the kernel or the id map does not allow that, it works without. */
static void give(int slave, const struct user *user)
{
    gid_t group;
    bool shared = group_find("tty", &group);

    if (fchown(slave, user->uid, shared ? group : user->gid) < 0 || fchmod(slave, shared ? 0620 : 0600) < 0)
        return;
}

static bool set_up(int slave, int cols, int rows)
{
    struct termios modes;

    if (tcgetattr(slave, &modes) < 0)
        return false;
    modes.c_iflag |= IUTF8;
    return tcsetattr(slave, TCSANOW, &modes) == 0 && set_size(slave, cols, rows) == 0;
}

bool terminal_open(int pipes[3][2], const struct user *user, int cols, int rows)
{
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);

    if (master < 0) {
        errno = errno == ENOSPC ? EAGAIN : errno; /* no pseudo-terminal is left; no disk is full */
        return false;
    }
    /* Two descriptors, so that input and output are watched apart. */
    pipes[1][0] = master;
    pipes[0][0] = fcntl(master, F_DUPFD_CLOEXEC, 3);
    pipes[1][1] = open_slave(master);
    if (pipes[0][0] < 0 || pipes[1][1] < 0 || !set_up(pipes[1][1], cols, rows))
        return false;
    give(pipes[1][1], user);
    return true;
}

bool terminal_notice(struct attach *a)
{
    struct proc *p = a->proc;
    struct buf *b = &a->stream.conn->out;
    bool replaced = a->replaced, resized = a->resized;

    a->replaced = a->resized = false;
    if (!p->cols || (!replaced && !resized))
        return false;
    size_t mark = frame_begin(b, a->stream.id, T_REPLY, 0);
    if (replaced)
        put_int(b, 1, 0);
    if (resized) {
        put_int(b, 2, p->cols);
        put_int(b, 3, p->rows);
    }
    frame_end(b, mark);
    return true;
}

bool proc_resize(struct conn *c, const struct frame *f)
{
    int64_t id = 0, cols = 0, rows = 0;
    struct want wants[] = {{1, &id, NULL}, {2, &cols, NULL}, {3, &rows, NULL}};

    if (!fields_decode(f->payload, wants, 3))
        return false;
    struct proc *p = proc_find(id);
    const char *why = !terminal_size_valid(cols, rows) ? "a terminal has 1 to 10000 columns and rows"
                      : p && !p->cols                  ? "this process is not a terminal"
                                                       : NULL;
    if (why)
        return conn_error(c, f->stream, "INVALID_ARGUMENT", 0, why), true;
    if (!p || p->state != P_RUNNING || p->exited || p->out[0].watch.fd < 0)
        return conn_error(c, f->stream, "PROCESS_NOT_FOUND", 0, "no running terminal with this id"), true;
    if (set_size(p->out[0].watch.fd, (int)cols, (int)rows) < 0)
        return conn_error(c, f->stream, error_code(errno), errno, error_text(errno)), true;
    for (struct attach *a = p->attached; a; a = a->next)
        a->resized = a->resized || p->cols != cols || p->rows != rows;
    p->cols = (int)cols;
    p->rows = (int)rows;
    idle_touch();
    frame_end(&c->out, frame_begin(&c->out, f->stream, T_REPLY, F_FINAL));
    conn_touch(c);
    proc_touch(p);
    return true;
}
