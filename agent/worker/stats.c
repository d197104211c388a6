/* STATS: disk, network and process counts as the sandbox sees them. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "worker/worker.h"

/* Lines "  name: rx_bytes packets … (8 numbers) tx_bytes …"; loopback does not count. */
static void net_bytes(int64_t *rx, int64_t *tx)
{
    char line[512], name[64];
    FILE *f = fopen("/proc/net/dev", "re");

    if (!f)
        return;
    while (fgets(line, sizeof line, f)) {
        long long in, out;
        if (sscanf(line, " %63[^:]: %lld %*d %*d %*d %*d %*d %*d %*d %lld", name, &in, &out) != 3 || !strcmp(name, "lo"))
            continue;
        *rx += in;
        *tx += out;
    }
    fclose(f);
}

static int64_t process_count(void)
{
    int64_t count = 0;
    DIR *proc = opendir("/proc");

    if (!proc)
        return 0;
    for (struct dirent *d; (d = readdir(proc));)
        count += d->d_name[0] >= '1' && d->d_name[0] <= '9';
    closedir(proc);
    return count;
}

void fs_stats(struct fs *fs, const struct request *r)
{
    struct statvfs disk;
    int64_t rx = 0, tx = 0;

    if (statvfs(fs->workdir, &disk) < 0)
        return (void)fs_fail(fs, r->id, errno, fs->workdir);
    net_bytes(&rx, &tx);
    size_t mark = frame_begin(&fs->out, r->id, T_REPLY, F_FINAL);
    put_int(&fs->out, 1, (int64_t)(disk.f_blocks * disk.f_frsize));
    put_int(&fs->out, 2, (int64_t)((disk.f_blocks - disk.f_bfree) * disk.f_frsize));
    put_int(&fs->out, 3, rx);
    put_int(&fs->out, 4, tx);
    put_int(&fs->out, 5, process_count());
    frame_end(&fs->out, mark);
    fs_send(fs);
}
