/* One step of everything that runs: plan, draft, pack, run, draw, commit, publish. */
#include <string.h>

#include "base/clock.h"
#include "engine/draft.h"
#include "engine/inside.h"

int engine_forward(struct weft_engine *x, struct batch *b, struct weft_error *e) {
    int code = cache_begin(x->cache, b, e);
    if (code) return code;
    code = model_forward(x->model, x->cache, b, e);
    if (code) {
        cache_abort(x->cache, b);
        return code;
    }
    x->stats.steps++;
    x->stats.rows += (uint64_t)b->n_rows;
    for (int g = 0; g < b->n_groups; g++) x->stats.logit_rows += (uint64_t)b->groups[g].n_logits;
    return 0;
}

/* ---- packing ---- */

/* Positions [n_axes][n_tokens] of the prompt, cut to the group's rows. */
static const int32_t *cut_positions(struct weft_engine *x, const struct weft_request *r, int first, int n_rows, int *used) {
    int32_t *out = x->positions + *used;
    for (int a = 0; a < r->o.n_axes; a++)
        memcpy(out + a * n_rows, r->o.positions + (size_t)a * (size_t)r->o.n_tokens + first, (size_t)n_rows * sizeof *out);
    *used += r->o.n_axes * n_rows;
    return out;
}

static void fill_group(struct weft_engine *x, struct weft_request *r, const struct schedule_item *it, struct part *p,
                       struct group *g, int *positions_used) {
    int rows = sequence_rows(r->seq), in_prompt = rows < r->n_prompt;
    *p = (struct part){.request = r, .rows_before = rows, .logits0 = -1, .hidden0 = -1};
    p->at_end = rows + it->n_rows == r->n_known;
    memcpy(r->known + r->n_known, r->drafts, (size_t)r->n_drafts * sizeof *r->drafts);
    *g = (struct group){.seq = r->seq, .n_rows = it->n_rows + r->n_drafts, .tokens = r->known + rows, .undo = r->n_drafts > 0,
                        .adapters = r->adapters.set};
    if (p->at_end && r->state == REQUEST_RUNNING && r->max_tokens > 0) g->n_logits = 1 + r->n_drafts;
    if (in_prompt) {
        int first = rows - r->n_session;
        g->embeddings = r->o.embeddings;
        if (r->keys) g->keys = r->keys + first;
        if (r->o.positions) g->positions = cut_positions(x, r, first, g->n_rows, positions_used), g->n_axes = r->o.n_axes;
    }
    if (x->tree && !r->o.without_prefix_cache) {
        g->n_snapshots = snapshot_rows(&x->rule, r->known, r->n_prompt, rows, g->n_rows, p->snapshot_rows, SNAPSHOTS_PER_CHUNK);
        g->snapshot_rows = p->snapshot_rows;
    }
    g->want_hidden = draft_sees_hidden(r, rows + it->n_rows) || (g->n_snapshots && rows + g->n_rows == r->n_prompt) ||
                     (p->at_end && r->last_hidden);
}

/* Fills x->items, and the drafts of the requests that got room for some. */
static int plan(struct weft_engine *x, struct weft_error *e) {
    for (int i = 0; i < x->n_running; i++) {
        struct weft_request *r = x->running[i];
        int pending = request_pending(r);
        x->items[i] = (struct schedule_item){.context = sequence_rows(r->seq), .pending = pending};
        if (pending == 1 && r->started_answer && r->state == REQUEST_RUNNING) {
            int left = r->max_tokens - r->n_generated - 1, wanted = draft_wanted(r); /* the last token needs no draft behind it */
            x->items[i].drafts = wanted < left ? wanted : left;
        }
    }
    schedule_plan(x->items, x->n_running, &x->limits, &x->turn);
    int n = 0;
    for (int i = 0; i < x->n_running; i++) {
        x->running[i]->n_drafts = x->items[i].n_drafts;
        if (x->items[i].n_drafts) x->drafting[n++] = x->running[i];
    }
    return n ? draft_run(x, x->drafting, n, e) : 0;
}

static void pack(struct weft_engine *x) {
    int n = 0, logits = 0, hidden = 0, positions = 0;
    for (int i = 0; i < x->n_running; i++) {
        if (!x->items[i].n_rows) continue;
        struct part *p = &x->parts[n];
        struct group *g = &x->groups[n++];
        fill_group(x, x->running[i], &x->items[i], p, g, &positions);
        if (g->n_logits) p->logits0 = logits, logits += g->n_logits;
        if (g->want_hidden) p->hidden0 = hidden, hidden += g->n_rows;
    }
    x->n_parts = n;
    x->batch = (struct batch){.groups = x->groups, .n_groups = n};
}

/* ---- after the forward ---- */

static void send_progress(struct weft_request *r, int rows) {
    if (!r->o.want_progress) return;
    request_send(r, &(struct weft_event){.kind = WEFT_EVENT_PROGRESS, .done = rows, .total = r->n_prompt});
}

/* Draws from the part's logits as long as what is drawn is what was drafted. Sets how many rows stay. */
static void draw_part(struct weft_engine *x, struct part *p, int n_rows) {
    struct weft_request *r = p->request;
    int n_drafts = r->n_drafts, accepted = 0;
    p->keep = n_rows;
    if (r->state != REQUEST_RUNNING || !p->at_end) return;
    if (!r->started_answer) request_begin_answer(r);
    int forced = r->n_known > p->rows_before + n_rows - n_drafts; /* the answer began with tokens known beforehand */
    if (p->logits0 < 0 || r->state != REQUEST_RUNNING || forced) return;
    const float *logits = x->batch.logits + (size_t)p->logits0 * (size_t)x->vocab;
    for (int i = 0;; i++) {
        int32_t token;
        int before = r->n_known, code = request_draw(r, logits + (size_t)i * (size_t)x->vocab, &token, &r->failure);
        if (code) break;
        if (i >= n_drafts || token != r->drafts[i]) break;
        accepted++;
        if (r->state != REQUEST_RUNNING || r->n_known != before + 1 || atomic_load(&r->cancelled)) break;
    }
    p->keep = n_rows - n_drafts + accepted;
    draft_learn(r, n_drafts, accepted);
}

/* Snapshots are the engine's after the commit; their array is the cache's until the next step. */
static void take_snapshots(struct weft_engine *x, struct part *p, const struct group *g) {
    p->n_snapshots = g->n_snapshots;
    for (int i = 0; i < g->n_snapshots; i++) {
        struct snapshot *s = p->snapshots[i] = g->snapshots[i];
        if (s && p->hidden0 >= 0) /* lets a hit's drafting go on without a gap, and a repeat begin at once */
            snapshot_set_hidden(s, x->batch.hidden + (size_t)(p->hidden0 + p->snapshot_rows[i] - 1) * (size_t)x->hidden);
    }
}

static void see_hidden(struct weft_engine *x, struct part *p) {
    struct weft_request *r = p->request;
    const float *hidden = p->hidden0 < 0 ? NULL : x->batch.hidden + (size_t)p->hidden0 * (size_t)x->hidden;
    if (r->draft && x->drafter->saw) x->drafter->saw(r, p->rows_before, p->keep, hidden);
    if (hidden && p->keep && r->last_hidden) { /* a session that is saved can go on without another token */
        memcpy(r->last_hidden, hidden + (size_t)(p->keep - 1) * (size_t)x->hidden, (size_t)x->hidden * sizeof *hidden);
        r->has_last_hidden = 1;
    }
}

/* Ends what is over and closes the gaps among what runs. */
static void sweep(struct weft_engine *x) {
    int n = 0;
    for (int i = 0; i < x->n_running; i++) {
        struct weft_request *r = x->running[i];
        struct weft_error e = r->failure;
        if (!e.code && atomic_load(&r->cancelled)) error_set(&e, WEFT_ERROR_CANCELLED, "the request was cancelled");
        int wait = r->state == REQUEST_FINISHING && r->o.session_save && request_pending(r) > 0;
        if (e.code) request_finish(r, e.code, &e);
        else if (r->state == REQUEST_FINISHING && !wait) request_finish(r, 0, NULL);
        else x->running[n++] = r;
    }
    x->n_running = n;
}

/* Prompts that came from the cache whole: their logits come from the hidden row kept with the snapshot. */
static void answer_cached(struct weft_engine *x) {
    for (int i = 0; i < x->n_running; i++) {
        struct weft_request *r = x->running[i];
        if (r->started_answer || request_pending(r) > 0 || r->state != REQUEST_RUNNING) continue;
        request_begin_answer(r);
        if (r->state != REQUEST_RUNNING || request_pending(r) > 0) continue;
        int32_t token;
        const float *hidden = sequence_hidden(r->seq);
        CHECK(hidden);
        if (model_head(x->model, r->adapters.set, hidden, 1, x->cached_logits, &r->failure)) continue;
        request_draw(r, x->cached_logits, &token, &r->failure);
    }
}

int engine_step_running(struct weft_engine *x, struct weft_error *e) {
    sweep(x);
    answer_cached(x);
    sweep(x);
    if (!x->n_running) return 0;
    int code = plan(x, e);
    if (!code) code = draft_read(x, e);
    if (code) return code;
    pack(x);
    double begin = clock_work_ms();
    if ((code = engine_forward(x, &x->batch, e))) return code;
    int rows = 0, decoding = 0, drafts = 0;
    for (int i = 0; i < x->n_parts; i++) {
        struct part *p = &x->parts[i];
        rows += x->groups[i].n_rows;
        if (p->request->started_answer) decoding += x->groups[i].n_rows, drafts += p->request->n_drafts;
        if (p->rows_before < p->request->n_prompt) send_progress(p->request, p->rows_before + x->groups[i].n_rows);
        draw_part(x, p, x->groups[i].n_rows);
        x->keeps[i] = p->keep;
    }
    cache_commit(x->cache, &x->batch, x->keeps);
    draft_account(x, decoding, drafts, decoding == rows ? clock_work_ms() - begin : 0);
    for (int i = 0; i < x->n_parts; i++) take_snapshots(x, &x->parts[i], &x->groups[i]), see_hidden(x, &x->parts[i]);
    for (int i = 0; i < x->n_parts; i++) {
        struct part *p = &x->parts[i];
        struct weft_error ignored; /* a cache that has no room loses nothing but time */
        if (p->n_snapshots) tree_store(x->tree, p->request->seq, p->snapshots, p->n_snapshots, &ignored);
    }
    sweep(x);
    return 0;
}
