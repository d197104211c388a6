/* The input pipe of a process: what does not fit waits in a buffer, and credit comes back as it drains. */
#include <errno.h>
#include <unistd.h>

#include "agent.h"
#include "proc/proc.h"

/* Bytes that are out of the buffer give the present controller its credit back. */
static void repay(struct proc *p, size_t bytes)
{
    struct input *in = &p->in;
    size_t foreign = bytes < in->foreign ? bytes : in->foreign;

    in->foreign -= foreign;
    if (p->controller)
        attach_repay(p->controller, bytes - foreign);
}

static void flush(struct proc *p)
{
    struct input *in = &p->in;

    while (in->watch.fd >= 0 && buf_size(&in->buffer)) {
        ssize_t n = write(in->watch.fd, buf_front(&in->buffer), buf_size(&in->buffer));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            watch_close(&in->watch); /* nobody reads it */
        else
            repay(p, (size_t)n);
        if (n > 0)
            buf_consume(&in->buffer, (size_t)n);
    }
    if (in->watch.fd < 0) {
        size_t rest = buf_size(&in->buffer);
        buf_free(&in->buffer);
        repay(p, rest);
        return;
    }
    if (in->ended && !buf_size(&in->buffer))
        watch_close(&in->watch);
    watch_set(&in->watch, buf_size(&in->buffer) ? EPOLLOUT : 0);
}

static void writable(struct watch *w, uint32_t events)
{
    (void)events;
    flush(container_of(container_of(w, struct input, watch), struct proc, in));
}

void input_init(struct input *in, int fd)
{
    watch_init(&in->watch, fd, writable);
}

void input_write(struct proc *p, struct slice bytes, bool end)
{
    buf_put(&p->in.buffer, bytes.data, bytes.size);
    if (p->in.buffer.failed) { /* no memory: as if the process had closed it */
        p->in.buffer.failed = false;
        input_close(&p->in);
        repay(p, bytes.size);
    }
    p->in.ended = p->in.ended || end;
    flush(p);
}

void input_close(struct input *in)
{
    watch_close(&in->watch);
}
