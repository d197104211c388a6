/* From errno to the protocol's codes. */
#include "base/errors.h"

#include <errno.h>
#include <string.h>

const char *error_code(int err)
{
    switch (err) {
    case ENOENT: return "FILE_NOT_FOUND";
    case EACCES: case EPERM: return "PERMISSION_DENIED";
    case EISDIR: return "IS_A_DIRECTORY";
    case ENOTDIR: return "NOT_A_DIRECTORY";
    case NOT_A_FILE_ERRNO: return "NOT_A_FILE";
    case EEXIST: return "ALREADY_EXISTS";
    case ENOTEMPTY: return "NOT_EMPTY";
    case ENOSPC: case EDQUOT: return "DISK_FULL";
    case CONFLICT_ERRNO: return "CONFLICT";
    case EROFS: return "READ_ONLY";
    case ELOOP: case ENAMETOOLONG: case EINVAL: case E2BIG: case ENOEXEC: return "INVALID_ARGUMENT";
    case EMFILE: case ENFILE: case EAGAIN: case ENOMEM: return "QUOTA_EXCEEDED";
    case EXDEV: case ENOSYS: case EOPNOTSUPP: return "UNSUPPORTED";
    default: return "IO_ERROR";
    }
}

const char *error_text(int err)
{
    if (err == NOT_A_FILE_ERRNO)
        return "not a regular file";
    if (err == CONFLICT_ERRNO)
        return "it has changed";
    return strerror(err);
}
