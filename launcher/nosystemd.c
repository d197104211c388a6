/* A libsystemd in which every function fails.
 *
 * crun is linked to libsystemd for cgroups and a journal that Skerry does not use. libsystemd brings libraries for compression
 * and cryptography, and loading all these takes crun longer than anything else it does at a create. The launcher makes crun load
 * this one in its place, if it has all the names that crun needs (`launch.py` checks); nosystemd.map has their versions.
 */
#include <errno.h>

#define FAILS(name) \
    int name(void); \
    int name(void) { return -ENOSYS; }

FAILS(sd_bus_call)
FAILS(sd_bus_default_system)
FAILS(sd_bus_default_user)
FAILS(sd_bus_error_free)
FAILS(sd_bus_error_get_errno)
FAILS(sd_bus_match_signal_async)
FAILS(sd_bus_message_append)
FAILS(sd_bus_message_append_array)
FAILS(sd_bus_message_append_basic)
FAILS(sd_bus_message_append_strv)
FAILS(sd_bus_message_close_container)
FAILS(sd_bus_message_new_method_call)
FAILS(sd_bus_message_open_container)
FAILS(sd_bus_message_read)
FAILS(sd_bus_message_unref)
FAILS(sd_bus_process)
FAILS(sd_bus_unref)
FAILS(sd_bus_wait)
FAILS(sd_journal_send_with_location)
FAILS(sd_notify)
FAILS(sd_notify_barrier)
