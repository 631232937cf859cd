/* The one forward: a step's groups become one list of ops.
 *
 * Linear layers, norms and MLPs see packed rows; attention and the delta rule see groups. Ops that wait need everything before
 * them; the others share the memory of nobody around them. */
#include <string.h>

#include "model/step.h"

static void emit_copy(struct step *s, const float *from, const int32_t *index, int n_rows, float *to, int64_t to_stride) {
    int h = s->g->hidden;
    step_op(s, OP_COPY, 1)->copy = (struct op_copy){from, h, index, 0, n_rows, h, to, to_stride};
}

/* The ops below see groups, so that a span is the same op over fewer of them. */
static void emit_attention_prepare(struct step *s, const struct layer *y, struct op_attention_prepare all) {
    int split = spans_differ(&s->rows, 2, (const float *const[]){y->q_norm, y->k_norm});
    for (int i = 0; i < (split ? s->rows.n : 1); i++) {
        const struct span *span = &s->rows.at[i];
        struct op_attention_prepare *o = &step_op(s, OP_ATTENTION_PREPARE, i == 0)->attention_prepare;
        *o = all;
        if (!split) return;
        o->q_gain = adapter_set_vector(span->set, y->q_norm), o->k_gain = adapter_set_vector(span->set, y->k_norm);
        o->groups += span->group0, o->n_groups = span->n_groups;
    }
}

static void emit_delta_prepare(struct step *s, const struct layer *y, struct op_delta_prepare all) {
    int split = spans_differ(&s->rows, 3, (const float *const[]){y->conv, y->dt_bias, y->neg_exp_a_log});
    for (int i = 0; i < (split ? s->rows.n : 1); i++) {
        const struct span *span = &s->rows.at[i];
        struct op_delta_prepare *o = &step_op(s, OP_DELTA_PREPARE, i == 0)->delta_prepare;
        *o = all;
        if (!split) return;
        o->conv_weight = adapter_set_vector(span->set, y->conv), o->dt_bias = adapter_set_vector(span->set, y->dt_bias);
        o->neg_exp_a_log = adapter_set_vector(span->set, y->neg_exp_a_log);
        o->groups += span->group0, o->n_groups = span->n_groups;
    }
}

static void emit_gated_norm(struct step *s, const struct layer *y, struct op_gated_norm all) {
    int split = spans_differ(&s->rows, 1, (const float *const[]){y->delta_norm});
    for (int i = 0; i < (split ? s->rows.n : 1); i++) {
        const struct span *span = &s->rows.at[i];
        struct op_gated_norm *o = &step_op(s, OP_GATED_NORM, i == 0)->gated_norm;
        *o = all;
        if (!split) return;
        size_t at = (size_t)span->row0 * (size_t)(all.n_heads * all.dim);
        o->gain = adapter_set_vector(span->set, y->delta_norm), o->x += at, o->gate += at;
        o->n_rows = span->n_rows, o->out = rows_from(all.out, span->row0);
    }
}

static void emit_attention(struct step *s, const struct layer *y, int rows_only) {
    struct workspace *ws = s->ws;
    const struct config *c = s->g;
    int query = c->n_heads * c->head_dim, key = c->n_kv_heads * c->head_dim, n = s->n_rows;
    float *q_gate = ws->wide, *k = q_gate + (size_t)n * 2 * (size_t)query, *v = k + (size_t)n * (size_t)key;
    step_linear(s, &s->rows, ws->x, 3, (struct part[]){{&y->q, q_gate, 2 * query, 0}, {&y->k, k, key, 0}, {&y->v, v, key, 0}});
    struct attention_shape shape = {c->n_heads, c->n_kv_heads, c->head_dim, c->rotary_dim};
    struct kv_layer kv;
    cache_kv_layer(s->c, y->index, &kv);
    emit_attention_prepare(s, y, (struct op_attention_prepare){
        .shape = shape, .q_gate = q_gate, .k = k, .v = v, .q_gain = y->q_norm, .k_gain = y->k_norm, .eps = (float)c->rms_eps,
        .inv_freq = s->m->inv_freq, .axis_of_pair = s->m->axis_of_pair, .positions = ws->positions, .q = ws->mixed, .kv = kv,
        .groups = ws->attention_groups, .n_groups = s->b->n_groups, .n_rows = n});
    if (rows_only) return;
    struct op_attention a = {.shape = shape, .q = ws->mixed, .q_gate = q_gate, .kv = kv, .groups = ws->attention_groups,
                             .n_groups = s->b->n_groups, .n_rows = n, .out = rows_resized(ws->mix, query)};
    step_op(s, OP_ATTENTION, 1)->attention = a;
    step_op(s, OP_ATTENTION_MERGE, 1)->attention = a;
    step_linear(s, &s->rows, rows_resized(ws->mix, query), 1, (struct part[]){{&y->o, ws->residual, c->hidden, 1}});
}

static void emit_delta(struct step *s, const struct layer *y) {
    struct workspace *ws = s->ws;
    const struct config *c = s->g;
    struct delta_shape shape = {c->linear_k_heads, c->linear_v_heads, c->linear_k_dim, c->linear_v_dim, c->conv_taps};
    int hv = shape.value_heads, value = delta_values(&shape), channels = delta_channels(&shape);
    size_t n = (size_t)s->n_rows;
    float *qkv = ws->wide, *z = qkv + n * (size_t)channels, *b = z + n * (size_t)value, *a = b + n * (size_t)hv;
    step_linear(s, &s->rows, ws->x, 4,
                (struct part[]){{&y->qkv, qkv, channels, 0}, {&y->z, z, value, 0}, {&y->b, b, hv, 0}, {&y->a, a, hv, 0}});
    struct delta_group *groups = ws->delta_groups + (size_t)y->index * (size_t)s->m->limits.max_groups;
    for (int i = 0; i < s->b->n_groups; i++) cache_delta_group(s->c, s->b, i, y->index, &groups[i]);
    emit_delta_prepare(s, y, (struct op_delta_prepare){
        .shape = shape, .qkv = qkv, .a = a, .b = b, .conv_weight = y->conv, .neg_exp_a_log = y->neg_exp_a_log,
        .dt_bias = y->dt_bias, .mixed = ws->mixed, .decay = ws->decay, .beta = ws->beta, .groups = groups,
        .n_groups = s->b->n_groups, .n_rows = s->n_rows});
    step_op(s, OP_DELTA, 1)->delta = (struct op_delta){
        .shape = shape, .qkv = qkv, .mixed = ws->mixed, .decay = ws->decay, .beta = ws->beta, .out = ws->delta_out,
        .groups = groups, .n_groups = s->b->n_groups};
    emit_gated_norm(s, y, (struct op_gated_norm){
        .x = ws->delta_out, .gate = z, .gain = y->delta_norm, .eps = (float)c->rms_eps, .n_rows = s->n_rows, .n_heads = hv,
        .dim = shape.value_dim, .out = rows_resized(ws->mix, value)});
    step_linear(s, &s->rows, rows_resized(ws->mix, value), 1, (struct part[]){{&y->out, ws->residual, c->hidden, 1}});
}

/* down(silu(gate x) * up x), added to y or put there. */
static void emit_mlp(struct step *s, const struct projection *gate, const struct projection *up, const struct projection *down,
                     float *y, int accumulate) {
    struct workspace *ws = s->ws;
    int inner = (int)gate->weight.n_rows;
    float *g = ws->wide, *u = g + (size_t)s->n_rows * (size_t)inner;
    step_linear(s, &s->rows, ws->x, 2, (struct part[]){{gate, g, inner, 0}, {up, u, inner, 0}});
    struct rows out = rows_resized(ws->inner, inner);
    step_op(s, OP_SILU_MUL, 1)->silu_mul = (struct op_silu_mul){g, u, inner, s->n_rows, out};
    step_linear(s, &s->rows, out, 1, (struct part[]){{down, y, s->g->hidden, accumulate}});
}

static void emit_experts(struct step *s, const struct experts *x) {
    struct workspace *ws = s->ws;
    const struct config *c = s->g;
    int n = s->n_rows, slots = n * c->top_k;
    struct part parts[2] = {{&x->router, ws->router_logits, x->n, 0}, {&x->shared_gate, ws->shared_gate, 1, 0}};
    step_linear(s, &s->rows, ws->x, x->shared_inner ? 2 : 1, parts);
    step_op(s, OP_MOE_ROUTE, 1)->moe_route = (struct op_moe_route){
        .logits = ws->router_logits, .n_rows = n, .n_experts = x->n, .top_k = c->top_k, .renormalise = c->norm_top_k,
        .expert = ws->expert, .weight = ws->expert_weight, .slot = ws->slot, .slot_row = ws->slot_row, .begin = ws->begin};
    struct op_moe_linear in = {.x = ws->x, .slot_row = ws->slot_row, .begin = ws->begin, .n_experts = x->n, .n_slots = slots,
                               .n_parts = 2};
    in.part[0].w = x->gate, in.part[0].y = ws->expert_gate, in.part[0].y_stride = x->inner;
    in.part[1].w = x->up, in.part[1].y = ws->expert_up, in.part[1].y_stride = x->inner;
    step_op(s, OP_MOE_LINEAR, 1)->moe_linear = in;
    step_experts(s, x->n, 2, (struct expert_part[]){{x->target, 0, 0, c->hidden, x->inner, ws->x.f32, ws->expert_gate},
                                                    {x->target + 1, 1, 0, c->hidden, x->inner, ws->x.f32, ws->expert_up}});
    step_op(s, OP_SILU_MUL, 1)->silu_mul =
        (struct op_silu_mul){ws->expert_gate, ws->expert_up, x->inner, slots, ws->expert_inner};
    struct op_moe_linear down = {.x = ws->expert_inner, .begin = ws->begin, .n_experts = x->n, .n_slots = slots, .n_parts = 1};
    down.part[0].w = x->down, down.part[0].y = ws->expert_out, down.part[0].y_stride = c->hidden;
    step_op(s, OP_MOE_LINEAR, 1)->moe_linear = down;
    step_experts(s, x->n, 1,
                 &(struct expert_part){x->target + 2, 0, 1, x->inner, c->hidden, ws->expert_inner.f32, ws->expert_out});
    if (x->shared_inner) emit_mlp(s, &x->shared_gate_proj, &x->shared_up, &x->shared_down, ws->shared_out, 0);
    step_op(s, OP_MOE_COMBINE, 1)->moe_combine = (struct op_moe_combine){
        .y = ws->expert_out, .slot = ws->slot, .weight = ws->expert_weight, .n_rows = n, .top_k = c->top_k, .width = c->hidden,
        .shared = x->shared_inner ? ws->shared_out : NULL, .shared_gate = x->shared_inner ? ws->shared_gate : NULL,
        .out = ws->residual};
}

/* `last`: what comes out of it is not used. Then keys and values are all that an attention layer is for. */
static void emit_layer(struct step *s, const struct layer *y, int last) {
    struct workspace *ws = s->ws;
    int rows_only = last && y->kind == LAYER_FULL;
    step_norm(s, &s->rows, ws->residual, y->input_norm, ws->x);
    if (y->kind == LAYER_FULL) emit_attention(s, y, rows_only);
    else emit_delta(s, y);
    if (rows_only) return;
    step_norm(s, &s->rows, ws->residual, y->post_norm, ws->x);
    if (y->experts) emit_experts(s, y->experts);
    else emit_mlp(s, &y->gate, &y->up, &y->down, ws->residual, 1);
}

/* fc of [normed embedding of the next token, normed hidden row]: the input of the MTP head's layers. */
static void emit_mtp_input(struct step *s) {
    struct workspace *ws = s->ws;
    const struct mtp *mtp = s->m->weights.mtp;
    int h = s->g->hidden;
    struct rows normed = {.width = h, .padded = rows_pad(h), .forms = FORM_F32, .f32 = ws->picked};
    step_embed(s, ws->residual);
    step_norm(s, &s->rows, ws->residual, mtp->norm_embedding, normed);
    emit_copy(s, ws->picked, NULL, s->n_rows, ws->pair, 2 * h);
    normed.f32 = ws->hidden;
    step_norm(s, &s->rows, ws->given, mtp->norm_hidden, normed);
    emit_copy(s, ws->hidden, NULL, s->n_rows, ws->pair + h, 2 * h);
    step_op(s, OP_CONVERT, 1)->convert = (struct op_convert){ws->fc, 0, s->n_rows};
    step_linear(s, &s->rows, ws->fc, 1, (struct part[]){{&mtp->fc, ws->residual, h, 0}});
}

static void emit_results(struct step *s, const float *gain, int n_logits, int n_hidden) {
    struct workspace *ws = s->ws;
    int h = s->g->hidden;
    if (n_hidden) {
        struct rows out = {.width = h, .padded = rows_pad(h), .forms = FORM_F32, .f32 = ws->hidden};
        emit_copy(s, ws->residual, ws->hidden_row, n_hidden, ws->picked, h);
        step_norm(s, &s->hidden, ws->picked, gain, out);
    }
    if (n_logits) {
        emit_copy(s, ws->residual, ws->logit_row, n_logits, ws->picked, h);
        step_norm(s, &s->logits, ws->picked, gain, ws->final);
        step_linear(s, &s->logits, ws->final, 1, (struct part[]){{&s->m->weights.head, ws->logits, s->g->vocab, 0}});
    }
}

static int reserve_taps(struct model *m, int n, struct weft_error *e) {
    if (n > m->taps_room) {
        float **more = mem_resize(m->taps, (size_t)n * sizeof *more);
        if (!more) return error_memory(e, "taps");
        m->taps = more, m->taps_room = n;
    }
    while (m->n_taps < n) {
        size_t bytes = (size_t)m->limits.max_rows * (size_t)m->checkpoint->config.hidden * 4;
        if (!(m->taps[m->n_taps] = m->backend.table->memory_new(&m->backend, bytes))) return error_memory(e, "taps");
        m->n_taps++;
    }
    return 0;
}

static int check_batch(const struct model *m, const struct batch *b, struct weft_error *e) {
    int vocab = m->checkpoint->config.vocab, n_logits = 0;
    CHECK(b->n_rows <= m->limits.max_rows && b->n_groups <= m->limits.max_groups);
    CHECK(!b->mtp || m->weights.mtp);
    for (int g = 0; g < b->n_groups; g++) {
        const struct group *p = &b->groups[g];
        n_logits += p->n_logits;
        for (int i = 0; i < p->n_rows; i++)
            if (p->tokens[i] >= vocab || (p->tokens[i] < 0 && !p->embeddings))
                return error_set(e, WEFT_ERROR_INPUT, "token %d is outside the vocabulary of %d", p->tokens[i], vocab);
    }
    CHECK(n_logits <= m->options.max_logits);
    for (int t = 0; t < b->n_taps; t++)
        if (b->taps[t] < 0 || b->taps[t] >= m->checkpoint->config.n_layers)
            return error_set(e, WEFT_ERROR_INPUT, "tap %d: the model has layers 0 to %d", b->taps[t],
                             m->checkpoint->config.n_layers - 1);
    return 0;
}

struct counts { int logits, hidden, taps; };

/* Host data of the groups to packed order: tokens, given rows, positions, and which rows feed the results. */
static struct counts gather_inputs(struct step *s) {
    struct workspace *ws = s->ws;
    struct counts n = {0};
    int h = s->g->hidden, given = 0;
    for (int g = 0; g < s->b->n_groups; g++) {
        const struct group *p = &s->b->groups[g];
        for (int i = 0; i < p->n_rows; i++) {
            int row = p->row0 + i, t = p->tokens[i];
            ws->tokens[row] = t;
            if (t < 0 && !s->b->mtp) {
                memcpy(ws->given + (size_t)given * (size_t)h, p->embeddings + (size_t)(-1 - t) * (size_t)h, (size_t)h * 4);
                ws->tokens[row] = -1 - given++;
            }
            if (i >= p->n_rows - p->n_logits) ws->logit_row[n.logits++] = row;
            if (p->want_hidden) ws->hidden_row[n.hidden++] = row;
            if (p->want_taps) ws->tap_row[n.taps++] = row;
        }
        if (s->b->mtp && p->n_rows)
            memcpy(ws->given + (size_t)p->row0 * (size_t)h, p->hidden_in, (size_t)p->n_rows * (size_t)h * 4);
        spans_add(&s->rows, p->adapters, g, p->n_rows), spans_add(&s->logits, p->adapters, g, p->n_logits);
        spans_add(&s->hidden, p->adapters, g, p->want_hidden ? p->n_rows : 0);
        cache_attention_group(s->c, s->b, g, &ws->attention_groups[g]);
    }
    const int32_t *positions = cache_positions(s->c);
    for (int i = 0; i < s->n_rows; i++)
        for (int axis = 0; axis < 3; axis++) ws->positions[axis * s->n_rows + i] = (float)positions[3 * i + axis];
    return n;
}

int model_forward(struct model *m, struct cache *c, struct batch *b, struct weft_error *e) {
    int code = check_batch(m, b, e);
    if (!code && b->n_taps) code = reserve_taps(m, b->n_taps, e);
    if (code) return code;
    struct workspace *ws = &m->ws;
    struct step s = {.m = m, .c = c, .b = b, .g = &m->checkpoint->config, .ws = ws, .n_rows = b->n_rows};
    s.rows.at = ws->spans, s.logits.at = ws->spans + m->limits.max_groups, s.hidden.at = ws->spans + 2 * m->limits.max_groups;
    ws->n_ops = 0;
    struct counts n = gather_inputs(&s);
    const struct weights *w = &m->weights;
    int unused = n.logits == 0 && n.hidden == 0 && n.taps == 0;
    if (b->mtp) {
        emit_mtp_input(&s);
        for (int i = 0; i < w->mtp->n_layers; i++) emit_layer(&s, &w->mtp->layers[i], unused && i + 1 == w->mtp->n_layers);
        emit_results(&s, w->mtp->norm, n.logits, n.hidden);
    } else {
        step_embed(&s, ws->residual);
        for (int i = 0, tap = 0; i < s.g->n_layers; i++) {
            emit_layer(&s, &w->layers[i], unused && i + 1 == s.g->n_layers);
            for (; tap < b->n_taps && b->taps[tap] == i; tap++)
                emit_copy(&s, ws->residual, ws->tap_row, n.taps, m->taps[tap], s.g->hidden);
        }
        emit_results(&s, w->final_norm, n.logits, n.hidden);
    }
    m->backend.table->run(&m->backend, ws->ops, ws->n_ops);
    b->logits = ws->logits, b->hidden = ws->hidden, b->tap_rows = m->taps;
    return 0;
}

int model_head(struct model *m, const struct adapter_set *adapters, const float *hidden, int n, float *out,
               struct weft_error *e) {
    struct workspace *ws = &m->ws;
    size_t h = (size_t)m->checkpoint->config.hidden, vocab = (size_t)m->checkpoint->config.vocab;
    if (n < 0 || n > m->options.max_logits)
        return error_set(e, WEFT_ERROR_INPUT, "%d rows of logits asked for, at most %d", n, m->options.max_logits);
    struct step s = {.m = m, .g = &m->checkpoint->config, .ws = ws, .n_rows = n, .logits = {.at = ws->spans}};
    spans_add(&s.logits, adapters, 0, n);
    ws->n_ops = 0;
    memcpy(ws->final.f32, hidden, (size_t)n * h * 4);
    step_op(&s, OP_CONVERT, 1)->convert = (struct op_convert){ws->final, 0, n};
    step_linear(&s, &s.logits, ws->final, 1, (struct part[]){{&m->weights.head, ws->logits, (int64_t)vocab, 0}});
    m->backend.table->run(&m->backend, ws->ops, ws->n_ops);
    memcpy(out, ws->logits, (size_t)n * vocab * 4);
    return 0;
}

int model_embed(struct model *m, const int32_t *tokens, int n, float *out, struct weft_error *e) {
    const struct config *c = &m->checkpoint->config;
    for (int i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= c->vocab)
            return error_set(e, WEFT_ERROR_INPUT, "token %d is outside the vocabulary of %d", tokens[i], c->vocab);
        weight_decode(&m->weights.embed, tokens[i], out + (size_t)i * (size_t)c->hidden);
    }
    return 0;
}
