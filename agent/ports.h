/* TCP ports of the sandbox: who listens, and connections to them. */
#ifndef PORTS_H
#define PORTS_H

#include "conn.h"

/* Each serves the request; false: malformed. */
bool ports_list(struct conn *c, const struct frame *f);
bool port_dial(struct conn *c, const struct frame *f);

#endif
