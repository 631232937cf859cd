/* The low level of weft.h: sequences that the caller steps by hand. */
#include <string.h>

#include "base/mem.h"
#include "engine/adapters.h"
#include "engine/inside.h"
#include "engine/score.h"

static int set_aside(struct weft_engine *x, int max_rows, size_t *bytes, struct weft_error *e) {
    if (max_rows < 1 || max_rows > x->context)
        return error_set(e, WEFT_ERROR_INPUT, "a sequence of %d rows was asked for, the context holds 1 to %d", max_rows,
                         x->context);
    *bytes = engine_sequence_bytes(x, max_rows);
    if (engine_reserve(x, *bytes)) return 0;
    return error_set(e, WEFT_ERROR_MEMORY, "a sequence of %d rows needs %.1f MB, %.1f MB of the memory budget are free", max_rows,
                     (double)*bytes / 1e6, (double)engine_free_bytes(x) / 1e6);
}

static int new_handle(struct weft_sequence **out, struct weft_engine *x, int max_rows, struct weft_error *e) {
    struct weft_sequence *s = mem_new(1, sizeof *s);
    if (!s) return error_memory(e, "a sequence");
    s->engine = x, s->max_rows = max_rows;
    int code = set_aside(x, max_rows, &s->reserved_bytes, e);
    if (code) mem_free(s);
    else *out = s;
    return code;
}

/* Frees s on failure; else hands it out, with room for its rows. */
static int finish_handle(struct weft_sequence **out, struct weft_sequence *s, int code, struct weft_error *e) {
    if (!code && s->seq && sequence_rows(s->seq) > s->max_rows)
        code =
            error_set(e, WEFT_ERROR_INPUT, "the sequence has %d rows, room was asked for %d", sequence_rows(s->seq), s->max_rows);
    if (!code) code = sequence_reserve(s->seq, s->max_rows, e);
    if (code) weft_sequence_free(s);
    else *out = s;
    return code;
}

int weft_sequence_new(struct weft_sequence **out, struct weft_engine *x, int max_rows, struct weft_error *e) {
    struct weft_sequence *s = NULL;
    int code = new_handle(&s, x, max_rows, e);
    return code ? code : finish_handle(out, s, sequence_new(&s->seq, x->cache, e), e);
}

int weft_sequence_fork(struct weft_sequence **out, const struct weft_sequence *from, struct weft_error *e) {
    struct weft_sequence *s = NULL;
    int code = new_handle(&s, from->engine, from->max_rows, e);
    if (code) return code;
    s->adapters = from->adapters;
    adapter_choice_hold(&s->adapters);
    return finish_handle(out, s, sequence_fork(&s->seq, from->seq, e), e);
}

void weft_sequence_free(struct weft_sequence *s) {
    if (!s) return;
    sequence_free(s->seq);
    adapter_choice_drop(&s->adapters);
    engine_release(s->engine, s->reserved_bytes);
    mem_free(s);
}

int weft_sequence_rows(const struct weft_sequence *s) { return sequence_rows(s->seq); }
int weft_sequence_mtp_rows(const struct weft_sequence *s) { return sequence_mtp_rows(s->seq); }
const int32_t *weft_sequence_tokens(const struct weft_sequence *s) { return sequence_tokens(s->seq); }

int weft_sequence_save(struct weft_sequence *s, const char *path, struct weft_error *e) {
    return engine_save_sequence(s->engine, s->seq, path, s->adapters.names, e);
}

int weft_sequence_restore(struct weft_sequence **out, struct weft_engine *x, const char *path, int max_rows,
                          struct weft_error *e) {
    struct weft_sequence *s = NULL;
    int code = new_handle(&s, x, max_rows, e);
    return code ? code : finish_handle(out, s, engine_load_sequence(x, &s->seq, path, 0, "", e), e);
}

int engine_resume_sequence(struct weft_sequence **out, struct weft_engine *x, const struct score_input *in,
                           struct weft_error *e) {
    struct adapter_choice choice;
    struct sequence *seq = NULL;
    struct weft_sequence *s = NULL;
    int code = adapter_choice_make(&choice, x, in->adapters, in->n_adapters, e);
    if (code) return code;
    code = engine_load_sequence(x, &seq, in->session, choice.hash, choice.names, e);
    if (!code) code = new_handle(&s, x, sequence_rows(seq) + in->n_tokens, e);
    if (code) return sequence_free(seq), adapter_choice_drop(&choice), code;
    s->seq = seq, s->adapters = choice;
    return finish_handle(out, s, 0, e);
}

int weft_sequence_adapters(struct weft_sequence *s, const struct weft_adapter_use *uses, int n, struct weft_error *e) {
    struct adapter_choice choice;
    if (sequence_rows(s->seq) > 0) return error_set(e, WEFT_ERROR_INPUT, "a sequence's adapters are chosen before its first row");
    int code = adapter_choice_make(&choice, s->engine, uses, n, e);
    if (code) return code;
    adapter_choice_drop(&s->adapters);
    s->adapters = choice;
    sequence_set_adapters(s->seq, choice.hash);
    return 0;
}

/* ---- steps ---- */

static int check_group(const struct weft_engine *x, const struct weft_group *g, int mtp, int g_number, struct weft_error *e) {
    int rows = g->sequence ? mtp ? sequence_mtp_rows(g->sequence->seq) : sequence_rows(g->sequence->seq) : 0;
    if (!g->sequence || g->sequence->engine != x || !g->tokens || g->n_rows < 1)
        return error_set(e, WEFT_ERROR_INPUT, "group %d: a sequence of this engine and at least one row are needed", g_number);
    if (g->n_rows > g->sequence->max_rows - rows)
        return error_set(e, WEFT_ERROR_INPUT, "group %d: %d rows behind %d, room was asked for %d", g_number, g->n_rows, rows,
                         g->sequence->max_rows);
    if (g->n_logits < 0 || g->n_logits > g->n_rows)
        return error_set(e, WEFT_ERROR_INPUT, "group %d: logits of %d rows, it has %d", g_number, g->n_logits, g->n_rows);
    if (g->positions && g->n_axes != 1 && g->n_axes != 3)
        return error_set(e, WEFT_ERROR_INPUT, "group %d: positions have %d axes, 1 or 3 are possible", g_number, g->n_axes);
    if (mtp && !g->hidden_in)
        return error_set(e, WEFT_ERROR_INPUT, "group %d: a step of the MTP head needs hidden rows", g_number);
    for (int i = 0; i < g->n_rows; i++)
        if (g->tokens[i] >= x->vocab || (g->tokens[i] < 0 && (mtp || !g->embeddings || -1 - g->tokens[i] >= g->n_embeddings)))
            return error_set(e, WEFT_ERROR_INPUT,
                             "group %d: token %d is %d; the vocabulary has %d and there are %d embedding rows", g_number, i,
                             (int)g->tokens[i], x->vocab, g->n_embeddings);
    return 0;
}

static int check_step(struct weft_engine *x, const struct weft_group *groups, int n_groups, const struct weft_step_options *o,
                      struct weft_error *e) {
    int rows = 0, logits = 0;
    if (x->open) return error_set(e, WEFT_ERROR_INPUT, "the step before waits for weft_commit");
    if (x->stepping) return error_set(e, WEFT_ERROR_INPUT, "a callback may not step the engine");
    if (n_groups < 1 || n_groups > x->limits.max_groups)
        return error_set(e, WEFT_ERROR_INPUT, "a step of %d groups, 1 to %d are possible", n_groups, x->limits.max_groups);
    if (o->mtp && !model_has_mtp(x->model)) return error_set(e, WEFT_ERROR_INPUT, "%s has no MTP head", x->handle->folder);
    for (int i = 0; i < n_groups; i++) {
        int code = check_group(x, &groups[i], o->mtp, i, e);
        if (code) return code;
        for (int j = 0; j < i; j++)
            if (groups[j].sequence == groups[i].sequence)
                return error_set(e, WEFT_ERROR_INPUT, "groups %d and %d are of one sequence", j, i);
        rows += groups[i].n_rows, logits += groups[i].n_logits;
        if (groups[i].undo && groups[i].n_rows > x->max_undo_rows)
            return error_set(e, WEFT_ERROR_INPUT, "group %d: %d rows to undo, at most %d", i, groups[i].n_rows, x->max_undo_rows);
        if (rows > x->limits.max_rows || logits > x->limits.max_logits)
            return error_set(e, WEFT_ERROR_INPUT, "a step has more than %d rows or more than %d with logits", x->limits.max_rows,
                             x->limits.max_logits);
    }
    for (int i = 0; i < o->n_taps; i++)
        if (o->taps[i] < 0 || o->taps[i] >= model_config(x->model)->n_layers || (i && o->taps[i] <= o->taps[i - 1]))
            return error_set(e, WEFT_ERROR_INPUT, "tap %d is layer %d; layers ascend from 0 to %d", i, o->taps[i],
                             model_config(x->model)->n_layers - 1);
    return o->n_taps <= MOST_TAPS ? 0 : error_set(e, WEFT_ERROR_INPUT, "%d taps, at most %d", o->n_taps, MOST_TAPS);
}

static void hand_out(struct weft_engine *x, struct weft_group *groups, int n_groups, int n_taps) {
    const struct batch *b = &x->batch;
    size_t logits = 0, hidden = 0, taps = 0, width = (size_t)x->hidden;
    for (int i = 0; i < n_groups; i++) {
        struct weft_group *g = &groups[i];
        g->logits = g->n_logits ? b->logits + logits * (size_t)x->vocab : NULL;
        g->hidden = g->want_hidden ? b->hidden + hidden * width : NULL;
        g->taps = NULL;
        if (g->want_taps && n_taps) {
            const float **rows = x->tap_rows + (size_t)i * MOST_TAPS;
            for (int t = 0; t < n_taps; t++) rows[t] = b->tap_rows[t] + taps * width;
            g->taps = rows, taps += (size_t)g->n_rows;
        }
        logits += (size_t)g->n_logits;
        if (g->want_hidden) hidden += (size_t)g->n_rows;
    }
}

int weft_step(struct weft_engine *x, struct weft_group *groups, int n_groups, const struct weft_step_options *o,
              struct weft_error *e) {
    static const struct weft_step_options none;
    if (!o) o = &none;
    int code = check_step(x, groups, n_groups, o, e), undo = 0;
    if (code) return code;
    for (int i = 0; i < n_groups; i++) {
        const struct weft_group *g = &groups[i];
        undo |= g->undo;
        x->groups[i] = (struct group){.seq = g->sequence->seq,
                                      .n_rows = g->n_rows,
                                      .tokens = g->tokens,
                                      .embeddings = g->embeddings,
                                      .positions = g->positions,
                                      .n_axes = g->n_axes,
                                      .n_logits = g->n_logits,
                                      .undo = g->undo,
                                      .want_hidden = g->want_hidden,
                                      .want_taps = g->want_taps,
                                      .hidden_in = g->hidden_in,
                                      .adapters = g->sequence->adapters.set};
    }
    x->batch = (struct batch){.groups = x->groups, .n_groups = n_groups, .mtp = o->mtp, .taps = o->taps, .n_taps = o->n_taps};
    if ((code = engine_forward(x, &x->batch, e))) return code;
    hand_out(x, groups, n_groups, o->n_taps);
    if (undo) x->open = 1;
    else cache_commit(x->cache, &x->batch, NULL);
    return 0;
}

int weft_commit(struct weft_engine *x, const int *keep, struct weft_error *e) {
    if (!x->open) return error_set(e, WEFT_ERROR_INPUT, "no step waits for weft_commit");
    for (int i = 0; i < x->batch.n_groups; i++) {
        const struct group *g = &x->groups[i];
        if (keep[i] < 0 || keep[i] > g->n_rows || (!g->undo && keep[i] != g->n_rows))
            return error_set(e, WEFT_ERROR_INPUT, "group %d: %d of %d rows cannot be kept", i, keep[i], g->n_rows);
    }
    cache_commit(x->cache, &x->batch, keep);
    x->open = 0;
    return 0;
}

int weft_embed(struct weft_engine *x, const int32_t *tokens, int n, float *out, struct weft_error *e) {
    return model_embed(x->model, tokens, n, out, e);
}

int weft_head(struct weft_engine *x, const float *hidden, int n, float *out, struct weft_error *e) {
    if (x->open) return error_set(e, WEFT_ERROR_INPUT, "the step before waits for weft_commit");
    return model_head(x->model, NULL, hidden, n, out, e);
}

int weft_sample(struct weft_sequence *s, const float *logits, const struct weft_sampling *o, int32_t *token,
                struct weft_error *e) {
    struct weft_engine *x = s->engine;
    int rows = sequence_rows(s->seq), code = sampling_check(o, x->vocab, e);
    if (code) return code;
    struct sampler_input in = {.logits = logits,
                               .o = o,
                               .context = sequence_tokens(s->seq),
                               .n_context = rows,
                               .position = (uint64_t)rows,
                               .keep = x->keep_tokens,
                               .n_keep = x->n_keep_tokens,
                               .n_top = -1};
    struct sampler_output drawn;
    code = sampler_pick(x->sampler, &in, &drawn, e);
    if (!code) *token = drawn.token;
    return code;
}
