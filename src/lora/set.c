/* Sums of adapters. Ranks are laid one behind the other, so that a sum is one low-rank product whatever it is made of:
 *     y = (1 + sum of (g_i - 1)) W x + sum of s_i g_i B_i A_i x          g_i = m_i / |rows of W + s_i B_i A_i|, 1 without DoRA */
#include <math.h>
#include <string.h>

#include "cache/checksum.h"
#include "lora/parts.h"

struct vector { const float *values, *stand_in; };

struct adapter_set {
    struct adapter_sets *home;
    struct adapter_set *next;
    int n_holders;
    uint64_t hash;
    int rank, n_targets, n_vectors;
    struct adapter_entry **entries;   /* [n_targets], NULL where nothing changes */
    struct vector *vectors;           /* ascending by `values` */
    struct adapter_use *uses; int n_uses;
    char *names;
    struct arena arena;
};

void adapter_sets_init(struct adapter_sets *s) {
    s->first = NULL;
    pthread_mutex_init(&s->lock, NULL);
}

void adapter_sets_drop(struct adapter_sets *s) {
    CHECK(!s->first);
    pthread_mutex_destroy(&s->lock);
}

const char *adapter_set_names(const struct adapter_set *s) { return s ? s->names : ""; }
uint64_t adapter_set_hash(const struct adapter_set *s) { return s ? s->hash : 0; }
int adapter_set_rank(const struct adapter_set *s) { return s ? s->rank : 0; }

const struct adapter_entry *adapter_set_entry(const struct adapter_set *s, int target) {
    return s && target >= 0 ? s->entries[target] : NULL;
}

const float *adapter_set_vector(const struct adapter_set *s, const float *values) {
    for (int low = 0, high = s ? s->n_vectors : 0; low < high;) {
        int mid = (low + high) / 2;
        if (s->vectors[mid].values == values) return s->vectors[mid].stand_in;
        if ((uintptr_t)s->vectors[mid].values < (uintptr_t)values) low = mid + 1;
        else high = mid;
    }
    return values;
}

/* ---- what is summed: each adapter once, in an order that does not depend on the caller's ---- */

struct choice { struct adapter_use *uses; int n; uint64_t hash; };

static int precedes(const struct adapter_use *x, const struct adapter_use *y) {
    if (x->adapter->hash != y->adapter->hash) return x->adapter->hash < y->adapter->hash;
    return (uintptr_t)x->adapter < (uintptr_t)y->adapter;
}

static int choose(struct choice *c, const struct adapter_use *uses, int n, struct weft_error *e) {
    c->n = 0;
    for (int i = 0; i < n; i++) {
        int at = 0;
        if (!isfinite(uses[i].weight))
            return error_set(e, WEFT_ERROR_INPUT, "adapter %s: its weight is not finite", uses[i].adapter->name);
        while (at < c->n && c->uses[at].adapter != uses[i].adapter) at++;
        if (at == c->n) c->uses[c->n++] = uses[i];
        else c->uses[at].weight += uses[i].weight;
    }
    int kept = 0;
    for (int i = 0; i < c->n; i++)
        if (c->uses[i].weight != 0) c->uses[kept++] = c->uses[i];
    c->n = kept;
    for (int i = 1; i < kept; i++)
        for (int j = i; j > 0 && precedes(&c->uses[j], &c->uses[j - 1]); j--) {
            struct adapter_use swap = c->uses[j];
            c->uses[j] = c->uses[j - 1], c->uses[j - 1] = swap;
        }
    struct checksum sum;
    checksum_init(&sum);
    for (int i = 0; i < kept; i++)
        checksum_add(&sum, &c->uses[i].adapter->hash, sizeof(uint64_t)), checksum_add(&sum, &c->uses[i].weight, sizeof(float));
    c->hash = checksum_get(&sum);
    if (!c->hash) c->hash = 1;
    return 0;
}

/* ---- one target ---- */

/* The low-rank part of one member: n blocks of `rank` rows of n_in, laid behind what is there already. */
static void copy_rows(float *to, int all_ranks, int at_rank, const float *from, int rank, size_t width, int n_blocks) {
    for (int i = 0; i < n_blocks; i++)
        memcpy(to + ((size_t)i * (size_t)all_ranks + (size_t)at_rank) * width, from + (size_t)i * (size_t)rank * width,
               (size_t)rank * width * sizeof *to);
}

/* g - 1 of row i, for DoRA. */
static double grown(const struct part *p, int i, double scale) {
    const double *n = p->norms + 3 * (size_t)i;
    double square = n[0] + 2 * scale * n[1] + scale * scale * n[2];
    return square > 0 ? (double)p->magnitude[i] / sqrt(square) - 1 : 0;
}

static void add_scaled_b(float *to, int all_ranks, int at_rank, const struct part *p, const struct adapter_target *g,
                         double scale, int n_blocks) {
    size_t width = (size_t)g->n_out;
    for (int block = 0; block < n_blocks; block++)
        for (int r = 0; r < p->rank; r++) {
            const float *from = p->b + ((size_t)block * (size_t)p->rank + (size_t)r) * width;
            float *row = to + ((size_t)block * (size_t)all_ranks + (size_t)(at_rank + r)) * width;
            for (int i = 0; i < g->n_out; i++)
                row[i] = (float)(scale * (p->magnitude ? 1 + grown(p, i, scale) : 1) * (double)from[i]);
        }
}

static int sum_parts(struct adapter_set *s, struct adapter_entry *out, const struct choice *c, int target, int n_ranks, int dora,
                     struct weft_error *e) {
    const struct adapter_target *g = &c->uses[0].adapter->base->targets[target];
    int blocks = g->kind == TARGET_EXPERTS ? g->n_experts : 1, at = 0;
    size_t n = (size_t)blocks * (size_t)n_ranks;
    float *a = arena_new(&s->arena, n * (size_t)g->n_in, sizeof *a), *b = arena_new(&s->arena, n * (size_t)g->n_out, sizeof *b);
    float *ratio = dora ? arena_new(&s->arena, (size_t)g->n_out, sizeof *ratio) : NULL;
    if (!a || !b || (dora && !ratio)) return error_memory(e, "a sum of adapters");
    for (int i = 0; i < g->n_out && dora; i++) ratio[i] = 1;
    for (int u = 0; u < c->n; u++) {
        const struct part *p = &c->uses[u].adapter->parts[target];
        double scale = p->scale * (double)c->uses[u].weight;
        if (!p->rank) continue;
        if (g->kind == TARGET_EMBEDDING)
            for (int t = 0; t < g->n_in; t++)
                memcpy(a + (size_t)t * (size_t)n_ranks + at, p->a + (size_t)t * (size_t)p->rank, (size_t)p->rank * sizeof *a);
        else copy_rows(a, n_ranks, at, p->a, p->rank, (size_t)g->n_in, blocks);
        add_scaled_b(b, n_ranks, at, p, g, scale, blocks);
        for (int i = 0; i < g->n_out && p->magnitude; i++) ratio[i] += (float)grown(p, i, scale);
        at += p->rank;
    }
    out->a = a, out->b = b, out->rank = n_ranks, out->scale = 1, out->ratio = ratio;
    return 0;
}

/* At most one adapter may replace a thing, at weight 1; no DoRA, whose norms are those of the base, may stand on it. */
static int find_replacement(const struct choice *c, int target, int dora, const struct adapter_use **out, struct weft_error *e) {
    const char *name = c->uses[0].adapter->base->targets[target].name;
    *out = NULL;
    for (int u = 0; u < c->n; u++) {
        const struct adapter_use *use = &c->uses[u];
        const struct part *p = &use->adapter->parts[target];
        if (!p->weight && !p->values) continue;
        if (*out)
            return error_set(e, WEFT_ERROR_INPUT, "adapters %s and %s both replace \"%s\"", (*out)->adapter->name,
                             use->adapter->name, name);
        if (use->weight != 1)
            return error_set(e, WEFT_ERROR_INPUT, "adapter %s replaces \"%s\": its weight can only be 1, not %g",
                             use->adapter->name, name, (double)use->weight);
        if (dora)
            return error_set(e, WEFT_ERROR_INPUT, "adapter %s replaces \"%s\", whose norms another adapter's DoRA needs",
                             use->adapter->name, name);
        *out = use;
    }
    return 0;
}

static int add_target(struct adapter_set *s, const struct choice *c, int target, struct weft_error *e) {
    const struct adapter_target *g = &c->uses[0].adapter->base->targets[target];
    const struct adapter_use *replaced, *only = NULL;
    int ranks = 0, n = 0, dora = 0;
    for (int u = 0; u < c->n; u++) {
        const struct part *p = &c->uses[u].adapter->parts[target];
        if (!p->rank) continue;
        ranks += p->rank, n++, dora |= p->magnitude != NULL, only = &c->uses[u];
    }
    int code = find_replacement(c, target, dora, &replaced, e);
    if (code || (!n && !replaced)) return code;
    const struct part *p = replaced ? &replaced->adapter->parts[target] : NULL;
    if (p && p->values) {
        int at = s->n_vectors++;
        for (; at > 0 && (uintptr_t)s->vectors[at - 1].values > (uintptr_t)g->values; at--) s->vectors[at] = s->vectors[at - 1];
        s->vectors[at] = (struct vector){g->values, p->values};
        return 0;
    }
    struct adapter_entry *out = s->entries[target] = arena_new(&s->arena, 1, sizeof *out);
    if (!out) return error_memory(e, "a sum of adapters");
    if (p) out->linear = p->linear, out->table = p->weight;
    if (ranks > s->rank) s->rank = ranks;
    if (n > 1 || dora) return sum_parts(s, out, c, target, ranks, dora, e);
    if (!n) return 0;
    const struct part *one = &only->adapter->parts[target];
    out->rank = one->rank, out->a = one->a, out->b = one->b, out->scale = (float)(one->scale * (double)only->weight);
    return 0;
}

/* ---- sets ---- */

static void set_free(struct adapter_set *s) {
    if (!s) return;
    arena_drop(&s->arena);
    mem_free(s->entries), mem_free(s->vectors), mem_free(s->names), mem_free(s->uses);
    mem_free(s);
}

static char *write_names(const struct choice *c) {
    struct buf b;
    size_t n;
    buf_init(&b);
    for (int i = 0; i < c->n; i++) buf_printf(&b, "%s%s=%g", i ? "," : "", c->uses[i].adapter->name, (double)c->uses[i].weight);
    return buf_take(&b, &n);
}

static int set_new(struct adapter_set **out, const struct choice *c, struct weft_error *e) {
    struct adapter_set *s = mem_new(1, sizeof *s);
    if (!s) return error_memory(e, "a sum of adapters");
    arena_init(&s->arena);
    s->hash = c->hash, s->n_holders = 1, s->n_targets = c->uses[0].adapter->base->n_targets;
    s->entries = mem_new((size_t)s->n_targets, sizeof *s->entries),
    s->vectors = mem_new((size_t)s->n_targets, sizeof *s->vectors);
    s->names = write_names(c), s->uses = mem_alloc((size_t)c->n * sizeof *s->uses);
    int code = s->entries && s->vectors && s->names && s->uses ? 0 : error_memory(e, "a sum of adapters");
    for (int t = 0; t < s->n_targets && !code; t++) code = add_target(s, c, t, e);
    if (code) return set_free(s), code;
    memcpy(s->uses, c->uses, (size_t)c->n * sizeof *s->uses), s->n_uses = c->n;
    *out = s;
    return 0;
}

/* By the adapters themselves: one that was opened twice may be closed once. */
static int is_choice(const struct adapter_set *s, const struct choice *c) {
    if (s->n_uses != c->n) return 0;
    for (int i = 0; i < c->n; i++)
        if (s->uses[i].adapter != c->uses[i].adapter || s->uses[i].weight != c->uses[i].weight) return 0;
    return 1;
}

int adapter_sets_get(struct adapter_sets *sets, struct adapter_set **out, const struct adapter_use *uses, int n,
                     struct weft_error *e) {
    *out = NULL;
    if (n <= 0) return 0;
    struct choice c = {.uses = mem_alloc((size_t)n * sizeof *uses)};
    int code = c.uses ? choose(&c, uses, n, e) : error_memory(e, "a sum of adapters");
    if (!code && c.n) {
        pthread_mutex_lock(&sets->lock);
        struct adapter_set *s = sets->first;
        while (s && !is_choice(s, &c)) s = s->next;
        if (s) s->n_holders++;
        else if (!(code = set_new(&s, &c, e))) s->home = sets, s->next = sets->first, sets->first = s;
        if (!code) *out = s;
        pthread_mutex_unlock(&sets->lock);
    }
    mem_free(c.uses);
    return code;
}

void adapter_set_hold(struct adapter_set *s) {
    if (!s) return;
    pthread_mutex_lock(&s->home->lock);
    s->n_holders++;
    pthread_mutex_unlock(&s->home->lock);
}

void adapter_set_drop(struct adapter_set *s) {
    if (!s) return;
    struct adapter_sets *home = s->home;
    pthread_mutex_lock(&home->lock);
    int last = --s->n_holders == 0;
    struct adapter_set **at = &home->first;
    while (last && *at != s) at = &(*at)->next;
    if (last) *at = s->next;
    pthread_mutex_unlock(&home->lock);
    if (last) set_free(s);
}
