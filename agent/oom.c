/* The kernel's count of processes it has killed for want of memory. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "proc.h"

/* -1 where there is no counter. Both memory.oom_control and memory.events have a line "oom_kill N". */
int64_t oom_count(void)
{
    char text[1024] = "\n";

    if (agent.oom_fd < 0)
        return -1;
    ssize_t n = pread(agent.oom_fd, text + 1, sizeof text - 2, 0);
    if (n <= 0)
        return -1;
    text[n + 1] = 0;
    const char *line = strstr(text, "\noom_kill ");
    return line ? strtoll(line + strlen("\noom_kill "), NULL, 10) : -1;
}
