/* The protocol's error codes. */
#ifndef ERRORS_H
#define ERRORS_H

#define NOT_A_FILE_ERRNO ENXIO /* what opening a socket gives; used for every file that is no regular one */
#define CONFLICT_ERRNO ECANCELED /* what no file operation gives */

/* The code for an errno of a file operation. */
const char *error_code(int err);
/* A word on it. */
const char *error_text(int err);

#endif
