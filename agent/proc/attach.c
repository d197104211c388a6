/* Attachments: a stream of a client joined to a process, to control it or to watch. */
#include <stdlib.h>

#include "agent.h"
#include "proc/proc.h"

#define REPAY_AT 32768       /* input credit goes back in steps of at least this */
#define INPUT_MAX (1u << 20) /* buffered input, from any client */
enum { ATTACH_VIEW = 1 };

void attach_repay(struct attach *a, size_t bytes)
{
    a->input_owed += bytes;
    if (a->input_owed < REPAY_AT)
        return;
    put_credit(&a->stream.conn->out, a->stream.id, 0, (uint32_t)a->input_owed);
    a->input_credit += a->input_owed;
    a->input_owed = 0;
    conn_touch(a->stream.conn);
}

static bool on_data(struct attach *a, const struct frame *f)
{
    uint64_t offset;
    struct slice bytes;
    struct proc *p = a->proc;

    if (!data_decode(f->payload, &offset, &bytes) || (f->flags & F_CHANNEL) != 0)
        return false;
    if (a->view || a->input_ended || bytes.size > a->input_credit)
        return false;
    a->input_credit -= bytes.size;
    a->input_ended = f->flags & F_END;
    if (p->controller != a) { /* another client took over, and this one does not know yet */
        attach_repay(a, bytes.size);
        return true;
    }
    if (buf_size(&p->in.buffer) + bytes.size > INPUT_MAX) { /* what earlier controllers sent waits there too */
        conn_error(a->stream.conn, a->stream.id, "QUOTA_EXCEEDED", 0, "the process does not read its input");
        attach_remove(a);
        return true;
    }
    input_write(p, bytes, (f->flags & F_END) && !p->cols);
    return true;
}

static bool on_frame(struct stream *s, const struct frame *f)
{
    struct attach *a = container_of(s, struct attach, stream);
    uint32_t amount;

    if (f->type == T_DATA)
        return on_data(a, f);
    if (!credit_decode(f->payload, &amount))
        return false;
    int channel = f->flags & F_CHANNEL;
    if (channel != 1 && channel != 2)
        return false;
    a->credit[channel - 1] += amount;
    conn_touch(s->conn);
    return true;
}

static void on_drop(struct stream *s)
{
    struct attach *a = container_of(s, struct attach, stream);
    struct proc *p = a->proc;
    bool owner = p->owner == a;

    attach_remove(a);
    if (owner && p->state != P_ENDED)
        proc_kill(p, KILL_CANCEL);
    proc_settle(p);
}

static bool send_output(struct attach *a, int channel)
{
    struct output *o = &a->proc->out[channel];
    struct iovec piece[2];

    if (a->ended[channel])
        return false;
    if (a->pos[channel] < o->ring.start)
        a->pos[channel] = o->ring.start;
    uint64_t size = o->ring.end - a->pos[channel];
    if (!size && a->proc->state == P_ENDED) { /* not at once when the pipe ends: END and exit share a write */
        put_data_head(&a->stream.conn->out, a->stream.id, (uint8_t)(channel + 1) | F_END, a->pos[channel], 0);
        a->ended[channel] = true;
        return true;
    }
    if (size > a->credit[channel])
        size = a->credit[channel];
    if (size > CHUNK)
        size = CHUNK;
    if (!size)
        return false;
    int pieces = ring_slices(&o->ring, a->pos[channel], (size_t)size, piece);
    conn_data(a->stream.conn, a->stream.id, (uint8_t)(channel + 1), a->pos[channel], piece, pieces);
    a->pos[channel] += size;
    a->credit[channel] -= size;
    if (a->proc->controller == a) {
        o->stuck = false;
        output_update(o);
    }
    return true;
}

static bool on_pull(struct stream *s)
{
    struct attach *a = container_of(s, struct attach, stream);
    struct proc *p = a->proc;

    if (a->until_gone && p->state >= P_ENDING) {
        frame_end(&s->conn->out, frame_begin(&s->conn->out, s->id, T_REPLY, F_FINAL));
        attach_remove(a);
        proc_settle(p);
        return true;
    }
    if (!a->announced)
        return false;
    if (terminal_notice(a))
        return true;
    a->turn = !a->turn;
    if (send_output(a, a->turn) || send_output(a, !a->turn))
        return true;
    if (p->state != P_ENDED || !a->ended[0] || !a->ended[1])
        return false;
    struct buf *b = &s->conn->out;
    size_t mark = frame_begin(b, s->id, T_REPLY, F_FINAL);
    put_exit(b, p, 1, 2);
    put_text(b, 3, p->status);
    put_int(b, 4, p->duration_us);
    put_int(b, 5, (int64_t)p->out[0].ring.end);
    put_int(b, 6, (int64_t)p->out[1].ring.end);
    put_int(b, 7, p->oom_kills);
    frame_end(b, mark);
    attach_remove(a);
    proc_settle(p);
    return true;
}

static const struct stream_ops attach_ops = {on_frame, on_drop, on_pull};

struct attach *attach_new(struct conn *c, uint32_t stream, struct proc *p, int64_t window)
{
    struct attach *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->proc = p;
    a->credit[0] = a->credit[1] = window > 0 ? (uint64_t)window : 0;
    a->input_credit = INPUT_WINDOW;
    a->next = p->attached;
    p->attached = a;
    stream_open(&a->stream, c, stream, &attach_ops);
    return a;
}

bool attach_until_gone(struct conn *c, uint32_t stream, struct proc *p)
{
    struct attach *a = attach_new(c, stream, p, 0);

    if (a)
        a->view = a->until_gone = true;
    return a;
}

void attach_control(struct attach *a)
{
    struct proc *p = a->proc;

    if (p->controller)
        p->controller->replaced = true;
    proc_touch(p);
    p->controller = a;
    p->in.foreign = buf_size(&p->in.buffer);
    for (int i = 0; i < 2; i++)
        output_update(&p->out[i]);
}

void attach_remove(struct attach *a)
{
    struct proc *p = a->proc;
    struct attach **at = &p->attached;

    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    if (p->owner == a)
        p->owner = NULL;
    if (p->controller == a) {
        idle_touch();
        p->controller = NULL;
        p->in.foreign = buf_size(&p->in.buffer);
        for (int i = 0; i < 2; i++) {
            p->out[i].stuck = false;
            output_update(&p->out[i]);
        }
    }
    stream_end(&a->stream);
    free(a);
}

/* Where an attachment starts: what was asked for, or the oldest byte that is left. */
static bool start_at(const struct ring *r, int64_t since, uint64_t *pos)
{
    if (since < -1 || (since >= 0 && (uint64_t)since > r->end))
        return false;
    *pos = since < 0 ? r->end : (uint64_t)since;
    if (*pos < r->start)
        *pos = r->start;
    return true;
}

bool proc_attach(struct conn *c, const struct frame *f)
{
    int64_t id = 0, since[2] = {0}, window = DEFAULT_WINDOW, flags = 0;
    uint64_t pos[2];
    struct want wants[] = {{1, &id, NULL}, {2, &since[0], NULL}, {3, &since[1], NULL}, {6, &window, NULL}, {7, &flags, NULL}};

    if (!fields_decode(f->payload, wants, 5))
        return false;
    struct proc *p = proc_find(id);
    if (!p) {
        conn_error(c, f->stream, "PROCESS_NOT_FOUND", 0, "no process with this id");
        return true;
    }
    if (!start_at(&p->out[0].ring, since[0], &pos[0]) || !start_at(&p->out[1].ring, since[1], &pos[1]) || window < 0) {
        conn_error(c, f->stream, "INVALID_ARGUMENT", 0, "an offset beyond the end of the output, or a negative window");
        return true;
    }
    if (p->foreground && !(flags & ATTACH_VIEW)) {
        conn_error(c, f->stream, "INVALID_ARGUMENT", 0, "a foreground process belongs to its client; it can only be viewed");
        return true;
    }
    struct attach *a = attach_new(c, f->stream, p, window);
    if (!a) {
        c->dead = true;
        return true;
    }
    a->view = flags & ATTACH_VIEW;
    a->announced = true;
    a->pos[0] = pos[0];
    a->pos[1] = pos[1];
    if (!a->view)
        attach_control(a);
    size_t mark = frame_begin(&c->out, f->stream, T_REPLY, 0);
    put_int(&c->out, 1, p->id);
    put_int(&c->out, 2, p->pid);
    put_int(&c->out, 3, p->started_ms);
    put_int(&c->out, 4, (int64_t)pos[0]);
    put_int(&c->out, 5, (int64_t)pos[1]);
    if (p->cols) {
        put_int(&c->out, 6, p->cols);
        put_int(&c->out, 7, p->rows);
    }
    frame_end(&c->out, mark);
    return true;
}
