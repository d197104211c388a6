/* Forwards name queries from one sandbox to this machine's resolvers.
 *
 *   dns pid=PID [join=FILE …] server=IP …
 *
 * It listens on 127.0.0.53:53, UDP and TCP, in the network namespace of process PID and asks from its own, so a sandbox can
 * resolve names while it reaches no private address itself. Queries are passed on as they are. It gives up all rights before it
 * reads the first byte, and ends when PID does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_SERVERS 3
#define MAX_QUERIES 128
#define MAX_RELAYS 16
#define QUERY_SECONDS 5
#define RELAY_SECONDS 20
#define NOBODY 65534

struct query {
    int fd; /* connected to a resolver; a socket each, so that every query has a port of its own */
    struct sockaddr_in client;
    uint16_t id;
    time_t until;
};

struct relay {
    int client, server;
    time_t until;
};

struct forwarder {
    int udp, tcp, sandbox;
    struct in_addr servers[MAX_SERVERS];
    int server_count, next_server;
    struct query queries[MAX_QUERIES];
    struct relay relays[MAX_RELAYS];
};

__attribute__((noreturn)) static void die(const char *what) {
    fprintf(stderr, "dns: %s: %s\n", what, strerror(errno));
    exit(1);
}

static time_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

static int listen_inside(int type) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(53), .sin_addr.s_addr = htonl(0x7f000035)};
    int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (void *)&address, sizeof address)) die("bind 127.0.0.53:53");
    if (type == SOCK_STREAM && listen(fd, 16)) die("listen");
    return fd;
}

static int ask_server(struct forwarder *forwarder, int type) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(53)};
    address.sin_addr = forwarder->servers[forwarder->next_server++ % forwarder->server_count];
    int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (connect(fd, (void *)&address, sizeof address) && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Tell at once that there is no answer to be had: a client that hears nothing asks again and again, for minutes. */
static void refuse_query(struct forwarder *forwarder, char *query, ssize_t length, const struct sockaddr_in *client) {
    query[2] |= 0x80;                    /* an answer */
    query[3] = (query[3] & 0x10) | 0x82; /* that the server has failed; it would have asked others */
    sendto(forwarder->udp, query, length, 0, (const void *)client, sizeof *client);
}

static void forward_query(struct forwarder *forwarder) {
    char packet[4096];
    struct sockaddr_in client;
    socklen_t size = sizeof client;
    ssize_t length = recvfrom(forwarder->udp, packet, sizeof packet, 0, (void *)&client, &size);
    if (length < 12) return;
    struct query *slot = &forwarder->queries[0];
    for (int i = 0; i < MAX_QUERIES && slot->fd >= 0; i++)
        if (forwarder->queries[i].fd < 0 || forwarder->queries[i].until < slot->until) slot = &forwarder->queries[i];
    if (slot->fd >= 0) close(slot->fd); /* all are waiting: the oldest gives way */
    slot->fd = ask_server(forwarder, SOCK_DGRAM);
    if (slot->fd < 0) {
        refuse_query(forwarder, packet, length, &client);
        return;
    }
    slot->client = client;
    memcpy(&slot->id, packet, sizeof slot->id);
    slot->until = now() + QUERY_SECONDS;
    send(slot->fd, packet, length, 0);
}

static void forward_answer(struct forwarder *forwarder, struct query *query) {
    char packet[65535];
    ssize_t length = recv(query->fd, packet, sizeof packet, 0);
    if (length >= 12 && !memcmp(packet, &query->id, sizeof query->id))
        sendto(forwarder->udp, packet, length, 0, (void *)&query->client, sizeof query->client);
    else if (length >= 0 || errno == EAGAIN)
        return;
    close(query->fd);
    query->fd = -1;
}

static void open_relay(struct forwarder *forwarder) {
    int client = accept4(forwarder->tcp, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) return;
    for (int i = 0; i < MAX_RELAYS; i++) {
        struct relay *relay = &forwarder->relays[i];
        if (relay->client >= 0) continue;
        relay->server = ask_server(forwarder, SOCK_STREAM);
        if (relay->server < 0) break;
        relay->client = client;
        relay->until = now() + RELAY_SECONDS;
        return;
    }
    close(client);
}

static void close_relay(struct relay *relay) {
    close(relay->client);
    close(relay->server);
    relay->client = relay->server = -1;
}

/* Queries and answers over TCP are small: one that does not fit into the socket's buffer at once ends the relay. */
static void pass(struct relay *relay, int from, int to) {
    char data[16384];
    ssize_t length = recv(from, data, sizeof data, 0);
    if (length < 0 && errno == EAGAIN) return;
    if (length <= 0 || send(to, data, length, MSG_NOSIGNAL) != length) close_relay(relay);
}

static int fill_polls(struct forwarder *forwarder, struct pollfd *polls) {
    int count = 0;
    polls[count++] = (struct pollfd){forwarder->sandbox, POLLIN, 0};
    polls[count++] = (struct pollfd){forwarder->udp, POLLIN, 0};
    polls[count++] = (struct pollfd){forwarder->tcp, POLLIN, 0};
    for (int i = 0; i < MAX_QUERIES; i++) polls[count++] = (struct pollfd){forwarder->queries[i].fd, POLLIN, 0};
    for (int i = 0; i < MAX_RELAYS; i++) {
        polls[count++] = (struct pollfd){forwarder->relays[i].client, POLLIN, 0};
        polls[count++] = (struct pollfd){forwarder->relays[i].server, POLLIN, 0};
    }
    return count;
}

static void serve(struct forwarder *forwarder) {
    struct pollfd polls[3 + MAX_QUERIES + 2 * MAX_RELAYS];
    for (;;) {
        int count = fill_polls(forwarder, polls);
        if (poll(polls, count, 1000) < 0 && errno != EINTR) die("poll");
        if (polls[0].revents) exit(0);
        time_t time = now();
        for (int i = 0; i < MAX_QUERIES; i++) {
            struct query *query = &forwarder->queries[i];
            if (query->fd < 0) continue;
            if (polls[3 + i].revents) forward_answer(forwarder, query);
            else if (query->until < time) close(query->fd), query->fd = -1;
        }
        for (int i = 0; i < MAX_RELAYS; i++) {
            struct relay *relay = &forwarder->relays[i];
            struct pollfd *pair = polls + 3 + MAX_QUERIES + 2 * i;
            if (relay->client >= 0 && relay->until < time) close_relay(relay);
            if (relay->client >= 0 && pair[0].revents) pass(relay, relay->client, relay->server);
            if (relay->client >= 0 && pair[1].revents) pass(relay, relay->server, relay->client);
        }
        if (polls[1].revents) forward_query(forwarder);
        if (polls[2].revents) open_relay(forwarder);
    }
}

static void give_up_rights(void) {
    if (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY)) die("setresuid");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) die("prctl");
}

static void enter_sandbox(struct forwarder *forwarder, const char *pid) {
    char path[64];
    forwarder->sandbox = syscall(SYS_pidfd_open, atoi(pid), 0);
    if (forwarder->sandbox < 0) die("pidfd_open");
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/ns/net", atoi(pid));
    int inside = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0 || inside < 0 || setns(inside, CLONE_NEWNET)) die("setns");
    forwarder->udp = listen_inside(SOCK_DGRAM);
    forwarder->tcp = listen_inside(SOCK_STREAM);
    if (setns(own, CLONE_NEWNET)) die("setns back");
    close(own), close(inside);
}

static void join(const char *file) {
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1) die(file);
    close(fd);
}

int main(int argc, char **argv) {
    static struct forwarder forwarder;
    memset(forwarder.queries, 0xff, sizeof forwarder.queries);
    memset(forwarder.relays, 0xff, sizeof forwarder.relays);
    const char *pid = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "pid=", 4)) pid = argv[i] + 4;
        else if (!strncmp(argv[i], "join=", 5)) join(argv[i] + 5);
        else if (!strncmp(argv[i], "server=", 7) && forwarder.server_count < MAX_SERVERS &&
                 inet_pton(AF_INET, argv[i] + 7, &forwarder.servers[forwarder.server_count]) == 1)
            forwarder.server_count++;
        else errno = EINVAL, die(argv[i]);
    }
    if (!pid || !forwarder.server_count) errno = EINVAL, die("usage");
    enter_sandbox(&forwarder, pid);
    give_up_rights();
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child) return 0;
    int null = open("/dev/null", O_RDWR);
    if (setsid() < 0 || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0) exit(1);
    if (null > 2) close(null);
    serve(&forwarder);
}
