/* What the system call getdents64 fills in: not every C library has a name for it. */
#ifndef GETDENTS_H
#define GETDENTS_H

#include <stdint.h>

struct linux_dirent64 {
    uint64_t d_ino;
    int64_t d_off;
    unsigned short d_reclen;
    unsigned char d_type;
    char d_name[];
};

#endif
