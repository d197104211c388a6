/* epoll, and the clocks. */
#include "base/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "link/conn.h"

void watch_init(struct watch *w, int fd, void (*ready)(struct watch *, uint32_t))
{
    w->fd = fd;
    w->events = 0;
    w->ready = ready;
}

int watch_set(struct watch *w, uint32_t events)
{
    if (w->fd < 0 || w->events == events)
        return 0;
    struct epoll_event ev = {.events = events, .data.ptr = w};
    int op = !events ? EPOLL_CTL_DEL : w->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(agent.epoll, op, w->fd, &ev) < 0)
        return -1;
    w->events = events;
    return 0;
}

void watch_close(struct watch *w)
{
    if (w->fd < 0)
        return;
    /* Explicitly: a fork that still holds the description would keep it in the epoll set. */
    watch_set(w, 0);
    w->events = 0;
    close(w->fd);
    w->fd = -1;
}

#define LULL_MS 20 /* memory used for a burst goes back after this long without an event */

int loop_init(void)
{
    agent.epoll = epoll_create1(EPOLL_CLOEXEC);
    agent.scratch = mmap(NULL, SCRATCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return agent.scratch == MAP_FAILED ? -1 : agent.epoll;
}

void loop_once(int timeout)
{
    struct epoll_event ev;
    bool tidy = agent.untidy && (timeout < 0 || timeout > LULL_MS);
    int n = epoll_wait(agent.epoll, &ev, 1, tidy ? LULL_MS : timeout);

    if (n == 0 && tidy) { /* an idle agent should weigh nothing */
        madvise(agent.scratch, SCRATCH, MADV_DONTNEED);
        conns_trim();
        files_trim();
        agent.untidy = false;
    }
    if (n != 1)
        return;
    struct watch *w = ev.data.ptr;
    w->ready(w, ev.events);
}

static int64_t clock_us(clockid_t clock)
{
    struct timespec t = {0};

    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t now_us(void) { return clock_us(CLOCK_BOOTTIME); }
int64_t now_ms(void) { return now_us() / 1000; }
int64_t wall_ms(void) { return clock_us(CLOCK_REALTIME) / 1000; }

void widen(int socket)
{
    const int most = 512 << 10;

    (void)setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &most, sizeof most); /* without it everything is only slower */
}

int set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}
