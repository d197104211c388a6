/* Processes: the table, their output rings, their input, and who is attached. */
#ifndef PROC_H
#define PROC_H

#include "link/conn.h"
#include "base/loop.h"
#include "base/ring.h"
#include "base/users.h"

enum { START_FOREGROUND = 1, START_STDIN = 2, START_TERMINAL = 4 };
enum proc_state {
    P_STARTING, /* the supervisor has not reported yet */
    P_RUNNING,
    P_ENDING, /* the main process has ended; its last output is being read */
    P_ENDED,
};
enum kill_reason { KILL_NONE, KILL_TIMEOUT, KILL_CANCEL, KILL_TREE };

struct proc;

/* One output pipe, or a terminal, of which `slave` is the other end (0: a pipe, or closed). */
struct output {
    struct watch watch;
    struct proc *proc;
    int channel, slave;
    enum { OUT_LIVE, OUT_LAST, OUT_DONE } state; /* LAST: `left` bytes more; DONE: nothing more is kept */
    bool close_when_done, stuck;                 /* stuck: no memory until the controller has taken some */
    uint64_t left;
    struct ring ring;
};

/* The input pipe. Bytes of a former controller come first in the buffer and earn the present one no credit. */
struct input {
    struct watch watch;
    struct buf buffer;
    size_t foreign;
    bool ended;
};

struct attach {
    struct stream stream;
    struct proc *proc;
    struct attach *next;
    bool view, announced, input_ended, until_gone;
    bool replaced, resized; /* news that a notice will tell */
    bool ended[2];
    int turn;
    uint64_t pos[2], credit[2];
    uint64_t input_credit, input_owed;
};

struct proc {
    struct proc *next;
    int64_t id;
    pid_t pid, supervisor; /* supervisor: 0 once it has been reaped */
    struct watch reports;
    enum proc_state state;
    bool foreground, listed, killed_by_us, exited;
    bool lost;      /* the supervisor is dead, and what it left comes to us */
    bool disturbed; /* something stopped the supervisor */
    bool pressed;   /* the supervisor had its time to kill the tree */
    enum kill_reason killing;
    int64_t started_ms, started_us, duration_us, ended_order;
    int64_t wake; /* ms, 0: none; what for depends on the state */
    int oom_checks;
    int64_t oom_open, oom_kills; /* kills while it ran that may have been its own, and those that were; see oom.c */
    int orphans_killed;          /* these two as in a report */
    int64_t peak;
    int wait_status;
    const char *status; /* NULL while it runs */
    char user[NAME_SIZE], cwd[256];
    struct buf argv; /* as fields, for the listing; cut */
    int cols, rows; /* of a terminal; 0: not a terminal */
    struct output out[2];
    struct input in;
    struct attach *attached, *controller, *owner; /* owner: the stream of a FOREGROUND start */
};

bool proc_start(struct conn *c, const struct frame *f);
bool proc_signal(struct conn *c, const struct frame *f);
bool procs_list(struct conn *c, const struct frame *f);
bool proc_attach(struct conn *c, const struct frame *f);
bool proc_resize(struct conn *c, const struct frame *f);

/* spawn.c: checks the request and forks; NULL: an ERROR has been queued, or (`malformed`) the frame is bad. */
struct spawned {
    struct proc *proc;
    int64_t timeout_ms, window;
    bool malformed;
};
struct spawned proc_spawn(struct conn *c, const struct frame *f);

struct proc *proc_find(int64_t id);
/* Gives its supervisor an order; false: the supervisor does not listen. */
bool proc_order(struct proc *p, int kind, int sig);
void proc_kill(struct proc *p, enum kill_reason reason);
/* Moves it on when its output is complete, and frees it when nobody needs it any more. */
void proc_settle(struct proc *p);
void proc_supervisor_reaped(struct proc *p);
/* Whether it has not ended yet though its supervisor is dead and reaped; then call proc_tree_ended. */
bool proc_is_lost(const struct proc *p);
void proc_tree_ended(struct proc *p);
void proc_touch(struct proc *p);
void proc_free(struct proc *p);
void put_exit(struct buf *b, const struct proc *p, uint8_t code_tag, uint8_t signal_tag);

/* When the next timer is due (-1: none), and running those that are. */
int64_t procs_next_wake(void);
void procs_run_timers(void);
/* Asks every tree to end, as closing a window does for a terminal. */
void procs_terminate(void);
/* Whether all processes are gone and every attached client knows. */
bool procs_gone(void);
/* Takes in dead children, wakes those that were stopped, and kills what a dead supervisor has left to us. */
void procs_reap(void);
bool procs_kill_orphans(void);
/* Forgets the ended process that ended first; false: there is none. */
bool procs_drop_oldest(void);

void output_init(struct output *o, struct proc *p, int channel, int fd);
/* Starts or stops waiting for output, as the ring and the controller allow. */
void output_update(struct output *o);
/* Only what is in the pipe now still counts. */
void output_last(struct output *o, bool close_when_done);
/* Reads on in a terminal whose process has ended. */
void output_drain(struct output *o);
void output_close(struct output *o);

/* terminal.c: opens a pseudo-terminal that the user owns; of `pipes` (see spawn.c) it sets [0][0] and [1]. */
bool terminal_size_valid(int64_t cols, int64_t rows);
bool terminal_open(int pipes[3][2], const struct user *user, int cols, int rows);
/* Tells a client what has changed about its terminal; false: nothing has. */
bool terminal_notice(struct attach *a);

void input_init(struct input *in, int fd);
void input_write(struct proc *p, struct slice bytes, bool end);
void input_close(struct input *in);

struct attach *attach_new(struct conn *c, uint32_t stream, struct proc *p, int64_t window);
/* A viewer that gets only an empty REPLY once nothing is left: the answer to a client that kills a tree. */
bool attach_until_gone(struct conn *c, uint32_t stream, struct proc *p);
void attach_control(struct attach *a);
void attach_remove(struct attach *a);
void attach_repay(struct attach *a, size_t bytes);

/* oom.c: looks at the kernel's count; called before a process joins the table. */
void oom_look(void);
/* Finds out which kills were in its tree; called at the end of its main process. */
void oom_settle(struct proc *p);
/* Whether something died as the kernel kills for want of memory, so that the count must rise if it was that. */
bool oom_suspected(const struct proc *p);

#endif
