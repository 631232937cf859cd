#include "model/step.h"

#include <string.h>

struct op *step_op(struct step *s, enum op_kind kind, int wait) {
    CHECK(s->ws->n_ops < s->ws->ops_room);
    struct op *op = &s->ws->ops[s->ws->n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind, op->wait = wait;
    return op;
}

void spans_add(struct spans *s, const struct adapter_set *set, int group, int n_rows) {
    struct span *last = s->n ? &s->at[s->n - 1] : NULL;
    if (!n_rows) return;
    if (!last || last->set != set)
        s->at[s->n++] = (struct span){set, last ? last->row0 + last->n_rows : 0, n_rows, group, 1};
    else last->n_rows += n_rows, last->n_groups = group + 1 - last->group0;
    s->adapted |= set != NULL;
}

struct rows rows_from(struct rows r, int row0) {
    size_t at = (size_t)row0;
    if (r.f32) r.f32 += at * (size_t)r.width;
    if (r.bf16) r.bf16 += at * (size_t)r.padded;
    if (r.q8) {
        r.q8 += at * (size_t)r.padded;
        r.q8_scale += at * (size_t)r.padded / Q8_BLOCK, r.q8_sum += at * (size_t)r.padded / Q8_BLOCK;
    }
    return r;
}

int spans_differ(const struct spans *over, int n, const float *const *vectors) {
    for (int i = 0; i < over->n && over->adapted; i++)
        for (int v = 0; v < n; v++)
            if (adapter_set_vector(over->at[i].set, vectors[v]) != vectors[v]) return 1;
    return 0;
}

static int rows_of(const struct spans *over) {
    const struct span *last = over->n ? &over->at[over->n - 1] : NULL;
    return last ? last->row0 + last->n_rows : 0;
}

/* ---- products ---- */

/* DoRA scales W x alone: it must not be added to something yet. */
static int needs_own_result(const struct adapter_entry *entry, const struct part *p) {
    return entry && entry->ratio && p->accumulate;
}

static int must_split(const struct spans *over, int n_parts, const struct part *parts) {
    for (int i = 0; i < over->n; i++)
        for (int p = 0; p < n_parts; p++) {
            const struct adapter_entry *entry = adapter_set_entry(over->at[i].set, parts[p].p->module);
            if (entry && (entry->linear || needs_own_result(entry, &parts[p]))) return 1;
        }
    return 0;
}

static void emit_linear(struct step *s, struct rows x, const struct span *span, int n_parts, const struct part *parts, int wait) {
    struct op_linear *l = &step_op(s, OP_LINEAR, wait)->linear;
    l->x = x, l->x0 = span->row0, l->n_rows = span->n_rows, l->n_parts = n_parts;
    for (int i = 0; i < n_parts; i++) {
        const struct adapter_entry *entry = adapter_set_entry(span->set, parts[i].p->module);
        int own = needs_own_result(entry, &parts[i]);
        l->part[i].w = entry && entry->linear ? entry->linear : &parts[i].p->linear;
        l->part[i].y = (own ? s->ws->picked : parts[i].y) + span->row0 * parts[i].stride, l->part[i].y_stride = parts[i].stride;
        l->part[i].accumulate = own ? 0 : parts[i].accumulate;
    }
}

/* Where the rows of a span have the middle of their low-rank products with part p. */
static float *middle_rows(const struct step *s, int p, const struct span *span) {
    const struct model *m = s->m;
    return m->adapter_t + ((size_t)p * (size_t)m->adapter_rows + (size_t)span->row0) * (size_t)m->adapter_rank;
}

/* Both halves of every low-rank part: the first read x alone and may run beside the products. */
static void emit_adapters(struct step *s, const struct spans *over, struct rows x, int n_parts, const struct part *parts) {
    int first = 1;
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < over->n; i++)
            for (int p = 0; p < n_parts; p++) {
                const struct span *span = &over->at[i];
                const struct adapter_entry *entry = adapter_set_entry(span->set, parts[p].p->module);
                if (!entry || !entry->rank) continue;
                int own = needs_own_result(entry, &parts[p]), wait = half && first;
                if (half) first = 0;
                CHECK(entry->rank <= s->m->adapter_rank);
                struct op_adapter o = {
                    .x = x.f32, .x_stride = x.width, .row0 = span->row0, .n_rows = span->n_rows, .n_in = x.width,
                    .n_out = (int)parts[p].p->weight.n_rows, .rank = entry->rank, .a = entry->a, .b = entry->b,
                    .scale = entry->scale, .ratio = entry->ratio, .t = middle_rows(s, p, span),
                    .y = own ? s->ws->picked : parts[p].y, .y_stride = parts[p].stride, .add_to = own ? parts[p].y : NULL,
                    .add_stride = parts[p].stride};
                step_op(s, half ? OP_ADAPTER_UP : OP_ADAPTER_DOWN, wait)->adapter = o;
            }
}

void step_linear(struct step *s, const struct spans *over, struct rows x, int n_parts, const struct part *parts) {
    if (!over->adapted || !must_split(over, n_parts, parts))
        emit_linear(s, x, &(struct span){.n_rows = rows_of(over)}, n_parts, parts, 1);
    else
        for (int i = 0; i < over->n; i++) emit_linear(s, x, &over->at[i], n_parts, parts, i == 0);
    if (over->adapted) emit_adapters(s, over, x, n_parts, parts);
}

void step_experts(struct step *s, int n_experts, int n_parts, const struct expert_part *parts) {
    struct workspace *ws = s->ws;
    size_t slots = (size_t)s->n_rows * (size_t)s->g->top_k;
    int first = 1;
    for (int i = 0; i < s->rows.n && s->rows.adapted; i++)
        for (int p = 0; p < n_parts; p++) {
            const struct span *span = &s->rows.at[i];
            const struct adapter_entry *entry = adapter_set_entry(span->set, parts[p].target);
            if (!entry || !entry->rank) continue;
            CHECK(entry->rank <= s->m->adapter_rank);
            struct op_moe_adapter o = {
                .x = parts[p].x, .x_stride = parts[p].n_in, .by_slot = parts[p].by_slot, .slot_row = ws->slot_row,
                .begin = ws->begin, .n_experts = n_experts, .n_slots = (int)slots, .row0 = span->row0, .n_rows = span->n_rows,
                .n_in = parts[p].n_in, .n_out = parts[p].n_out, .rank = entry->rank, .a = entry->a, .b = entry->b,
                .scale = entry->scale, .t = s->m->adapter_t + (size_t)parts[p].number * slots * (size_t)s->m->adapter_rank,
                .y = parts[p].y, .y_stride = parts[p].n_out};
            step_op(s, OP_MOE_ADAPTER, first)->moe_adapter = o;
            first = 0;
        }
}

/* ---- norms and look-ups ---- */

void step_norm(struct step *s, const struct spans *over, const float *x, const float *gain, struct rows out) {
    struct op_norm n = {
        .x = x, .x_stride = out.width, .gain = gain, .eps = (float)s->g->rms_eps, .n_rows = rows_of(over), .out = out};
    if (!spans_differ(over, 1, &gain)) {
        step_op(s, OP_NORM, 1)->norm = n;
        return;
    }
    for (int i = 0; i < over->n; i++) {
        n.gain = adapter_set_vector(over->at[i].set, gain), n.row0 = over->at[i].row0, n.n_rows = over->at[i].n_rows;
        step_op(s, OP_NORM, i == 0)->norm = n;
    }
}

static const struct adapter_entry *embed_entry(const struct step *s, const struct span *span) {
    return adapter_set_entry(span->set, s->m->embed_target);
}

/* Low-rank rows of the embedding are looked up here: row t of A is the middle of the product. Rows without a token get none. */
static float *look_up(struct step *s, const struct span *span, const struct adapter_entry *entry) {
    size_t rank = (size_t)entry->rank;
    CHECK(entry->rank <= s->m->adapter_rank);
    float *t = middle_rows(s, 0, span);
    for (int i = 0; i < span->n_rows; i++) {
        int32_t token = s->ws->tokens[span->row0 + i];
        if (token >= 0) memcpy(t + (size_t)i * rank, entry->a + (size_t)token * rank, rank * sizeof *t);
        else memset(t + (size_t)i * rank, 0, rank * sizeof *t);
    }
    return t;
}

void step_embed(struct step *s, float *out) {
    struct workspace *ws = s->ws;
    int h = s->g->hidden, n = s->n_rows, split = 0, first = 1;
    struct op_embed all = {&s->m->weights.embed, ws->tokens, n, ws->given, out, h};
    for (int i = 0; i < s->rows.n; i++) {
        const struct adapter_entry *entry = embed_entry(s, &s->rows.at[i]);
        split |= entry && entry->table;
    }
    if (!split) step_op(s, OP_EMBED, 1)->embed = all;
    for (int i = 0; i < s->rows.n && split; i++) {
        const struct span *span = &s->rows.at[i];
        const struct adapter_entry *entry = embed_entry(s, span);
        struct op_embed some = all;
        if (entry && entry->table) some.table = entry->table;
        some.tokens += span->row0, some.n_rows = span->n_rows, some.out += (size_t)span->row0 * (size_t)h;
        step_op(s, OP_EMBED, i == 0)->embed = some;
    }
    for (int i = 0; i < s->rows.n; i++) {
        const struct span *span = &s->rows.at[i];
        const struct adapter_entry *entry = embed_entry(s, span);
        if (!entry || !entry->rank) continue;
        step_op(s, OP_ADAPTER_UP, first)->adapter = (struct op_adapter){
            .row0 = span->row0, .n_rows = span->n_rows, .n_out = h, .rank = entry->rank, .b = entry->b, .scale = entry->scale,
            .t = look_up(s, span, entry), .y = out, .y_stride = h};
        first = 0;
    }
}
