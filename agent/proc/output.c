/* Output pipes into rings. The controller's credit holds a process back; without one, the oldest bytes go. */
#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "agent.h"
#include "proc/proc.h"

#define TERMINAL_READ 4096            /* what its line discipline holds at most */
#define TERMINAL_LAST (256 * 1024) /* read after the end at most: a child may write for ever */

static uint64_t keep_from(const struct output *o)
{
    const struct attach *a = o->proc->controller;

    return a ? a->pos[o->channel] : o->ring.end;
}

void output_update(struct output *o)
{
    bool read = o->state == OUT_DONE || (!o->stuck && ring_may_take(&o->ring, keep_from(o)));

    if (o->proc->cols && o->state == OUT_LAST) {
        if (read && !o->proc->oom_checks)
            o->proc->wake = now_ms(); /* no event says that a terminal is empty: the timer looks */
        read = false;
    }
    /* Unregistered when held back: a pipe that has been hung up reports that for ever. */
    watch_set(&o->watch, read ? EPOLLIN : 0);
}

static void done(struct output *o)
{
    o->state = OUT_DONE;
    if (o->close_when_done)
        output_close(o);
    else
        output_update(o);
    proc_touch(o->proc);
    proc_settle(o->proc);
}

static void end_of_file(struct output *o)
{
    output_close(o);
    if (o->state != OUT_DONE)
        done(o);
    else
        proc_settle(o->proc);
}

static void keep(struct output *o, size_t available)
{
    const struct proc *p = o->proc;
    struct iovec piece[2];
    bool only_controller = p->controller && !p->controller->next && p->attached == p->controller;

    if (o->state == OUT_LAST && available > o->left)
        available = (size_t)o->left;
    size_t room = ring_make_room(&o->ring, available, keep_from(o), p->foreground && only_controller);
    if (room > available)
        room = available;
    if (!room) {
        o->stuck = true;
        return output_update(o);
    }
    int pieces = ring_slices(&o->ring, o->ring.end, room, piece);
    ssize_t n = readv(o->watch.fd, piece, pieces);
    if (n < 0 && errno == EAGAIN && o->proc->cols && o->state == OUT_LAST)
        return done(o);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return output_update(o);
    if (n <= 0)
        return end_of_file(o);
    o->ring.end += (uint64_t)n;
    if (o->state == OUT_LAST)
        o->left -= (uint64_t)n;
    proc_touch(o->proc);
    if (o->state == OUT_LAST && !o->left)
        return done(o);
    output_update(o);
}

static void readable(struct watch *w, uint32_t events)
{
    struct output *o = container_of(w, struct output, watch);
    int available = 0;

    if (!(events & EPOLLIN))
        return end_of_file(o);
    if (o->state == OUT_DONE) {
        ssize_t n = read(w->fd, agent.scratch, SCRATCH);
        agent.untidy = true;
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            end_of_file(o);
        return;
    }
    if (o->proc->cols)
        return keep(o, TERMINAL_READ);
    if (ioctl(w->fd, FIONREAD, &available) < 0)
        return end_of_file(o);
    if (available > 0)
        keep(o, (size_t)available);
}

void output_last(struct output *o, bool close_when_done)
{
    int available = 0;

    o->close_when_done = close_when_done;
    if (o->state == OUT_DONE) {
        if (close_when_done)
            output_close(o);
        return;
    }
    if (o->proc->cols) {
        o->close_when_done = true; /* which hangs up */
        o->state = OUT_LAST;
        o->left = TERMINAL_LAST;
        return output_update(o);
    }
    if (ioctl(o->watch.fd, FIONREAD, &available) < 0 || available <= 0) {
        done(o);
        return;
    }
    o->state = OUT_LAST;
    o->left = (uint64_t)available;
    output_update(o);
}

void output_drain(struct output *o)
{
    if (o->state == OUT_LAST && !o->stuck && ring_may_take(&o->ring, keep_from(o)))
        keep(o, TERMINAL_READ);
}

void output_close(struct output *o)
{
    watch_close(&o->watch);
    if (o->slave)
        close(o->slave);
    o->slave = 0;
}

void output_init(struct output *o, struct proc *p, int channel, int fd)
{
    o->proc = p;
    o->channel = channel;
    o->ring.max = p->foreground ? 256 * 1024 : 1024 * 1024;
    watch_init(&o->watch, fd, readable);
}
