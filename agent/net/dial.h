/* Connections to TCP ports of the sandbox. */
#ifndef DIAL_H
#define DIAL_H

#include "link/conn.h"

/* Serves a DIAL; false: malformed. */
bool port_dial(struct conn *c, const struct frame *f);

#endif
