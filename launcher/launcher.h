/* What the files of the launcher share. */
#ifndef LAUNCHER_H
#define LAUNCHER_H

#include <sys/types.h>

#define ID_COUNT 65536
#define MAX_LAYERS 64
#define MAX_JOINS 16
#define MAX_PARTS 64
#define MAX_VOLUMES 64

/* <sys/mount.h>, which declares it, cannot be included together with <linux/mount.h>. */
int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data);

/* A directory or file of the machine in the sandbox; tree: its mount, in no place yet. */
struct part {
    char *path, *source;
    int shared, tree;
};

struct plan {
    unsigned ids;
    pid_t parent;
    const char *mask, *upper, *scratch, *root, *empty, *userns, *netns, *inotify;
    char *oom, *words;
    int go;
    unsigned long files;
    int unsynced;
    const char *lower[MAX_LAYERS];
    int lowers;
    const char *join[MAX_JOINS];
    int joins;
    struct part agent, part[MAX_PARTS];
    int parts;
    char *volume[MAX_VOLUMES];
    int volumes;
    int log;
};

/* The process that makes the sandbox's namespaces and holds them until they are mounted where the runtime will look. */
struct holder {
    pid_t pid;
    int hear, tell;
};

/* launcher.c */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);
/* Ends with a failure that the sandbox's own files have caused. */
__attribute__((noreturn, format(printf, 1, 2))) void refuse(const char *format, ...);
void write_file(const char *path, const char *text);

/* namespaces.c */
void read_caps(void);
void restore_caps(void);
int hears(int fd);
int begin_namespaces(const struct plan *plan, struct holder *holder);
void finish_namespaces(const struct plan *plan, struct holder *holder);

/* mounts.c */
int open_directory(const char *path);
void open_parts(struct plan *plan);
void own_devices(const struct plan *plan);
void mount_runtime(const char *runtime);
void mount_root(const struct plan *plan, int userns);
void mount_volume(const struct plan *plan, int root, char *volume, int userns);
void mount_parts(const struct plan *plan, int root);

#endif
