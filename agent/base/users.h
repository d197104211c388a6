/* Users and groups of the sandbox, from its /etc/passwd and /etc/group, which its root may have made hostile. */
#ifndef USERS_H
#define USERS_H

#include <stdbool.h>
#include <sys/types.h>

#define NAME_SIZE 64
#define USER_UNKNOWN_SIZE (NAME_SIZE + 64)
#define MAX_GROUPS 32

struct user {
    uid_t uid;
    gid_t gid;
    char name[NAME_SIZE], home[256];
    gid_t groups[MAX_GROUPS];
    int group_count;
};

/* By name or number. "root" and "user" exist without an entry, and so does every number. */
bool user_find(const char *spec, struct user *user);
/* What to say of one that is not found, in the words that other runtimes have for it. */
void user_unknown(const char *spec, char message[USER_UNKNOWN_SIZE]);
bool group_find(const char *spec, gid_t *gid);
/* Names of ids; false where there is none. */
bool user_name(uid_t uid, char name[NAME_SIZE]);
bool group_name(gid_t gid, char name[NAME_SIZE]);

#endif
