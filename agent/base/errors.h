/* The protocol's error codes. */
#ifndef ERRORS_H
#define ERRORS_H

#define NOT_A_FILE_ERRNO ENXIO /* what opening a socket gives; used for every file that is not a regular file */
#define CONFLICT_ERRNO ECANCELED /* an errno that no file operation gives */

/* The code for an errno of a file operation. */
const char *error_code(int err);
/* A short description of it. */
const char *error_text(int err);

#endif
