#include "model/plan.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/log.h"
#include "model/step.h"

/* ---- every linear ---- */

static int visit(plan_visit_fn *fn, void *arg, struct projection *p, const char *name) {
    return p->weight.repr ? fn(arg, &p->linear, &p->weight, name) : 0;
}

static int visit_layer(struct layer *y, plan_visit_fn *fn, void *arg) {
    struct { struct projection *p; const char *name; } all[] = {
        {&y->q, "q_proj"}, {&y->k, "k_proj"}, {&y->v, "v_proj"}, {&y->o, "o_proj"}, {&y->qkv, "in_proj_qkv"}, {&y->z, "in_proj_z"},
        {&y->b, "in_proj_b"}, {&y->a, "in_proj_a"}, {&y->out, "out_proj"}, {&y->gate, "gate_proj"}, {&y->up, "up_proj"},
        {&y->down, "down_proj"}};
    int code = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && !code; i++) code = visit(fn, arg, all[i].p, all[i].name);
    struct experts *x = y->experts;
    if (!x || code) return code;
    (void)((code = visit(fn, arg, &x->router, "router")) || (code = visit(fn, arg, &x->shared_gate_proj, "shared gate_proj")) ||
        (code = visit(fn, arg, &x->shared_up, "shared up_proj")) || (code = visit(fn, arg, &x->shared_down, "shared down_proj")) ||
        (code = visit(fn, arg, &x->shared_gate, "shared gate")));
    for (int i = 0; i < x->n && !code; i++)
        (void)((code = fn(arg, &x->gate[i], &x->weights[i].gate, "expert gate_proj")) ||
            (code = fn(arg, &x->up[i], &x->weights[i].up, "expert up_proj")) ||
            (code = fn(arg, &x->down[i], &x->weights[i].down, "expert down_proj")));
    return code;
}

int plan_visit(struct model *m, plan_visit_fn *fn, void *arg) {
    struct weights *w = &m->weights;
    int code = 0;
    for (int i = 0; i < m->checkpoint->config.n_layers && !code; i++) code = visit_layer(&w->layers[i], fn, arg);
    if (!code) code = visit(fn, arg, &w->head, "lm_head");
    if (w->mtp && !code) code = visit(fn, arg, &w->mtp->fc, "mtp.fc");
    for (int i = 0; w->mtp && i < w->mtp->n_layers && !code; i++) code = visit_layer(&w->mtp->layers[i], fn, arg);
    return code;
}

int plan_forms(const struct projection *const *p, int n) {
    int forms = 0;
    for (int i = 0; i < n; i++)
        if (p[i]->weight.repr) forms |= p[i]->linear.kernel[0]->form;
    return forms;
}

/* ---- choose, check, pack ---- */

enum { LINE = 64, PACK_VALUES = 1 << 20 };

static size_t aligned(size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

struct pack_task { struct linear *l; const struct weight *w; size_t at; int col0, col1; };

struct packing {
    struct model *m;
    struct weft_error *e;
    struct pack_task *tasks; int n, room;
    size_t bytes, mapped;
    atomic_int next;
    pthread_mutex_t lock;
    int failed_task;                 /* the first task, in order, that failed: the same error whatever the threads do */
    struct weft_error error;
};

/* NULL: the kernels read the file's bytes in place. */
static const struct linear_layout *packing_of(const struct linear *l) {
    const struct linear_layout *layout = l->kernel[0]->layout;
    return layout && layout->bytes ? layout : NULL;
}

static int choose_one(void *arg, struct linear *l, const struct weight *w, const char *name) {
    struct packing *p = arg;
    (void)name;
    int code = p->m->backend.table->linear_choose(&p->m->backend, w, l, p->e);
    if (code) return code;
    const struct linear_layout *layout = packing_of(l);
    int in_place = !layout, columns = (int)w->n_rows, tile = layout ? layout->tile : 1;
    if (in_place) p->mapped += weight_bytes(w);
    if (in_place && !w->repr->packed) return 0;
    int step = PACK_VALUES / (int)(w->n_cols > 0 ? w->n_cols : 1) / tile * tile;
    if (step < tile) step = tile;
    for (int c = 0; c < columns; c += step) {
        if (p->n == p->room) {
            int room = p->room ? 2 * p->room : 1024;
            struct pack_task *more = mem_resize(p->tasks, (size_t)room * sizeof *more);
            if (!more) return error_memory(p->e, "the packing of weights");
            p->tasks = more, p->room = room;
        }
        p->tasks[p->n++] = (struct pack_task){l, w, p->bytes, c, c + step < columns ? c + step : columns};
    }
    if (!in_place) p->bytes += aligned(l->data_bytes);
    return 0;
}

static void pack_some(void *arg, int thread, int n_threads) {
    struct packing *p = arg;
    (void)n_threads;
    for (int at, end; pool_claim(&p->next, p->n, 1, &at, &end);) {
        const struct pack_task *t = &p->tasks[at];
        struct weft_error e;
        const struct linear_layout *layout = packing_of(t->l);
        if (t->w->repr->packed && weight_check(t->w, t->col0, t->col1 - t->col0, &e)) {
            pthread_mutex_lock(&p->lock);
            if (p->failed_task < 0 || at < p->failed_task) p->failed_task = at, p->error = e;
            pthread_mutex_unlock(&p->lock);
        } else if (layout) {
            layout->pack(t->w, p->m->packed + t->at, t->col0, t->col1);
            /* The file's pages were needed for this alone: without this a model would stand in memory twice. */
            mem_release_pages((void *)(t->w->data + (size_t)t->col0 * t->w->row_bytes),
                              (size_t)(t->col1 - t->col0) * t->w->row_bytes);
        }
        const struct model_options *o = &p->m->options;
        if (thread == 0 && o->progress) o->progress(o->progress_arg, "packing weights", (double)(at + 1) / p->n);
    }
}

static int place_one(void *arg, struct linear *l, const struct weight *w, const char *name) {
    struct packing *p = arg;
    (void)w, (void)name;
    if (!packing_of(l)) return 0;
    l->data = p->m->packed + p->bytes;
    p->bytes += aligned(l->data_bytes);
    return 0;
}

static int ready_weights(struct model *m, struct weft_error *e) {
    struct packing p = {.m = m, .e = e, .failed_task = -1};
    pthread_mutex_init(&p.lock, NULL);
    int code = plan_visit(m, choose_one, &p);
    /* Whoever keeps the head at 8 bits wants its precision, and int8 rows would double its error. Two int8 parts cost no more
     * memory traffic (models/tiny, four texts: KL of int8 inputs 1.12e-4 without, 0.90e-4 with). */
    struct linear *head = &m->weights.head.linear;
    if (!code) head->with_rest = head->kernel[0]->form == FORM_Q8 && m->weights.head.weight.bits == 8;
    m->packed_bytes = p.bytes, m->mapped_bytes = p.mapped;
    if (m->options.without_data) goto out;
    if (!code && p.bytes && !(m->packed = m->backend.table->memory_new(&m->backend, p.bytes)))
        code = error_set(e, WEFT_ERROR_MEMORY, "no memory for %zu MiB of packed weights", p.bytes >> 20);
    if (!code) {
        p.bytes = 0;
        plan_visit(m, place_one, &p);
        pool_run(m->pool, pack_some, &p);
        if (p.failed_task >= 0) {
            if (e) *e = p.error;
            code = p.error.code;
        }
    }
    /* The embedding's rows are looked up in the file: what is stored must be legal there too. */
    const struct weight *embed = &m->weights.embed;
    if (!code && embed->repr->packed && embed->data != m->weights.head.weight.data)
        code = weight_check(embed, 0, embed->n_rows, e);
out:
    pthread_mutex_destroy(&p.lock);
    mem_free(p.tasks);
    return code;
}

/* ---- workspace: laid out twice by the same code, once to count and once to place ---- */

struct layout { uint8_t *base; size_t at; };

static void *lay(struct layout *l, size_t count, size_t size) {
    void *p = l->base ? l->base + l->at : NULL;
    l->at += aligned(count * size);
    return p;
}

static void lay_rows(struct layout *l, struct rows *r, int width, int forms, int keep_f32, size_t n) {
    size_t padded = (size_t)rows_pad(width);
    *r = (struct rows){.width = width, .padded = (int)padded, .forms = forms | (keep_f32 ? FORM_F32 : 0)};
    if (r->forms & FORM_F32) r->f32 = lay(l, n * (size_t)width, sizeof *r->f32);
    if (forms & FORM_BF16) r->bf16 = lay(l, n * padded, sizeof *r->bf16);
    if (forms & FORM_Q8_REST) r->rest_row = (int)n, n *= 2;
    if (forms & FORM_Q8) {
        r->q8 = lay(l, n * padded, 1);
        r->q8_scale = lay(l, n * padded / Q8_BLOCK, sizeof *r->q8_scale);
        r->q8_sum = lay(l, n * padded / Q8_BLOCK, sizeof *r->q8_sum);
    }
}

static int most(int a, int b) { return a > b ? a : b; }

struct needs { int x, mix, inner, expert_inner, inner_width, shared; }; /* forms, and the widest MLP */

static void add_needs(struct needs *n, const struct layer *y) {
    n->x |= plan_forms((const struct projection *const[]){&y->q, &y->k, &y->v, &y->qkv, &y->z, &y->b, &y->a, &y->gate, &y->up}, 9);
    n->mix |= plan_forms((const struct projection *const[]){&y->o, &y->out}, 2);
    n->inner |= plan_forms((const struct projection *const[]){&y->down}, 1);
    if (y->gate.weight.repr) n->inner_width = most(n->inner_width, (int)y->gate.weight.n_rows);
    const struct experts *x = y->experts;
    if (!x) return;
    n->x |= plan_forms((const struct projection *const[]){&x->router, &x->shared_gate_proj, &x->shared_up, &x->shared_gate}, 4);
    n->x |= x->gate[0].kernel[0]->form | x->up[0].kernel[0]->form;
    for (int i = 0; i < x->n; i++)
        n->x |= x->gate[i].kernel[0]->form | x->up[i].kernel[0]->form, n->expert_inner |= x->down[i].kernel[0]->form;
    n->inner |= plan_forms((const struct projection *const[]){&x->shared_down}, 1);
    n->inner_width = most(n->inner_width, x->shared_inner);
    n->shared |= x->shared_inner > 0;
}

static void lay_workspace(struct model *m, struct layout *l) {
    const struct config *c = &m->checkpoint->config;
    const struct weights *w = &m->weights;
    struct workspace *s = &m->ws;
    struct needs n = {0};
    for (int i = 0; i < c->n_layers; i++) add_needs(&n, &w->layers[i]);
    for (int i = 0; w->mtp && i < w->mtp->n_layers; i++) add_needs(&n, &w->mtp->layers[i]);
    size_t rows = (size_t)m->limits.max_rows, h = (size_t)c->hidden, logits = (size_t)m->options.max_logits;
    int value = c->linear_v_heads * c->linear_v_dim, channels = 2 * c->linear_k_heads * c->linear_k_dim + value;
    int query = c->n_heads * c->head_dim, key = c->n_kv_heads * c->head_dim;
    s->wide_width = most(most(channels + value + 2 * c->linear_v_heads, 2 * query + 2 * key), 2 * n.inner_width);
    s->mixed_width = most(channels, query);
    s->residual = lay(l, rows * h, 4);
    lay_rows(l, &s->x, c->hidden, n.x, 1, rows);
    s->wide = lay(l, rows * (size_t)s->wide_width, 4);
    s->mixed = lay(l, rows * (size_t)s->mixed_width, 4);
    s->decay = lay(l, rows * (size_t)c->linear_v_heads, 4), s->beta = lay(l, rows * (size_t)c->linear_v_heads, 4);
    s->delta_out = lay(l, rows * (size_t)value, 4);
    lay_rows(l, &s->mix, most(value, query), n.mix, 1, rows);
    lay_rows(l, &s->inner, n.inner_width, n.inner, 1, rows);
    s->positions = lay(l, rows * 3, 4), s->tokens = lay(l, rows, 4), s->given = lay(l, rows * h, 4);
    s->logit_row = lay(l, rows, 4), s->hidden_row = lay(l, rows, 4), s->tap_row = lay(l, rows, 4);
    s->picked = lay(l, rows * h, 4);
    int head_rest = w->head.linear.with_rest ? FORM_Q8_REST : 0;
    lay_rows(l, &s->final, c->hidden, w->head.linear.kernel[0]->form | head_rest, 1, logits);
    s->logits = lay(l, logits * (size_t)c->vocab, 4), s->hidden = lay(l, rows * h, 4);
    if (w->mtp) {
        s->pair = lay(l, rows * 2 * h, 4);
        lay_rows(l, &s->fc, 2 * c->hidden, w->mtp->fc.linear.kernel[0]->form, 0, rows);
        s->fc.f32 = s->pair, s->fc.forms |= FORM_F32;
    }
    if (c->n_experts) {
        size_t k = (size_t)c->top_k, slots = rows * k, inner = (size_t)c->moe_intermediate;
        s->router_logits = lay(l, rows * (size_t)c->n_experts, 4), s->expert_weight = lay(l, slots, 4);
        s->expert = lay(l, slots, 4), s->slot = lay(l, slots, 4), s->slot_row = lay(l, slots, 4);
        s->begin = lay(l, (size_t)c->n_experts + 1, 4);
        s->expert_gate = lay(l, slots * inner, 4), s->expert_up = lay(l, slots * inner, 4), s->expert_out = lay(l, slots * h, 4);
        lay_rows(l, &s->expert_inner, c->moe_intermediate, n.expert_inner, 1, slots);
        if (n.shared) s->shared_out = lay(l, rows * h, 4), s->shared_gate = lay(l, rows, 4);
    }
    size_t groups = (size_t)m->limits.max_groups;
    s->attention_groups = lay(l, groups, sizeof *s->attention_groups);
    s->delta_groups = lay(l, groups * (size_t)(w->n_delta > 0 ? w->n_delta : 1), sizeof *s->delta_groups);
    s->spans = lay(l, 3 * groups, sizeof *s->spans);
    s->ops_room = (c->n_layers + 4) * 20;
    s->ops = lay(l, (size_t)s->ops_room, sizeof *s->ops);
}

static int new_rope(struct model *m, struct weft_error *e) {
    const struct config *c = &m->checkpoint->config;
    int half = c->rotary_dim / 2;
    m->inv_freq = arena_new(&m->weights.arena, (size_t)half, sizeof *m->inv_freq);
    m->axis_of_pair = arena_new(&m->weights.arena, (size_t)half, 1);
    if (!m->inv_freq || !m->axis_of_pair) return error_memory(e, "the rotary table");
    for (int i = 0; i < half; i++) {
        /* fp32 throughout, as the reference: 1 / theta^(2i / rotary_dim). */
        m->inv_freq[i] = 1.0f / powf((float)c->rope_theta, (float)(2 * i) / (float)c->rotary_dim);
        const int *s = c->mrope_sections;
        if (c->mrope_interleaved) m->axis_of_pair[i] = i % 3 == 1 && i < 3 * s[1] ? 1 : i % 3 == 2 && i < 3 * s[2] ? 2 : 0;
        else m->axis_of_pair[i] = i < s[0] ? 0 : i < s[0] + s[1] ? 1 : 2;
    }
    return 0;
}

static void set_limits(struct model *m) {
    const struct config *c = &m->checkpoint->config;
    struct model_options *o = &m->options;
    if (o->max_rows <= 0) o->max_rows = 512;
    if (o->max_groups <= 0) o->max_groups = 64;
    if (o->max_logits <= 0) o->max_logits = 64;
    if (o->max_context <= 0) o->max_context = c->max_positions > 0 ? c->max_positions : 32768;
    struct needs n = {0};
    for (int i = 0; i < c->n_layers; i++) add_needs(&n, &m->weights.layers[i]);
    for (int i = 0; m->weights.mtp && i < m->weights.mtp->n_layers; i++) add_needs(&n, &m->weights.mtp->layers[i]);
    int value = c->linear_v_heads * c->linear_v_dim;
    m->limits = (struct step_limits){
        .max_rows = o->max_rows, .max_groups = o->max_groups, .max_context_rows = o->max_context,
        .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim,
        .key_heads = c->linear_k_heads, .value_heads = c->linear_v_heads, .key_dim = c->linear_k_dim, .value_dim = c->linear_v_dim,
        .conv_kernel = c->conv_taps,
        .max_width = most(most(2 * c->hidden, most(value, c->n_heads * c->head_dim)), most(n.inner_width, c->moe_intermediate)),
        .n_experts = c->n_experts, .top_k = c->top_k};
}

/* What was read of the files to look at them (samples, gains, an embedding's values) need not stay in this process: pages that
 * steps read in place come back as they are touched. */
static void release_files(struct model *m) {
    for (int i = 0; i < m->checkpoint->n_entries; i++) {
        const struct tensor *t = m->checkpoint->entries[i].tensor;
        mem_release_pages((void *)t->data, t->n_bytes);
    }
}

int plan_new(struct model *m, struct weft_error *e) {
    int code = ready_weights(m, e);
    if (code) return code;
    release_files(m);
    set_limits(m);
    if ((code = new_rope(m, e))) return code;
    struct layout count = {0};
    lay_workspace(m, &count);
    m->ws.bytes = count.at;
    m->ws.memory = m->backend.table->memory_new(&m->backend, count.at);
    if (!m->ws.memory) return error_set(e, WEFT_ERROR_MEMORY, "no memory for %zu MiB of workspace", count.at >> 20);
    struct layout place = {m->ws.memory, 0};
    lay_workspace(m, &place);
    return m->backend.table->reserve(&m->backend, &m->limits, e);
}

void plan_drop(struct model *m) {
    if (!m->backend.table) return;
    m->backend.table->memory_free(&m->backend, m->ws.memory, m->ws.bytes);
    m->backend.table->memory_free(&m->backend, m->packed, m->packed_bytes);
    for (int i = 0; i < m->n_taps; i++)
        m->backend.table->memory_free(&m->backend, m->taps[i], (size_t)m->limits.max_rows * (size_t)m->checkpoint->config.hidden * 4);
    mem_free(m->taps);
}
