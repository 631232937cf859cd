/* A second, smaller model with the same vocabulary drafts greedily.
 *
 * Its sequence of a request holds known tokens only. To draft it takes in what was drawn since, then goes on in a fork, since its
 * recurrent state cannot be cut back; the fork is thrown away. */
#include <string.h>

#include "base/mem.h"
#include "engine/draft.h"

struct second {
    struct model *model;
    struct cache *cache;
    struct group *groups;           /* [max_groups] */
    struct weft_request **owners;   /* [max_groups] */
    struct sequence **forks;        /* [max_groups] */
    struct batch batch;
    int32_t *tokens;                /* [max_groups] */
    int max_rows, max_groups, max_context;
    size_t reserved_bytes;
};

struct follower { struct sequence *seq; size_t reserved_bytes; };

static void second_close(struct weft_engine *x) {
    struct second *d = x->drafter_data;
    if (!d) return;
    cache_free(d->cache);
    mem_free(d->groups), mem_free(d->owners), mem_free(d->forks), mem_free(d->tokens);
    mem_free(d);
    x->drafter_data = NULL;
}

static int second_open(struct weft_engine *x, struct weft_error *e) {
    if (!x->o.draft_model) return error_set(e, WEFT_ERROR_INPUT, "drafter \"model\": there is no draft model");
    struct model *model = x->o.draft_model->model;
    int vocab = model_config(model)->vocab;
    if (vocab != x->vocab)
        return error_set(e, WEFT_ERROR_INPUT, "%s: the draft model has %d tokens, the model %d", x->o.draft_model->folder, vocab,
                         x->vocab);
    struct second *d = x->drafter_data = mem_new(1, sizeof *d);
    if (!d) return error_memory(e, "the drafter");
    const struct model_options *limits = model_limits(model);
    d->model = model, d->max_rows = limits->max_rows, d->max_groups = limits->max_groups, d->max_context = limits->max_context;
    if (d->max_groups > limits->max_logits) d->max_groups = limits->max_logits;
    struct cache_shape shape;
    model_cache_shape(model, &shape);
    /* x's cache left a fifth of the whole to this one */
    struct cache_options options = {.backend = model_backend(model), .memory_bytes = cache_memory_bytes(x->cache) / 4,
                                    .max_undo_rows = 1, .max_context_rows = d->max_context + WEFT_DRAFT_MAX + 1};
    int code = cache_new(&d->cache, &shape, &options, e);
    size_t n = (size_t)d->max_groups;
    d->groups = mem_new(n, sizeof *d->groups), d->owners = mem_new(n, sizeof *d->owners);
    d->forks = mem_new(n, sizeof *d->forks), d->tokens = mem_new(n, sizeof *d->tokens);
    if (!code && (!d->groups || !d->owners || !d->forks || !d->tokens)) code = error_memory(e, "the drafter");
    if (code) second_close(x);
    return code;
}

static size_t follower_bytes(const struct second *d, int n_tokens) {
    /* the sequence, and its fork's state and copied page */
    return cache_request_bytes(d->cache, n_tokens + WEFT_DRAFT_MAX + 1, 0) + cache_request_bytes(d->cache, 1, 0);
}

/* Where there is no room for its sequence a request just goes without drafts. */
static int second_start(struct weft_request *r, void **data, struct weft_error *e) {
    struct second *d = r->engine->drafter_data;
    struct follower *f = arena_new(&r->arena, 1, sizeof *f);
    if (!f) return error_memory(e, "the drafter");
    *data = f;
    size_t bytes = follower_bytes(d, r->n_prompt + r->max_tokens);
    if (r->keys || r->o.positions || r->n_prompt + r->max_tokens > d->max_context ||
        d->reserved_bytes + bytes > cache_memory_bytes(d->cache))
        return 0;
    int code = sequence_new(&f->seq, d->cache, e);
    if (code) return code;
    f->reserved_bytes = bytes, d->reserved_bytes += bytes;
    return 0;
}

static void second_finish(struct weft_request *r, void *data) {
    struct second *d = r->engine->drafter_data;
    struct follower *f = data;
    sequence_free(f->seq);
    d->reserved_bytes -= f->reserved_bytes;
    *f = (struct follower){NULL, 0};
}

static int run(struct second *d, struct weft_error *e) {
    int code = cache_begin(d->cache, &d->batch, e);
    if (code) return code;
    code = model_forward(d->model, d->cache, &d->batch, e);
    if (code) cache_abort(d->cache, &d->batch);
    else cache_commit(d->cache, &d->batch, NULL);
    return code;
}

static int second_warm(struct weft_engine *x, struct weft_error *e) {
    struct second *d = x->drafter_data;
    d->tokens[0] = 0;
    d->batch = (struct batch){.groups = d->groups, .n_groups = 1};
    d->groups[0] = (struct group){.n_rows = 1, .tokens = d->tokens, .n_logits = 1};
    int code = sequence_new(&d->groups[0].seq, d->cache, e);
    if (!code) code = run(d, e);
    sequence_free(d->groups[0].seq);
    return code;
}

/* One step of known tokens up to `end`. */
static int follow(struct second *d, struct weft_request *r, struct sequence *s, int end, struct weft_error *e) {
    int rows = sequence_rows(s), n = end - rows < d->max_rows ? end - rows : d->max_rows;
    d->groups[0] = (struct group){.seq = s, .n_rows = n, .tokens = r->known + rows};
    d->batch = (struct batch){.groups = d->groups, .n_groups = 1};
    return run(d, e);
}

static int second_read(struct weft_request *r, int end, struct weft_error *e) {
    struct second *d = r->engine->drafter_data;
    struct follower *f = draft_data(r);
    int code = 0;
    while (f->seq && !code && sequence_rows(f->seq) < end) code = follow(d, r, f->seq, end, e);
    return code;
}

static double second_behind(const struct weft_request *r) {
    enum { ROWS_A_GUESS = 6 }; /* rows of a step that take as long as a guess */
    const struct follower *f = draft_data(r);
    return f->seq ? (double)(r->n_known - 1 - sequence_rows(f->seq)) / ROWS_A_GUESS : 0;
}

static int take_guesses(struct weft_engine *x, struct second *d, int depth) {
    int n_groups = d->batch.n_groups, n = 0;
    for (int g = 0; g < n_groups; g++) {
        struct weft_request *r = d->owners[g];
        int32_t token = sampler_argmax(d->batch.logits + (size_t)g * (size_t)x->vocab, x->vocab);
        if (token < 0) r->n_drafts = depth;
        else r->drafts[depth] = token;
        if (r->n_drafts <= depth + 1) {
            sequence_free(d->forks[g]);
            continue;
        }
        d->tokens[n] = token, d->owners[n] = r, d->forks[n] = d->forks[g];
        d->groups[n] = (struct group){.seq = d->forks[n], .n_rows = 1, .tokens = &d->tokens[n], .n_logits = 1};
        n++;
    }
    d->batch = (struct batch){.groups = d->groups, .n_groups = n};
    return n;
}

static int draft_slice(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e) {
    struct second *d = x->drafter_data;
    int n_forks = 0, code = 0;
    for (int i = 0; i < n && !code; i++) code = second_read(r[i], r[i]->n_known - 1, e);
    for (int i = 0; i < n && !code; i++) {
        struct follower *f = draft_data(r[i]);
        if (!f->seq || sequence_fork(&d->forks[n_forks], f->seq, e)) {
            r[i]->n_drafts = 0;
            continue;
        }
        d->owners[n_forks] = r[i], d->tokens[n_forks] = r[i]->known[r[i]->n_known - 1];
        d->groups[n_forks] = (struct group){.seq = d->forks[n_forks], .n_rows = 1, .tokens = &d->tokens[n_forks], .n_logits = 1};
        n_forks++;
    }
    d->batch = (struct batch){.groups = d->groups, .n_groups = n_forks};
    for (int depth = 0; !code && n_forks; depth++) {
        code = run(d, e);
        if (!code) n_forks = take_guesses(x, d, depth);
    }
    for (int i = 0; code && i < n_forks; i++) sequence_free(d->forks[i]);
    return code;
}

static int second_draft(struct weft_engine *x, struct weft_request **r, int n, struct weft_error *e) {
    struct second *d = x->drafter_data;
    int most = d->max_groups < d->max_rows ? d->max_groups : d->max_rows, code = 0;
    for (int i = 0; i < n && !code; i += most) code = draft_slice(x, r + i, n - i < most ? n - i : most, e);
    return code;
}

const struct drafter draft_model = {.name = "model", .open = second_open, .close = second_close,
                                    .warm = second_warm, .start = second_start, .finish = second_finish, .read = second_read,
                                    .behind = second_behind, .draft = second_draft};
