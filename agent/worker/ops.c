/* File operations that are one step and one answer, and what all of them share: paths and infos. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "worker/worker.h"

int fs_path(const struct fs *fs, struct slice path, char to[PATH_MAX])
{
    if (!path.size || slice_has_nul(path))
        return EINVAL;
    if (path.size >= PATH_MAX)
        return ENAMETOOLONG;
    bool absolute = path.data[0] == '/';
    int n = snprintf(to, PATH_MAX, "%s%s%.*s", absolute ? "" : fs->workdir, absolute ? "" : "/", (int)path.size, (const char *)path.data);
    return n < PATH_MAX ? 0 : ENAMETOOLONG;
}

int rename_as(int from, const char *name, int to, const char *new_name, unsigned flags)
{
    return (int)syscall(SYS_renameat2, from, name, to, new_name, flags);
}

bool split_path(const char *path, char directory[PATH_MAX], char name[NAME_MAX + 1])
{
    const char *slash = strrchr(path, '/');
    size_t size = (size_t)(slash - path);

    if (!slash[1] || !strcmp(slash, "/.") || !strcmp(slash, "/..") || strlen(slash + 1) > NAME_MAX)
        return false;
    memcpy(directory, path, size ? size : 1);
    directory[size ? size : 1] = 0;
    memcpy(name, slash + 1, strlen(slash + 1) + 1);
    return true;
}

int temp_letters(char to[7])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    unsigned char random[6];

    if (getrandom(random, sizeof random, 0) != sizeof random)
        return errno;
    for (size_t i = 0; i < sizeof random; i++)
        to[i] = letters[random[i] % 32];
    to[sizeof random] = 0;
    return 0;
}

int make_directories(const char *path)
{
    char part[PATH_MAX];
    struct stat st;

    for (const char *end = path; *end;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        memcpy(part, path, (size_t)(end - path));
        part[end - path] = 0;
        if (mkdir(part, 0755) == 0)
            continue;
        int err = errno;
        if (stat(part, &st) < 0)
            return err;
        if (!S_ISDIR(st.st_mode))
            return ENOTDIR;
    }
    return 0;
}

static const char *type_name(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR: return "dir";
    case S_IFLNK: return "link";
    case S_IFIFO: return "fifo";
    case S_IFSOCK: return "socket";
    case S_IFCHR: return "char";
    case S_IFBLK: return "block";
    default: return "file";
    }
}

static bool changed(const char *path, struct stat *last)
{
    struct stat now = {0};

    if (stat(path, &now) < 0)
        now = (struct stat){0};
    bool same = now.st_ino == last->st_ino && now.st_size == last->st_size && now.st_mtim.tv_sec == last->st_mtim.tv_sec &&
                now.st_mtim.tv_nsec == last->st_mtim.tv_nsec;
    *last = now;
    return !same;
}

static void names_refresh(struct names *n)
{
    bool passwd = changed("/etc/passwd", &n->passwd), group = changed("/etc/group", &n->group);

    if (passwd || group)
        n->count = n->next = 0;
}

static void put_name(struct fs *fs, struct buf *b, uint8_t tag, uint32_t id, bool group)
{
    struct names *n = &fs->names;
    unsigned i = 0;

    while (i < n->count && (n->entry[i].id != id || n->entry[i].group != group))
        i++;
    if (i == n->count) {
        i = n->next++ % NAMES;
        n->count = n->count < NAMES ? n->count + 1 : NAMES;
        n->entry[i].id = id;
        n->entry[i].group = group;
        n->entry[i].known = group ? group_name(id, n->entry[i].name) : user_name(id, n->entry[i].name);
    }
    if (n->entry[i].known)
        put_text(b, tag, n->entry[i].name);
}

void etag_of(const struct stat *st, char to[ETAG_SIZE])
{
    unsigned long long changed_at = (unsigned long long)st->st_ctim.tv_sec * 1000000000 + (unsigned long long)st->st_ctim.tv_nsec;

    snprintf(to, ETAG_SIZE, "%llx-%llx-%llx", (unsigned long long)st->st_ino, (unsigned long long)st->st_size, changed_at);
}

void put_info(struct fs *fs, struct buf *b, const char *path, const struct stat *st, const char *target)
{
    put_text(b, 1, path);
    put_text(b, 2, type_name(st->st_mode));
    put_int(b, 3, st->st_size);
    put_int(b, 4, st->st_mode & 07777);
    put_int(b, 5, st->st_uid);
    put_int(b, 6, st->st_gid);
    put_int(b, 7, st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec);
    if (target)
        put_text(b, 8, target);
    put_int(b, 9, (int64_t)st->st_ino);
    put_name(fs, b, 10, st->st_uid, false);
    put_name(fs, b, 11, st->st_gid, true);
    char etag[ETAG_SIZE];
    etag_of(st, etag);
    put_text(b, 12, etag);
}

static void reply_stat(struct fs *fs, uint32_t id, const char *path, bool follow)
{
    struct stat st;
    char target[PATH_MAX];
    ssize_t n = -1;

    if ((follow ? stat(path, &st) : lstat(path, &st)) < 0)
        return (void)fs_fail(fs, id, errno, path);
    if (S_ISLNK(st.st_mode))
        n = readlink(path, target, sizeof target - 1);
    if (n >= 0)
        target[n] = 0;
    names_refresh(&fs->names);
    fs_reply_info(fs, id, F_FINAL, path, &st, n >= 0 ? target : NULL);
}

static int do_mkdir(char *path, int64_t mode, bool parents)
{
    char directory[PATH_MAX], name[NAME_MAX + 1];
    struct stat st;

    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    if (parents && split_path(path, directory, name)) {
        int err = make_directories(directory);
        if (err)
            return err;
    }
    if (mkdir(path, (mode_t)mode) == 0)
        return 0;
    int err = errno;
    return err == EEXIST && parents && stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? 0 : err;
}

/* Text of a field as a string; false if it is too long or holds a NUL. */
static bool text(struct slice s, char *to, size_t size)
{
    if (s.size >= size || slice_has_nul(s))
        return false;
    memcpy(to, s.data, s.size);
    to[s.size] = 0;
    return true;
}

/* False: there is no such user or group, and the client has been told. */
static bool do_chown(struct fs *fs, const struct request *r, const char *path, struct slice owner, struct slice group, int *err)
{
    char name[NAME_SIZE] = "", group_name[NAME_SIZE] = "", message[USER_UNKNOWN_SIZE];
    struct user user = {.uid = (uid_t)-1};
    gid_t gid = (gid_t)-1;
    bool user_known = !owner.size || (text(owner, name, sizeof name) && user_find(name, &user));
    bool group_known = !group.size || (text(group, group_name, sizeof group_name) && group_find(group_name, &gid));

    if (!user_known || !group_known) {
        if (user_known)
            snprintf(message, sizeof message, "unable to find group %s: no matching entries in group file", group_name);
        else
            user_unknown(name, message);
        put_error(&fs->out, r->id, "INVALID_ARGUMENT", EINVAL, message);
        fs_send(fs);
        return false;
    }
    *err = chown(path, user.uid, gid) < 0 ? errno : 0;
    return true;
}

static int do_rename(const char *from, const char *to, bool no_replace)
{
    return rename_as(AT_FDCWD, from, AT_FDCWD, to, no_replace ? RENAME_NOREPLACE : 0) < 0 ? errno : 0;
}

/* Tag 3 is a number for some of these and bytes for others, so it is decoded per type. */
void fs_simple(struct fs *fs, const struct request *r)
{
    int64_t third = -1, flags = 0;
    struct slice bytes = {0}, group = {0};
    bool takes_bytes = r->type == T_RENAME || r->type == T_CHOWN || r->type == T_SYMLINK;
    struct want wants[] = {
        {3, takes_bytes ? NULL : &third, takes_bytes ? &bytes : NULL},
        {4, r->type == T_CHOWN ? NULL : &flags, r->type == T_CHOWN ? &group : NULL},
    };
    char path[PATH_MAX], target[PATH_MAX];
    bool follow = true;
    int err = 0;

    memcpy(path, r->path, sizeof path);
    if (!fields_decode(r->payload, wants, 2))
        return (void)fs_fail(fs, r->id, EINVAL, "fields");
    if (!takes_bytes && r->type != T_STAT && (third < -1 || third > 07777 || (third < 0 && r->type == T_CHMOD)))
        return (void)fs_fail(fs, r->id, EINVAL, "mode");
    switch (r->type) {
    case T_STAT:
        follow = third < 0 || !(third & 1);
        break;
    case T_MKDIR:
        err = do_mkdir(path, third < 0 ? 0755 : third, flags & 1);
        break;
    case T_CHMOD:
        err = chmod(path, (mode_t)third) < 0 ? errno : 0;
        break;
    case T_CHOWN:
        if (!do_chown(fs, r, path, bytes, group, &err))
            return;
        break;
    case T_SYMLINK:
        err = !bytes.size || !text(bytes, target, sizeof target) ? EINVAL : symlink(target, path) < 0 ? errno : 0;
        follow = false;
        break;
    case T_RENAME:
        err = fs_path(fs, bytes, target);
        err = err ? err : do_rename(path, target, flags & 1);
        if (!err)
            memcpy(path, target, sizeof path);
        follow = false;
        break;
    default:
        err = EINVAL;
    }
    if (err)
        return (void)fs_fail(fs, r->id, err, path);
    reply_stat(fs, r->id, path, follow);
}
