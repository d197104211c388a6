/* The event loop: file descriptors with callbacks, one event at a time. */
#ifndef LOOP_H
#define LOOP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

/* Embedded in what owns the descriptor. `events` is what epoll is asked for now; 0: not registered. */
struct watch {
    int fd;
    uint32_t events;
    void (*ready)(struct watch *, uint32_t events);
};

void watch_init(struct watch *w, int fd, void (*ready)(struct watch *, uint32_t));
int watch_set(struct watch *w, uint32_t events);
void watch_close(struct watch *w);

int loop_init(void);
/* Waits at most `timeout` ms (-1: for ever) and hands out one event, so that a callback may free any watch. */
void loop_once(int timeout);

int64_t now_ms(void);
int64_t now_us(void);
int64_t wall_ms(void);
int set_nonblocking(int fd);
/* Lets as much as the system allows be under way in a socket. */
void widen(int socket);

#endif
