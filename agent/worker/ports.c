/* PORTS: the listening TCP sockets, from the kernel's own tables, which the kernel takes some milliseconds to go through. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/worker.h"

#define LISTENING 0x0a
#define MAX_PORTS 65536

struct listener {
    uint16_t port;
    uint32_t uid;
    char address[INET6_ADDRSTRLEN];
};

/* Hexadecimal, in words of the machine's own byte order; an IPv4 address in IPv6 is shown as IPv4. */
static bool decode_address(const char *hex, char text[INET6_ADDRSTRLEN])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    uint8_t bytes[16];
    size_t words = strlen(hex) / 8;

    if (words != 1 && words != 4)
        return false;
    for (size_t i = 0; i < words; i++) {
        uint32_t word;
        if (sscanf(hex + 8 * i, "%8x", &word) != 1)
            return false;
        memcpy(bytes + 4 * i, &word, 4);
    }
    if (words == 4 && memcmp(bytes, mapped, sizeof mapped))
        return inet_ntop(AF_INET6, bytes, text, INET6_ADDRSTRLEN);
    return inet_ntop(AF_INET, words == 4 ? bytes + 12 : bytes, text, INET6_ADDRSTRLEN);
}

/* "sl: address:port remote:port state queues timer retransmits uid …"; 0 or an errno. */
static int read_table(const char *path, struct fs *fs, struct buf *found)
{
    char line[512], address[33];
    FILE *f = fopen(path, "re");

    if (!f)
        return errno;
    setvbuf(f, (char *)fs->io, _IOFBF, FS_IO);
    while (fgets(line, sizeof line, f)) {
        struct listener l = {0};
        unsigned port, state, uid;
        if (sscanf(line, " %*d: %32[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %u", address, &port, &state, &uid) != 4)
            continue;
        if (state != LISTENING || !decode_address(address, l.address))
            continue;
        l.port = (uint16_t)port;
        l.uid = uid;
        buf_put(found, &l, sizeof l);
    }
    int err = ferror(f) ? EIO : found->failed ? ENOMEM : 0;
    fclose(f);
    return err;
}

static int by_port(const void *a, const void *b)
{
    const struct listener *x = a, *y = b;

    return x->port != y->port ? x->port - y->port : strcmp(x->address, y->address);
}

static void reply(struct fs *fs, uint32_t id, const struct listener *l)
{
    size_t mark = frame_begin(&fs->out, id, T_REPLY, 0);

    put_int(&fs->out, 1, l->port);
    put_text(&fs->out, 2, l->address);
    put_int(&fs->out, 3, l->uid);
    frame_end(&fs->out, mark);
    fs_send(fs);
}

void fs_ports(struct fs *fs, const struct request *r)
{
    struct buf found = {0};
    int err = read_table("/proc/net/tcp", fs, &found), err6 = err ? 0 : read_table("/proc/net/tcp6", fs, &found);

    if (err6 && err6 != ENOENT) /* a kernel without IPv6 */
        err = err6;
    size_t count = buf_size(&found) / sizeof(struct listener);
    if (err || count > MAX_PORTS) {
        buf_free(&found);
        return (void)fs_fail(fs, r->id, err ? EIO : EMFILE, "the listening ports");
    }
    struct listener *l = (struct listener *)(void *)buf_front(&found);
    if (count)
        qsort(l, count, sizeof *l, by_port);
    for (size_t i = 0; i < count; i++)
        if (!i || by_port(&l[i - 1], &l[i])) /* several sockets may share one */
            reply(fs, r->id, &l[i]);
    frame_end(&fs->out, frame_begin(&fs->out, r->id, T_REPLY, F_FINAL));
    fs_send(fs);
    buf_free(&found);
}
