/* Forwards name queries from one sandbox to this machine's resolvers.
 *
 *   dns pid=PID [join=FILE …] server=IP …
 *
 * It listens on 127.0.0.53:53, UDP and TCP, in the network namespace of process PID and asks from its own, so a sandbox can
 * resolve names while it reaches no private address itself. It passes on, unchanged, a query with one question for the addresses
 * and other records of a name: no update, no transfer of a zone, nothing else that a sandbox could ask the resolvers to do in
 * this machine's name. It gives up all rights before it reads the first byte, and ends when PID does.
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
#define MAX_QUERY 4096
#define PER_SECOND 100 /* queries and connections; each takes a place in this machine's table of connections for a while */
#define AT_ONCE 500
#define NOBODY 65534

struct query {
    int fd; /* connected to a resolver; one socket for each query, so that every query has its own port */
    struct sockaddr_in client;
    uint16_t id;
    time_t until;
};

struct relay {
    int client, server; /* no server until there is a query for it */
    time_t until;
    size_t held; /* of the client's bytes; no more are read while a whole query is among them */
    unsigned char bytes[2 + MAX_QUERY];
};

struct forwarder {
    int udp, tcp, sandbox;
    struct in_addr servers[MAX_SERVERS];
    int server_count, next_server;
    double allowance; /* how many queries and connections may be taken up */
    double filled_at;
    struct query queries[MAX_QUERIES];
    struct relay relays[MAX_RELAYS];
};

__attribute__((noreturn)) static void die(const char *what) {
    fprintf(stderr, "dns: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static time_t now(void) { return (time_t)seconds(); }

static void fill_allowance(struct forwarder *forwarder) {
    double time = seconds();
    forwarder->allowance += (time - forwarder->filled_at) * PER_SECOND;
    if (forwarder->allowance > AT_ONCE) forwarder->allowance = AT_ONCE;
    forwarder->filled_at = time;
}

static unsigned number_at(const unsigned char *bytes) { return bytes[0] << 8 | bytes[1]; }

/* Where the records after the question begin, or 0 if the question is not one for records of a name on the Internet. */
static size_t skip_question(const unsigned char *query, size_t length) {
    size_t at = 12;
    while (at < length && query[at] && query[at] < 64) at += 1 + query[at];
    if (at + 5 > length || query[at]) return 0;
    unsigned type = number_at(query + at + 1), class = number_at(query + at + 3);
    /* 249 to 254: keys between servers, transfers of zones and of mailboxes */
    return class == 1 && (type < 249 || type > 254) ? at + 5 : 0;
}

/* Whether a message may be passed on: a plain query, one question, nothing behind it but the options of EDNS. */
static int is_plain_query(const unsigned char *query, size_t length) {
    if (length < 12 || query[2] & 0xf8 || number_at(query + 4) != 1 || number_at(query + 6) || number_at(query + 8)) return 0;
    unsigned additional = number_at(query + 10);
    size_t at = skip_question(query, length);
    if (!at || additional > 1) return 0;
    if (!additional) return at == length;
    return at + 11 <= length && !query[at] && number_at(query + at + 1) == 41 && at + 11 + number_at(query + at + 9) == length;
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

#define SERVER_FAILED 2
#define REFUSED 5

/* Turn a query into its answer: the error `why`. */
static void turn_down(unsigned char *query, int why) {
    query[2] |= 0x80;                          /* an answer */
    query[3] = (query[3] & 0x10) | 0x80 | why; /* recursion is available */
}

/* Answer at once: a client that gets no answer asks again and again, for minutes. */
static void refuse_query(struct forwarder *forwarder, unsigned char *query, size_t length, int why, const struct sockaddr_in *client) {
    turn_down(query, why);
    sendto(forwarder->udp, query, length, 0, (const void *)client, sizeof *client);
}

static void forward_query(struct forwarder *forwarder) {
    unsigned char packet[MAX_QUERY + 1];
    struct sockaddr_in client;
    socklen_t size = sizeof client;
    ssize_t length = recvfrom(forwarder->udp, packet, sizeof packet, 0, (void *)&client, &size);
    if (length < 12 || packet[2] & 0x80) return; /* never answer an answer */
    if (length > MAX_QUERY || !is_plain_query(packet, length)) {
        refuse_query(forwarder, packet, length, REFUSED, &client);
        return;
    }
    forwarder->allowance--;
    struct query *slot = &forwarder->queries[0];
    for (int i = 0; i < MAX_QUERIES && slot->fd >= 0; i++)
        if (forwarder->queries[i].fd < 0 || forwarder->queries[i].until < slot->until) slot = &forwarder->queries[i];
    if (slot->fd >= 0) close(slot->fd); /* all are waiting: the oldest gives way */
    slot->fd = ask_server(forwarder, SOCK_DGRAM);
    if (slot->fd < 0) {
        refuse_query(forwarder, packet, length, SERVER_FAILED, &client);
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
        relay->client = client;
        relay->held = 0;
        relay->until = now() + RELAY_SECONDS;
        return;
    }
    close(client);
}

static void close_relay(struct relay *relay) {
    close(relay->client);
    if (relay->server >= 0) close(relay->server);
    relay->client = relay->server = -1;
}

/* The bytes of the first query that a client has sent, its length in front, or 0 if it is not all there. */
static size_t whole_query(const struct relay *relay) {
    if (relay->held < 2) return 0;
    size_t size = 2 + number_at(relay->bytes);
    return relay->held < size ? 0 : size;
}

static void drop_query(struct relay *relay) {
    size_t size = whole_query(relay);
    relay->held -= size;
    memmove(relay->bytes, relay->bytes + size, relay->held);
}

/* Answer queries that may not be passed on; one that may be stays, and waits for the server. */
static void sort_queries(struct forwarder *forwarder, struct relay *relay) {
    for (size_t size; (size = whole_query(relay)); drop_query(relay)) {
        if (size < 2 + 12) break;
        if (is_plain_query(relay->bytes + 2, size - 2)) {
            if (relay->server < 0) forwarder->allowance--, relay->server = ask_server(forwarder, SOCK_STREAM);
            if (relay->server >= 0) return;
            turn_down(relay->bytes + 2, SERVER_FAILED);
        } else turn_down(relay->bytes + 2, REFUSED);
        if (send(relay->client, relay->bytes, size, MSG_NOSIGNAL) != (ssize_t)size) break;
    }
    /* what has no header, or is longer than any query, is not the protocol */
    if (whole_query(relay) || (relay->held >= 2 && number_at(relay->bytes) > MAX_QUERY)) close_relay(relay);
}

static void read_queries(struct forwarder *forwarder, struct relay *relay) {
    ssize_t length = recv(relay->client, relay->bytes + relay->held, sizeof relay->bytes - relay->held, 0);
    if (length < 0 && errno == EAGAIN) return;
    if (length <= 0) {
        close_relay(relay);
        return;
    }
    relay->held += length;
    sort_queries(forwarder, relay);
}

/* Queries and answers are small: one that does not fit into the socket's buffer at once ends the relay. */
static void send_query(struct forwarder *forwarder, struct relay *relay) {
    size_t size = whole_query(relay);
    if (send(relay->server, relay->bytes, size, MSG_NOSIGNAL) != (ssize_t)size) {
        close_relay(relay);
        return;
    }
    drop_query(relay);
    sort_queries(forwarder, relay);
}

static void pass_answer(struct relay *relay) {
    char data[16384];
    ssize_t length = recv(relay->server, data, sizeof data, 0);
    if (length < 0 && errno == EAGAIN) return;
    if (length <= 0 || send(relay->client, data, length, MSG_NOSIGNAL) != length) close_relay(relay);
}

static int fill_polls(struct forwarder *forwarder, struct pollfd *polls) {
    int count = 0, open = forwarder->allowance >= 1; /* beyond it they wait in the kernel's queues, or get lost there */
    polls[count++] = (struct pollfd){forwarder->sandbox, POLLIN, 0};
    polls[count++] = (struct pollfd){open ? forwarder->udp : -1, POLLIN, 0};
    polls[count++] = (struct pollfd){open ? forwarder->tcp : -1, POLLIN, 0};
    for (int i = 0; i < MAX_QUERIES; i++) polls[count++] = (struct pollfd){forwarder->queries[i].fd, POLLIN, 0};
    for (int i = 0; i < MAX_RELAYS; i++) {
        struct relay *relay = &forwarder->relays[i];
        int waiting = relay->client >= 0 && whole_query(relay) > 0;
        polls[count++] = (struct pollfd){open ? relay->client : -1, waiting ? 0 : POLLIN, 0};
        polls[count++] = (struct pollfd){relay->server, waiting ? POLLIN | POLLOUT : POLLIN, 0};
    }
    return count;
}

static void serve(struct forwarder *forwarder) {
    struct pollfd polls[3 + MAX_QUERIES + 2 * MAX_RELAYS];
    for (;;) {
        fill_allowance(forwarder);
        int count = fill_polls(forwarder, polls);
        if (poll(polls, count, forwarder->allowance >= 1 ? 1000 : 1000 / PER_SECOND) < 0 && errno != EINTR) die("poll");
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
            if (relay->client >= 0 && pair[1].revents & POLLOUT) send_query(forwarder, relay);
            if (relay->client >= 0 && pair[1].revents & ~POLLOUT) pass_answer(relay);
            if (relay->client >= 0 && pair[0].revents & POLLIN) read_queries(forwarder, relay);
            else if (relay->client >= 0 && pair[0].revents) close_relay(relay);
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
    forwarder.allowance = AT_ONCE, forwarder.filled_at = seconds();
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
