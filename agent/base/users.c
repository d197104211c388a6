/* Small bounded readers of passwd and group: glibc's would load modules and trust the files. */
#include "base/users.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_LIMIT (4 << 20)

/* A file read line by line; lines that do not fit in the buffer are skipped. */
struct lines {
    int fd;
    size_t begin, end, total;
    char buffer[4096];
};

static bool lines_open(struct lines *l, const char *path)
{
    struct stat st;

    l->begin = l->end = l->total = 0;
    l->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (l->fd < 0)
        return false;
    if (fstat(l->fd, &st) == 0 && S_ISREG(st.st_mode))
        return true;
    close(l->fd);
    return false;
}

/* The next line without its newline, or NULL at the end, when the file has been closed. */
static char *lines_next(struct lines *l)
{
    bool skip = false;

    for (;;) {
        char *newline = memchr(l->buffer + l->begin, '\n', l->end - l->begin);
        if (newline) {
            char *line = l->buffer + l->begin;
            *newline = 0;
            l->begin = (size_t)(newline + 1 - l->buffer);
            if (!skip)
                return line;
            skip = false;
            continue;
        }
        memmove(l->buffer, l->buffer + l->begin, l->end - l->begin);
        l->end -= l->begin;
        l->begin = 0;
        if (l->end == sizeof l->buffer) {
            skip = true;
            l->end = 0;
        }
        ssize_t n = l->total > FILE_LIMIT ? 0 : read(l->fd, l->buffer + l->end, sizeof l->buffer - l->end);
        if (n <= 0) {
            close(l->fd);
            return NULL;
        }
        l->end += (size_t)n;
        l->total += (size_t)n;
    }
}

static int split(char *line, char separator, char **fields, int max)
{
    int count = 0;

    while (count < max) {
        fields[count++] = line;
        line = strchr(line, separator);
        if (!line)
            break;
        *line++ = 0;
    }
    return count;
}

static bool number(const char *text, uint32_t *value)
{
    uint64_t n = 0;

    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        n = n * 10 + (uint64_t)(*text - '0');
        if (n >= UINT32_MAX) /* (uid_t)-1 means "no change" to the kernel */
            return false;
    }
    *value = (uint32_t)n;
    return true;
}

static void set_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

/* The first entry with that name, or (name NULL) that id. */
static bool passwd_entry(const char *name, uid_t uid, struct user *user)
{
    struct lines l;
    char *line, *f[7];

    if (!lines_open(&l, "/etc/passwd"))
        return false;
    while ((line = lines_next(&l))) {
        uint32_t entry_uid, entry_gid;
        if (split(line, ':', f, 7) < 6 || !number(f[2], &entry_uid) || !number(f[3], &entry_gid))
            continue;
        if (name ? strcmp(f[0], name) : entry_uid != uid)
            continue;
        user->uid = entry_uid;
        user->gid = entry_gid;
        set_text(user->name, sizeof user->name, f[0]);
        set_text(user->home, sizeof user->home, *f[5] ? f[5] : "/");
        close(l.fd);
        return true;
    }
    return false;
}

static bool group_entry(const char *name, gid_t gid, char found_name[NAME_SIZE], gid_t *found)
{
    struct lines l;
    char *line, *f[4];

    if (!lines_open(&l, "/etc/group"))
        return false;
    while ((line = lines_next(&l))) {
        uint32_t entry;
        if (split(line, ':', f, 4) < 3 || !number(f[2], &entry))
            continue;
        if (name ? strcmp(f[0], name) : entry != gid)
            continue;
        *found = entry;
        set_text(found_name, NAME_SIZE, f[0]);
        close(l.fd);
        return true;
    }
    return false;
}

static void supplementary(struct user *user)
{
    struct lines l;
    char *line, *f[4], *save;

    user->groups[0] = user->gid;
    user->group_count = 1;
    if (!lines_open(&l, "/etc/group"))
        return;
    while ((line = lines_next(&l))) {
        uint32_t gid;
        if (split(line, ':', f, 4) < 4 || !number(f[2], &gid) || gid == user->gid)
            continue;
        for (char *m = strtok_r(f[3], ",", &save); m; m = strtok_r(NULL, ",", &save))
            if (!strcmp(m, user->name) && user->group_count < MAX_GROUPS) {
                user->groups[user->group_count++] = gid;
                break;
            }
    }
}

bool user_find(const char *spec, struct user *user)
{
    uint32_t id;

    if (passwd_entry(spec, 0, user)) {
        supplementary(user);
        return true;
    }
    if (!strcmp(spec, "root"))
        *user = (struct user){.uid = 0, .gid = 0, .home = "/root"};
    else if (!strcmp(spec, "user"))
        *user = (struct user){.uid = 1000, .gid = 1000, .home = "/home/user"};
    else if (!number(spec, &id))
        return false;
    else if (!passwd_entry(NULL, id, user))
        *user = (struct user){.uid = id, .gid = id, .home = "/"};
    if (!*user->name)
        set_text(user->name, sizeof user->name, spec);
    supplementary(user);
    return true;
}

void user_unknown(const char *spec, char message[USER_UNKNOWN_SIZE])
{
    snprintf(message, USER_UNKNOWN_SIZE, "unable to find user %.*s: no matching entries in passwd file", NAME_SIZE, spec);
}

bool group_find(const char *spec, gid_t *gid)
{
    char name[NAME_SIZE];
    uint32_t id;

    if (group_entry(spec, 0, name, gid))
        return true;
    if (number(spec, &id)) {
        *gid = id;
        return true;
    }
    *gid = !strcmp(spec, "user") ? 1000 : 0;
    return !strcmp(spec, "root") || !strcmp(spec, "user");
}

bool user_name(uid_t uid, char name[NAME_SIZE])
{
    struct user user;

    if (!passwd_entry(NULL, uid, &user))
        return false;
    memcpy(name, user.name, NAME_SIZE);
    return true;
}

bool group_name(gid_t gid, char name[NAME_SIZE])
{
    gid_t found;

    return group_entry(NULL, gid, name, &found);
}
