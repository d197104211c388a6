/* PACK: a tree stream on the wire, as far as credit goes. */
#include <errno.h>
#include <stdlib.h>

#include "link/conn.h"
#include "tree/trees.h"

#define MOST (RECORD_HEAD + OFFSET_SIZE + CHUNK) /* of one frame */

enum { PACK_TOTALS = 1, PACK_NO_CONTENT = 2 };

struct packing {
    struct job job;
    struct packer packer;
    uint64_t sent;
};

static void greet(struct fs *fs, struct packing *p, const struct tally *totals)
{
    size_t mark = frame_begin(&fs->out, p->job.id, T_REPLY, 0);

    put_info(fs, &fs->out, p->packer.path, &p->packer.root, NULL);
    if (totals) {
        put_int(&fs->out, 13, totals->entries);
        put_int(&fs->out, 14, p->packer.sizes);
    }
    frame_end(&fs->out, mark);
    fs_send(fs);
}

static bool pack_step(struct fs *fs, struct job *job)
{
    struct packing *p = (struct packing *)job;
    struct packer *packer = &p->packer;
    size_t waiting = buf_size(&packer->out);

    /* Within a file a frame is one CONTENT, so that both ends write whole pages. */
    if (waiting < (packer->file >= 0 ? 1 : ENOUGH) && !packer->done) {
        int err = packer_fill(packer, fs->io);
        if (err)
            return fs_fail(fs, job->id, err, *packer->walk.path ? packer->walk.path : packer->path);
        waiting = buf_size(&packer->out);
    }
    if (packer->counting && packer->done) {
        greet(fs, p, &packer->tally);
        packer_rewind(packer);
        return true;
    }
    size_t size = waiting < MOST ? waiting : MOST;
    if (size > job->credit)
        size = (size_t)job->credit;
    if (size) {
        put_data_head(&fs->out, job->id, 0, p->sent, size);
        buf_put(&fs->out, buf_front(&packer->out), size);
        fs_send(fs);
        buf_consume(&packer->out, size);
        job->credit -= size;
        p->sent += size;
    }
    job->stalled = waiting && !size;
    if (!packer->done || buf_size(&packer->out))
        return true;
    put_data_head(&fs->out, job->id, F_END, p->sent, 0);
    fs_send(fs);
    size_t mark = frame_begin(&fs->out, job->id, T_REPLY, F_FINAL);
    put_info(fs, &fs->out, packer->path, &packer->root, NULL);
    put_tally(&fs->out, &packer->tally);
    frame_end(&fs->out, mark);
    fs_send(fs);
    return false;
}

static void pack_free(struct job *job)
{
    packer_close(&((struct packing *)job)->packer);
    free(job);
}

static const struct job_ops pack_ops = {pack_step, NULL, pack_free};

void fs_pack(struct fs *fs, const struct request *r)
{
    int64_t flags = 0, max_size = -1;
    struct want wants[] = {{3, &flags, NULL}, {5, &max_size, NULL}};

    if (!fields_decode(r->payload, wants, 2))
        return (void)fs_fail(fs, r->id, EINVAL, "fields");
    struct packing *p = calloc(1, sizeof *p);
    if (!p)
        return (void)fs_fail(fs, r->id, ENOMEM, r->path);
    int err = packer_open(&p->packer, r->path);
    if (err) {
        pack_free(&p->job);
        return (void)fs_fail(fs, r->id, err, r->path);
    }
    p->packer.max_size = max_size;
    p->packer.no_content = flags & PACK_NO_CONTENT;
    p->packer.counting = flags & PACK_TOTALS;
    struct slice rest = r->payload, value;
    uint8_t tag;
    while (field_next(&rest, &tag, &value) > 0)
        if (tag == 4)
            put_bytes(&p->packer.options, 4, value.data, value.size);
    fs_add_job(fs, &p->job, r->id, &pack_ops);
    if (!p->packer.counting)
        greet(fs, p, NULL);
}
