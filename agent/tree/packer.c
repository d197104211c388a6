/* Reading a file or a tree as one stream of records. */
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "link/conn.h"
#include "base/errors.h"
#include "tree/trees.h"

#define ENTRIES 256        /* that one step looks at */
#define OPEN_FILE (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
#define XATTR_NAMES 4096

static int skip(struct packer *p, const char *reason)
{
    if (p->counting)
        return 0;
    size_t mark = record_begin(&p->out, R_SKIPPED);
    put_text(&p->out, 1, p->walk.path);
    put_text(&p->out, 2, reason);
    record_end(&p->out, mark);
    return 0;
}

/* The user's own attributes, as far as they fit in the entry. */
static void put_xattrs(struct packer *p, int fd, size_t mark)
{
    char names[XATTR_NAMES];
    ssize_t size = flistxattr(fd, names, sizeof names);

    if (size < 0 && errno == ERANGE)
        p->tally.lost++;
    for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1) {
        const char *name = names + at;
        if (strncmp(name, "user.", 5) != 0)
            continue;
        /* Read once, into all the room there is: between measuring and reading, a value may change. */
        size_t here = buf_size(&p->out), used = here - mark + strlen(name) + 1;
        size_t room = used >= RECORD_MAX ? 0 : RECORD_MAX - used < XATTR_SIZE_MAX ? RECORD_MAX - used : XATTR_SIZE_MAX;
        if (!room || !buf_reserve(&p->out, RECORD_HEAD + strlen(name) + 1 + room)) {
            p->tally.lost++;
            continue;
        }
        uint8_t head[RECORD_HEAD] = {8};
        buf_put(&p->out, head, sizeof head);
        buf_put(&p->out, name, strlen(name) + 1);
        ssize_t length = fgetxattr(fd, name, p->out.data + p->out.tail, room);
        if (length < 0) {
            p->out.tail = p->out.head + here;
            p->tally.lost++;
            continue;
        }
        p->out.tail += (size_t)length;
        u32_encode(buf_front(&p->out) + here + 1, (uint32_t)(buf_size(&p->out) - here - RECORD_HEAD));
    }
}

static void put_entry(struct packer *p, const char *type, const struct stat *st, int fd, const char *target, const char *same_as)
{
    size_t mark = record_begin(&p->out, R_ENTRY);

    put_text(&p->out, 1, p->walk.path);
    put_text(&p->out, 2, type);
    put_int(&p->out, 3, st->st_mode & 07777);
    put_int(&p->out, 4, st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec);
    if (S_ISREG(st->st_mode))
        put_int(&p->out, 5, st->st_size);
    if (target)
        put_text(&p->out, 6, target);
    if (same_as)
        put_text(&p->out, 7, same_as);
    if (fd >= 0 && !same_as)
        put_xattrs(p, fd, mark);
    record_end(&p->out, mark);
}

static void put_file_end(struct packer *p, uint64_t size)
{
    uint8_t end[OFFSET_SIZE];
    size_t mark = record_begin(&p->out, R_FILE_END);

    u64_encode(end, size);
    buf_put(&p->out, end, sizeof end);
    record_end(&p->out, mark);
}

static int end_file(struct packer *p, uint64_t size)
{
    put_file_end(p, size);
    close(p->file);
    p->file = -1;
    return 0;
}

/* One CONTENT of the open file, or its end. Ignores what was appended after it was opened: that might never end. */
static int read_content(struct packer *p)
{
    uint64_t want = CHUNK;

    if (p->sparse && p->at < p->end) {
        off_t data = lseek(p->file, (off_t)p->at, SEEK_DATA);
        if (data < 0 && errno != ENXIO)
            return errno;
        p->at = data < 0 || (uint64_t)data > p->end ? p->end : (uint64_t)data;
        off_t hole = data < 0 ? -1 : lseek(p->file, data, SEEK_HOLE);
        if (hole > data && (uint64_t)(hole - data) < want)
            want = (uint64_t)(hole - data);
        if (p->at == p->end) { /* a hole up to the end, if the end is still there */
            off_t size = lseek(p->file, 0, SEEK_END);
            return end_file(p, size < 0 || (uint64_t)size > p->end ? p->end : (uint64_t)size);
        }
    }
    if (!p->to_end && want > p->end - p->at)
        want = p->end - p->at;
    if (!want)
        return end_file(p, p->at);
    if (!buf_reserve(&p->out, RECORD_HEAD + OFFSET_SIZE + want))
        return ENOMEM;
    size_t mark = record_begin(&p->out, R_CONTENT);
    uint8_t offset[OFFSET_SIZE];
    u64_encode(offset, p->at);
    buf_put(&p->out, offset, sizeof offset);
    ssize_t n;
    while ((n = pread(p->file, p->out.data + p->out.tail, want, (off_t)p->at)) < 0 && errno == EINTR)
        ;
    if (n < 0)
        return errno;
    if (n == 0) {
        p->out.tail = p->out.head + mark;
        return end_file(p, p->at);
    }
    p->out.tail += (size_t)n;
    record_end(&p->out, mark);
    p->at += (uint64_t)n;
    p->tally.bytes += n;
    if (!p->to_end && p->at == p->end)
        return end_file(p, p->at);
    return 0;
}

static void begin_content(struct packer *p, int fd, const struct stat *st)
{
    p->file = fd;
    p->at = 0;
    p->end = (uint64_t)st->st_size;
    p->sparse = st->st_blocks * 512 < st->st_size;
    p->to_end = !st->st_size; /* as in /proc */
}

static bool excluded(const struct packer *p)
{
    struct slice rest = {buf_front(&p->options), buf_size(&p->options)}, value;
    uint8_t tag;

    while (field_next(&rest, &tag, &value) > 0)
        if (tag == 4 && value.size == strlen(p->walk.name) && !memcmp(value.data, p->walk.name, value.size))
            return true;
    return false;
}

static bool is_gone(int err)
{
    return err == ENOENT || err == ELOOP || err == ENOTDIR || err == NOT_A_FILE_ERRNO;
}

static void count_file(struct packer *p, const struct stat *st, bool again)
{
    p->tally.entries++;
    p->tally.files++;
    p->sizes += again ? 0 : st->st_size;
    if (st->st_nlink > 1 && !again)
        hardlink_keep(&p->hardlinks, st, p->walk.path);
}

static int pack_file(struct packer *p)
{
    struct stat st = p->walk.st;
    const char *same_as = st.st_nlink > 1 ? hardlink_find(&p->hardlinks, &st) : NULL;

    if (p->max_size >= 0 && st.st_size > p->max_size)
        return skip(p, "too large");
    if (same_as || p->no_content || p->counting) {
        if (!p->counting)
            put_entry(p, "file", &st, -1, NULL, same_as);
        if (!p->counting && !same_as)
            put_file_end(p, (uint64_t)st.st_size);
        count_file(p, &st, same_as);
        return 0;
    }
    int fd = openat(p->walk.dir, p->walk.name, OPEN_FILE | O_NOFOLLOW);
    int err = fd < 0 || fstat(fd, &st) < 0 ? errno : S_ISREG(st.st_mode) ? 0 : ENOENT;
    if (err && fd >= 0)
        close(fd);
    if (err)
        return is_gone(err) ? skip(p, "vanished") : err;
    put_entry(p, "file", &st, fd, NULL, NULL);
    count_file(p, &st, false);
    begin_content(p, fd, &st);
    return 0;
}

static int pack_link(struct packer *p)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(p->walk.dir, p->walk.name, target, sizeof target - 1);

    if (n < 0)
        return is_gone(errno) || errno == EINVAL ? skip(p, "vanished") : errno;
    target[n] = 0;
    p->tally.entries++;
    p->tally.links++;
    if (!p->counting)
        put_entry(p, "link", &p->walk.st, -1, target, NULL);
    return 0;
}

static int pack_directory(struct packer *p, uint8_t *scratch)
{
    int err = walk_enter(&p->walk, scratch, FS_IO);

    if (err)
        return is_gone(err) ? skip(p, "vanished") : err;
    p->tally.entries++;
    p->tally.directories++;
    if (p->counting)
        return 0;
    struct level *level = &p->walk.level[p->walk.levels - 1];
    p->walk.path[level->prefix - 1] = 0;
    put_entry(p, "dir", &p->walk.st, level->fd, NULL, NULL);
    p->walk.path[level->prefix - 1] = '/';
    return 0;
}

static int pack_entry(struct packer *p, uint8_t *scratch)
{
    if (p->walk.err)
        return is_gone(p->walk.err) ? skip(p, "vanished") : p->walk.err;
    if (buf_size(&p->options) && excluded(p))
        return skip(p, "excluded");
    switch (p->walk.st.st_mode & S_IFMT) {
    case S_IFREG: return pack_file(p);
    case S_IFDIR: return pack_directory(p, scratch);
    case S_IFLNK: return pack_link(p);
    case S_IFIFO: return skip(p, "fifo");
    case S_IFSOCK: return skip(p, "socket");
    default: return skip(p, "device");
    }
}

/* The root itself. Its links were followed before, so it is opened by its path. */
static int pack_root(struct packer *p, uint8_t *scratch)
{
    bool directory = S_ISDIR(p->root.st_mode);
    int fd = open(p->path, directory ? OPEN_DIR : OPEN_FILE);

    p->started = true;
    p->walk.path[0] = 0;
    if (fd < 0)
        return errno;
    p->tally.entries++;
    if (directory)
        p->tally.directories++;
    else
        p->tally.files++;
    int err = fstat(fd, &p->root) < 0 ? errno : S_ISDIR(p->root.st_mode) == directory ? 0 : NOT_A_FILE_ERRNO;
    if (!err && !directory && !S_ISREG(p->root.st_mode))
        err = NOT_A_FILE_ERRNO;
    if (err) {
        close(fd);
        return err;
    }
    if (!p->counting)
        put_entry(p, directory ? "dir" : "file", &p->root, fd, NULL, NULL);
    if (directory)
        return walk_start(&p->walk, fd, scratch, FS_IO);
    p->sizes = p->root.st_size;
    if (!p->counting && !p->no_content) {
        begin_content(p, fd, &p->root);
        return 0;
    }
    if (!p->counting)
        put_file_end(p, (uint64_t)p->root.st_size);
    close(fd);
    return 0;
}

int packer_fill(struct packer *p, uint8_t *scratch)
{
    int err = 0;

    for (int i = 0; i < ENTRIES && !err && !p->done && buf_size(&p->out) < ENOUGH; i++) {
        fs_beat();
        if (p->file >= 0)
            err = read_content(p);
        else if (!p->started)
            err = pack_root(p, scratch);
        else if (p->walk.levels && walk_next(&p->walk))
            err = pack_entry(p, scratch);
        else
            p->done = true;
    }
    if (p->done && !err && !p->counting) {
        size_t mark = record_begin(&p->out, R_TREE_END);
        put_int(&p->out, 1, p->tally.entries);
        put_int(&p->out, 2, p->tally.bytes);
        record_end(&p->out, mark);
    }
    return err ? err : p->out.failed ? ENOMEM : 0;
}

int packer_open(struct packer *p, const char *path)
{
    p->file = -1;
    p->max_size = -1;
    snprintf(p->path, sizeof p->path, "%s", path);
    if (stat(path, &p->root) < 0)
        return errno;
    return S_ISDIR(p->root.st_mode) || S_ISREG(p->root.st_mode) ? 0 : NOT_A_FILE_ERRNO;
}

void packer_rewind(struct packer *p)
{
    walk_end(&p->walk);
    hardlinks_free(&p->hardlinks);
    p->tally = (struct tally){0};
    p->sizes = 0;
    p->counting = p->started = p->done = false;
}

void packer_close(struct packer *p)
{
    walk_end(&p->walk);
    hardlinks_free(&p->hardlinks);
    buf_free(&p->out);
    buf_free(&p->options);
    if (p->file >= 0)
        close(p->file);
}
