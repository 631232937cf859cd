/* The engine's own structures.
 *
 * A request's tokens live in `known`: prompt, answer, forced spans, in row order. Its sequence has rows for a beginning of them;
 * what is not run yet is `pending`. Everything that a step does with a request follows from these two counts:
 *     pending > 1   a prompt or a forced span: the next chunk of it
 *     pending == 1  the token drawn last: one row, with drafts behind it
 *     pending == 0  the whole prompt came from the cache: its last hidden row gives the logits
 *
 * Invariants
 * 1. A token is drawn from logits, context and row number alone; what else is in the step never enters.
 * 2. known[0..sequence_rows) are the sequence's tokens.
 * 3. `waiting` and `cancelled` are touched by any thread, everything else by the stepping one. */
#ifndef ENGINE_INSIDE_H
#define ENGINE_INSIDE_H
#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "cache/tree.h"
#include "engine/engine.h"
#include "engine/reply.h"
#include "engine/sampler.h"
#include "engine/schedule.h"

enum { SNAPSHOTS_PER_CHUNK = 16, MOST_TAPS = 64 };

enum request_state { REQUEST_WAITING, REQUEST_RUNNING, REQUEST_FINISHING, REQUEST_DONE };

/* The adapters of a request or a sequence. */
struct adapter_choice {
    struct adapter_set *set;            /* NULL: none */
    uint64_t hash;                      /* 0: none */
    const char *names;                  /* "shout=1,short=0.5", "" for none */
};

struct weft_sequence {
    struct weft_engine *engine;
    struct sequence *seq;
    size_t reserved_bytes;
    int max_rows;
    struct adapter_choice adapters;
};

struct drafter;
struct draft_state;

struct weft_request {
    struct weft_request *next;          /* waiting list */
    struct weft_engine *engine;
    enum request_state state;
    atomic_int cancelled;
    struct weft_request_options o;      /* pointers are into the request's own memory */
    struct arena arena;                 /* copies of what `o` points to, and the fixed buffers below */

    int32_t *known; int n_known, n_prompt, room;
    int max_tokens;                     /* what was granted; with the prompt within the context */
    const int64_t *keys;                /* [n_prompt] identities of embedding rows, or NULL */
    int n_session;                      /* rows of the session that the prompt follows */
    struct adapter_choice adapters;

    struct sequence *seq;
    size_t reserved_bytes;
    int n_cached, n_generated;
    int started_answer;                 /* the whole prompt is in the sequence and its logits were used */
    struct reply *reply;                /* text, marks, stop texts */
    struct weft_logprob *top;           /* [logprobs] */
    struct weft_result result;
    struct weft_error failure;          /* ends the request at the end of the step */
    float *last_hidden; int has_last_hidden; /* [hidden], for a session that is saved */
    double submitted_ms, started_ms, first_ms, last_ms;

    struct draft_state *draft;          /* NULL: no drafting for this one */
    int32_t drafts[WEFT_DRAFT_MAX]; int n_drafts; /* of the present step */
};

/* What of a request is in the present step. */
struct part {
    struct weft_request *request;
    int at_end;                         /* the rows reach the end of what is known: there are logits */
    int logits0, hidden0;               /* first row of its logits and hidden rows in the batch, -1: none */
    struct snapshot *snapshots[SNAPSHOTS_PER_CHUNK]; int n_snapshots;
    int snapshot_rows[SNAPSHOTS_PER_CHUNK];
    int rows_before;
    int keep;
};

struct weft_engine {
    struct weft_model *handle;
    struct model *model;
    struct weft_engine_options o;       /* every 0 filled in */
    struct cache *cache;
    struct tree *tree;                  /* NULL: no prefix cache */
    struct sampler *sampler;
    uint8_t *is_attention;              /* [n_layers] */
    struct snapshot_rule rule;
    int hidden, vocab, context;
    int32_t *keep_tokens; int n_keep_tokens; /* newline and end tokens */
    struct token_list forced_end;       /* tokens that end reasoning */

    pthread_mutex_t lock; pthread_cond_t wake;
    struct weft_request *waiting, **waiting_tail; /* under lock */
    int n_waiting;

    struct weft_request **running; int n_running; /* [o.parallel] */
    struct schedule_limits limits;
    struct schedule_item *items; struct schedule_turn turn; /* [o.parallel] */
    struct part *parts; int n_parts;              /* [max_groups] */
    struct group *groups; int *keeps;             /* [max_groups] */
    struct batch batch;
    struct weft_request **drafting;     /* [o.parallel] scratch */
    int32_t *positions;                 /* [3 * max_rows] scratch */
    float *cached_logits;               /* [vocab] */
    const float **tap_rows;             /* [max_groups][MOST_TAPS] */
    int max_undo_rows;
    int open;                           /* a step of weft_step waits for weft_commit */
    int stepping;                       /* inside weft_engine_step: callbacks may not step */

    const struct drafter *drafter; void *drafter_data; struct draft_control *control;
    void (*draft_hook)(void *arg, struct weft_request *r, int32_t *drafts, int n); void *draft_hook_arg;

    struct adapter_sets adapter_sets;
    size_t workspace_bytes;             /* of the model, as far as the budget has seen it: adapters make it grow */

    size_t reserved_bytes;              /* of cache_memory_bytes(cache) */
    struct weft_engine_stats stats;
};

/* ---- memory.c ---- */
/* What this process may still take, by the machine and by the limits it runs under. */
size_t memory_free_bytes(void);

/* ---- batch.c ---- */
/* Begins and runs a step of `groups`; after a failure nothing changed. */
int engine_forward(struct weft_engine *x, struct batch *b, struct weft_error *e);
/* The step of everything that runs. */
int engine_step_running(struct weft_engine *x, struct weft_error *e);

/* ---- admit.c ---- */
/* Moves waiting requests to the running ones as far as there is room. */
void engine_admit(struct weft_engine *x);
/* Bytes of a request with n_tokens tokens in all, and the refusal when so many can never be had. */
size_t engine_request_bytes(const struct weft_engine *x, int n_tokens);
int engine_check_fits(const struct weft_engine *x, int n_prompt, int max_tokens, struct weft_error *e);
int engine_reserve(struct weft_engine *x, size_t bytes);          /* 1: reserved */
void engine_release(struct weft_engine *x, size_t bytes);

/* ---- submit.c ---- */
int request_new(struct weft_request **out, struct weft_engine *x, const struct weft_request_options *o, struct weft_error *e);

/* ---- resume.c ---- */
struct score_input;
/* A sequence that goes on from in->session, with in's adapters and room for its tokens. */
int engine_resume_sequence(struct weft_sequence **out, struct weft_engine *x, const struct score_input *in, struct weft_error *e);
int engine_load_sequence(struct weft_engine *x, struct sequence **out, const char *path, uint64_t adapter_hash,
                         const char *adapters, struct weft_error *e);
int engine_save_sequence(struct weft_engine *x, struct sequence *s, const char *path, const char *adapters, struct weft_error *e);
/* Before a waiting request runs: its sequence from the session file; known tokens then begin with the session's. No sequence and
 * no error: there is no room for it yet. */
int request_load_session(struct weft_request *r, struct weft_error *e);
int request_save_session(struct weft_request *r, struct weft_error *e);

/* ---- request.c ---- */
void request_free(struct weft_request *r);
/* The whole prompt is in the sequence: what comes next is the answer. */
void request_begin_answer(struct weft_request *r);
int request_pending(const struct weft_request *r);
/* Draws the token after what is known from `logits` and takes it in. */
int request_draw(struct weft_request *r, const float *logits, int32_t *token, struct weft_error *e);
/* Ends it: publishes rows, saves the session, sends DONE, frees. `code` 0 with r->result.finish set, or an error. */
void request_finish(struct weft_request *r, int code, const struct weft_error *e);
int request_send(struct weft_request *r, struct weft_event *event); /* not 0: the caller's callback wants to cancel */

#endif
