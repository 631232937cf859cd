#include "engine/sampler.h"

#include <math.h>
#include <string.h>

#include "base/convert.h"
#include "base/mem.h"
#include "engine/random.h"

enum { LANES = 16, AHEAD = 1024, BLOCK = 2048, BUCKETS = 2048, BUCKETS_PER_UNIT = 64, MOST_NEAR = 4096 };
static const float NEAR = 3, FAR = 9; /* below the largest logit */
static const float COLDEST = 1e-4f; /* lower temperatures count as 0: 1 / temperature must not overflow */

struct ranked { float x; int32_t id; };

struct sampler {
    int vocab, n_blocks;
    struct pool *pool;
    float *x;                 /* [vocab] logits after bias and penalties */
    float max; double lse;    /* of x */
    double *block_sum;        /* [n_blocks] of exp((x - sum_max) * sum_scale) */
    float sum_max, sum_scale;
    const float *max_of;      /* [vocab] */
    float *block_max;         /* [n_blocks] of max_of */
    atomic_int not_finite;    /* max_of has a NaN or an infinity */
    void (*block)(struct sampler *s, int block);
    struct pool_taken *taken; size_t taken_bytes; /* [threads] */
    int32_t *count;           /* [vocab], all zero between calls */
    struct ranked *list; int n_list; /* [vocab] the best, in order */
    struct ranked *heap; int n_heap; /* those that come next, in pool_of_ranks */
    struct ranked *pool_of_ranks;    /* [vocab] */
    float low;                       /* what is below was not ranked yet */
    int bucket;                      /* the next to be opened; -3, -2: NEAR, FAR are to be collected; -1: buckets to be filled */
    int bucket_begin[BUCKETS + 1];
};

int sampler_new(struct sampler **out, int vocab, struct pool *pool, struct weft_error *e) {
    struct sampler *s = mem_new(1, sizeof *s);
    if (!s) return error_memory(e, "the sampler");
    size_t n = (size_t)vocab;
    s->vocab = vocab, s->n_blocks = (vocab + BLOCK - 1) / BLOCK, s->pool = pool;
    s->x = mem_new(n, sizeof *s->x), s->count = mem_new(n, sizeof *s->count);
    s->block_sum = mem_new((size_t)s->n_blocks, sizeof *s->block_sum), s->block_max = mem_new((size_t)s->n_blocks, sizeof *s->block_max);
    s->taken_bytes = (pool ? (size_t)pool_threads(pool) : 1) * sizeof *s->taken;
    s->taken = mem_map_pages(s->taken_bytes); /* aligned */
    s->pool_of_ranks = mem_new(n, sizeof *s->pool_of_ranks), s->list = mem_new(n, sizeof *s->list);
    if (!s->x || !s->count || !s->block_sum || !s->block_max || !s->taken || !s->pool_of_ranks || !s->list) {
        sampler_free(s);
        return error_memory(e, "the sampler");
    }
    *out = s;
    return 0;
}

void sampler_free(struct sampler *s) {
    if (!s) return;
    mem_free(s->x), mem_free(s->count), mem_free(s->block_sum), mem_free(s->block_max), mem_free(s->pool_of_ranks), mem_free(s->list);
    mem_free_pages(s->taken, s->taken_bytes);
    mem_free(s);
}

static int range_error(struct weft_error *e, const char *name, double value, const char *range) {
    return error_set(e, WEFT_ERROR_INPUT, "%s is %g, it must be %s", name, value, range);
}

int sampling_check(const struct weft_sampling *o, int vocab, struct weft_error *e) {
    if (!(o->temperature >= 0 && o->temperature <= 1000)) return range_error(e, "temperature", o->temperature, "0 to 1000");
    if (!(o->top_p >= 0 && o->top_p <= 1)) return range_error(e, "top_p", o->top_p, "0 to 1");
    if (!(o->min_p >= 0 && o->min_p <= 1)) return range_error(e, "min_p", o->min_p, "0 to 1");
    if (!(o->xtc_probability >= 0 && o->xtc_probability <= 1))
        return range_error(e, "xtc_probability", o->xtc_probability, "0 to 1");
    if (!(o->xtc_threshold >= 0 && o->xtc_threshold <= 0.5f))
        return range_error(e, "xtc_threshold", o->xtc_threshold, "0 to 0.5");
    if (!(o->repetition_penalty >= 0 && o->repetition_penalty <= 1e6f))
        return range_error(e, "repetition_penalty", o->repetition_penalty, "0 to 1e6");
    if (!(fabsf(o->presence_penalty) <= 1e6f)) return range_error(e, "presence_penalty", o->presence_penalty, "-1e6 to 1e6");
    if (!(fabsf(o->frequency_penalty) <= 1e6f)) return range_error(e, "frequency_penalty", o->frequency_penalty, "-1e6 to 1e6");
    for (int i = 0; i < o->n_bias; i++) {
        if (o->bias[i].token < 0 || o->bias[i].token >= vocab)
            return error_set(e, WEFT_ERROR_INPUT, "logit_bias names token %d, the vocabulary has %d", (int)o->bias[i].token,
                             vocab);
        if (!(fabsf(o->bias[i].add) <= 1e6f)) return range_error(e, "logit_bias", o->bias[i].add, "-1e6 to 1e6");
    }
    return 0;
}

/* exp of x <= 0, the same bits with every vector width: no fma, no libm. Relative error below 2e-7; 0 below -87. */
static inline float exp_below(float x) {
    float clipped = x < -87.0f ? -87.0f : x;
    float n = clipped * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: rounds to the nearest integer */
    int32_t k = (int32_t)float_bits(n);
    n -= 12582912.0f;
    float r = clipped - n * 0.693359375f - n * -2.12194440e-4f;
    float p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f, p = p * r + 8.3334519e-3f, p = p * r + 4.1665796e-2f, p = p * r + 1.6666665e-1f, p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    float scale = float_from_bits((uint32_t)(k + 127) << 23);
    return x < -87.0f ? 0.0f : p * scale;
}

/* Wider vectors where there are: the lanes are the same, and so are the bits. The sum of 248320 logits takes 1.1 ms with SSE2, 0.2 with
 * AVX-512 (Zen 4). */
#if defined(__x86_64__) && defined(__GNUC__)
#define WIDE __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define WIDE
#endif

/* Largest of the values, and in *bad whether one is NaN or infinite. */
WIDE static float find_max(const float *x, int n, int *bad) {
    float top[LANES];
    int32_t bits[LANES] = {0};
    for (int l = 0; l < LANES; l++) top[l] = -INFINITY;
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        __builtin_prefetch(x + i + AHEAD); /* a line is LANES; of many rows, none is in a cache near by */
        for (int l = 0; l < LANES; l++) {
            int32_t b = (int32_t)(float_bits(x[i + l]) & 0x7fffffff);
            bits[l] = b > bits[l] ? b : bits[l];
            top[l] = x[i + l] > top[l] ? x[i + l] : top[l];
        }
    }
    for (; i < n; i++) {
        int32_t b = (int32_t)(float_bits(x[i]) & 0x7fffffff);
        bits[0] = b > bits[0] ? b : bits[0];
        top[0] = x[i] > top[0] ? x[i] : top[0];
    }
    for (int l = 1; l < LANES; l++) {
        bits[0] = bits[l] > bits[0] ? bits[l] : bits[0];
        top[0] = top[l] > top[0] ? top[l] : top[0];
    }
    *bad = bits[0] >= 0x7f800000;
    return top[0];
}

static int32_t find_first(const float *x, int n, float value) {
    int i = 0;
    for (; i + 64 <= n; i += 64) {
        int hit = 0;
        for (int l = 0; l < 64; l++) hit |= x[i + l] == value;
        if (hit) break;
    }
    while (i < n && x[i] != value) i++;
    return i < n ? i : -1;
}

int32_t sampler_argmax(const float *logits, int vocab) {
    int bad;
    float max = find_max(logits, vocab, &bad);
    return bad ? -1 : find_first(logits, vocab, max);
}

WIDE static float sum_block(const float *x, int n, float max, float scale) {
    float sum[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) sum[l] += exp_below((x[i + l] - max) * scale);
    for (; i < n; i++) sum[0] += exp_below((x[i] - max) * scale);
    for (int step = LANES / 2; step; step /= 2)
        for (int l = 0; l < step; l++) sum[l] += sum[l + step];
    return sum[0];
}

static int block_size(const struct sampler *s, int block) {
    int left = s->vocab - block * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

/* Every thread takes neighbours, which it has in its cache when they are the columns of the head that were its own. */
static void take_blocks(void *arg, int thread, int n_threads) {
    struct sampler *s = arg;
    for (int block; (block = pool_take(s->taken, s->n_blocks, thread, n_threads)) >= 0;) s->block(s, block);
}

static void each_block(struct sampler *s, void (*block)(struct sampler *s, int block)) {
    int many = s->pool && s->n_blocks > 8;
    for (int i = 0; i < (many ? pool_threads(s->pool) : 1); i++) atomic_store_explicit(&s->taken[i].n, 0, memory_order_relaxed);
    s->block = block;
    if (many) pool_run(s->pool, take_blocks, s);
    else take_blocks(s, 0, 1);
}

static void sum_of_block(struct sampler *s, int block) {
    s->block_sum[block] = (double)sum_block(s->x + block * BLOCK, block_size(s, block), s->sum_max, s->sum_scale);
}

static double sum_exp(struct sampler *s, float max, float scale) {
    s->sum_max = max, s->sum_scale = scale;
    each_block(s, sum_of_block);
    double sum = 0;
    for (int i = 0; i < s->n_blocks; i++) sum += s->block_sum[i];
    return sum;
}

static void max_of_block(struct sampler *s, int block) {
    int bad;
    s->block_max[block] = find_max(s->max_of + block * BLOCK, block_size(s, block), &bad);
    if (bad) atomic_store_explicit(&s->not_finite, 1, memory_order_relaxed);
}

/* The largest of x [vocab]; *first: the lowest id of those, or -1 when a value is NaN or infinite. */
static float largest(struct sampler *s, const float *x, int32_t *first) {
    s->max_of = x;
    atomic_store_explicit(&s->not_finite, 0, memory_order_relaxed);
    each_block(s, max_of_block);
    int best = 0;
    for (int i = 1; i < s->n_blocks; i++)
        if (s->block_max[i] > s->block_max[best]) best = i;
    *first = -1;
    if (!atomic_load_explicit(&s->not_finite, memory_order_relaxed))
        *first = best * BLOCK + find_first(x + best * BLOCK, block_size(s, best), s->block_max[best]);
    return s->block_max[best];
}

/* ---- bias and penalties ---- */

/* The context's last tokens that a penalty looks at. */
static int window(const struct sampler_input *in, int wanted, const int32_t **begin) {
    int n = wanted < 0 || wanted > in->n_context ? in->n_context : wanted ? wanted : in->n_context < 20 ? in->n_context : 20;
    *begin = in->context + in->n_context - n;
    return n;
}

enum penalty { REPETITION, PRESENCE, FREQUENCY };

static void apply_penalty(struct sampler *s, const struct sampler_input *in, enum penalty kind, float by, int n_wanted) {
    const int32_t *tokens;
    int n = window(in, n_wanted, &tokens);
    for (int i = 0; i < n; i++)
        if (tokens[i] >= 0 && tokens[i] < s->vocab) s->count[tokens[i]]++;
    for (int i = 0; i < n; i++) {
        int32_t t = tokens[i];
        if (t < 0 || t >= s->vocab || !s->count[t]) continue;
        if (kind == REPETITION) s->x[t] = s->x[t] < 0 ? s->x[t] * by : s->x[t] / by;
        else s->x[t] -= kind == PRESENCE ? by : by * (float)s->count[t];
        s->count[t] = 0;
    }
}

static int changes_logits(const struct weft_sampling *o) {
    return o->n_bias > 0 || (o->repetition_penalty != 0 && o->repetition_penalty != 1) || o->presence_penalty != 0 ||
           o->frequency_penalty != 0;
}

static void adjust(struct sampler *s, const struct sampler_input *in) {
    const struct weft_sampling *o = in->o;
    for (int i = 0; i < o->n_bias; i++) s->x[o->bias[i].token] += o->bias[i].add;
    if (o->repetition_penalty != 0 && o->repetition_penalty != 1)
        apply_penalty(s, in, REPETITION, o->repetition_penalty, o->repetition_context);
    if (o->presence_penalty != 0) apply_penalty(s, in, PRESENCE, o->presence_penalty, o->presence_context);
    if (o->frequency_penalty != 0) apply_penalty(s, in, FREQUENCY, o->frequency_penalty, o->frequency_context);
}

/* ---- the ranking, as far as somebody asks: first what is near the maximum, then buckets of falling logits ---- */

static int before(struct ranked a, struct ranked b) { return a.x > b.x || (a.x == b.x && a.id < b.id); }

static void sift(struct ranked *h, int n, int at) {
    struct ranked v = h[at];
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(h[child + 1], h[child])) child++;
        if (!before(h[child], v)) break;
        h[at] = h[child];
    }
    h[at] = v;
}

static void open_heap(struct sampler *s, struct ranked *h, int n) {
    for (int i = n / 2; i-- > 0;) sift(h, n, i);
    s->heap = h, s->n_heap = n;
}

/* What lies in [low, s->low), if it is not too much: nearly always all that is wanted. */
static int collect_near(struct sampler *s, float low) {
    const float *x = s->x, high = s->low;
    int n = 0;
    for (int i = 0; i < s->vocab; i += 64) {
        int size = s->vocab - i < 64 ? s->vocab - i : 64, hit = 0;
        if (size == 64)
            for (int j = 0; j < 64; j++) hit |= x[i + j] >= low;
        for (int j = i; (hit || size < 64) && j < i + size; j++)
            if (x[j] >= low && x[j] < high) {
                if (n == MOST_NEAR) return 0;
                s->pool_of_ranks[n++] = (struct ranked){x[j], j};
            }
    }
    s->low = low;
    open_heap(s, s->pool_of_ranks, n);
    return 1;
}

/* Monotone in x, so that a bucket comes before the next whatever rounding does. */
static int bucket_of(float max, float x) {
    float at = (max - x) * BUCKETS_PER_UNIT;
    return at < (float)(BUCKETS - 1) ? (int)at : BUCKETS - 1;
}

/* All that is not ranked yet, sorted into buckets by counting. */
static void fill_buckets(struct sampler *s) {
    int *begin = s->bucket_begin;
    const float *x = s->x, max = s->max, low = s->low;
    memset(begin, 0, sizeof s->bucket_begin);
    for (int i = 0; i < s->vocab; i++)
        if (x[i] < low) begin[bucket_of(max, x[i]) + 1]++;
    for (int b = 0; b < BUCKETS; b++) begin[b + 1] += begin[b];
    int at[BUCKETS];
    memcpy(at, begin, sizeof at);
    for (int i = 0; i < s->vocab; i++)
        if (x[i] < low) s->pool_of_ranks[at[bucket_of(max, x[i])]++] = (struct ranked){x[i], i};
}

static void next_heap(struct sampler *s) {
    int b = s->bucket++;
    if (b < 0) {
        if (b < -1 && collect_near(s, s->max - (b == -3 ? NEAR : FAR))) return;
        fill_buckets(s);
        s->bucket = 0;
        return;
    }
    open_heap(s, s->pool_of_ranks + s->bucket_begin[b], s->bucket_begin[b + 1] - s->bucket_begin[b]);
}

/* The token of rank i, or NULL behind the last. */
static const struct ranked *rank_at(struct sampler *s, int i) {
    while (s->n_list <= i) {
        while (!s->n_heap && s->bucket < BUCKETS) next_heap(s);
        if (!s->n_heap) return NULL;
        s->list[s->n_list++] = s->heap[0];
        s->heap[0] = s->heap[--s->n_heap];
        if (s->n_heap) sift(s->heap, s->n_heap, 0);
    }
    return &s->list[i];
}

static double probability(const struct sampler *s, float x) { return exp((double)x - s->lse); }

/* ---- filters ---- */

static int is_kept(const struct sampler_input *in, int32_t id) {
    for (int i = 0; i < in->n_keep; i++)
        if (in->keep[i] == id) return 1;
    return 0;
}

/* What passed the filters: ranks from `begin` to before `end`, and those before `begin` that xtc never drops. */
struct passed { int begin, end; };

/* How many ranks pass top_p and min_p, looking at no more than `limit`. */
static int count_passing(struct sampler *s, const struct weft_sampling *o, int limit) {
    int by_p = o->top_p > 0 && o->top_p < 1, by_min = o->min_p > 0, n = 0;
    if (!by_p && !by_min) return limit;
    double likelier = 0, floor_x = by_min ? (double)s->max + log((double)o->min_p) : 0;
    int min_keep = o->min_keep > 1 ? o->min_keep : 1;
    for (const struct ranked *r; n < limit && (r = rank_at(s, n)); n++) {
        /* the ascending sum up to and with this token is 1 - likelier */
        if (by_p && likelier >= (double)o->top_p) break;
        if (by_min && n >= min_keep && (double)r->x < floor_x) break;
        likelier += probability(s, r->x);
    }
    return n;
}

/* Ranks above the threshold, among the first `limit`. */
static int count_above(struct sampler *s, const struct weft_sampling *o, int limit) {
    int n = 0;
    for (const struct ranked *r; n < limit && (r = rank_at(s, n)) && probability(s, r->x) > (double)o->xtc_threshold;) n++;
    return n;
}

static struct passed filter(struct sampler *s, const struct sampler_input *in, int xtc) {
    const struct weft_sampling *o = in->o;
    int k = o->top_k > 0 && o->top_k < s->vocab ? o->top_k : s->vocab;
    int above = xtc ? count_above(s, o, s->vocab) : 0;
    /* xtc leaves rank above - 1, so that top_k can reach no further than k ranks from there */
    struct passed p = {0, count_passing(s, o, k > s->vocab - above ? s->vocab : above + k)};
    if (above > p.end) above = p.end;
    if (above > 1) {
        p.begin = above - 1;
        while (p.begin > 0 && s->list[p.begin - 1].x == s->list[above - 1].x) p.begin--; /* not likelier than it */
    }
    int n_kept = 0;
    for (int i = 0; i < p.begin && n_kept < k; i++) n_kept += is_kept(in, s->list[i].id);
    if (n_kept + p.end - p.begin > k) p.end = p.begin + k - n_kept;
    return p;
}

/* ---- the draw ---- */

/* From every token but those of rank below p.begin. */
static int32_t draw_all(struct sampler *s, const struct sampler_input *in, struct passed p, double u, float inverse_t) {
    for (int i = 0; i < p.begin; i++)
        if (!is_kept(in, s->list[i].id)) s->x[s->list[i].id] = -INFINITY;
    int32_t first;
    float max = p.begin ? largest(s, s->x, &first) : s->max;
    double target = u * sum_exp(s, max, inverse_t), sum = 0;
    int block = 0;
    while (block + 1 < s->n_blocks && sum + s->block_sum[block] <= target) sum += s->block_sum[block++];
    int32_t last = -1;
    for (int i = block * BLOCK, end = i + block_size(s, block); i < end && sum <= target; i++) {
        float w = exp_below((s->x[i] - max) * inverse_t);
        if (w > 0) sum += (double)w, last = i;
    }
    for (int i = 0; i < p.begin; i++) s->x[s->list[i].id] = s->list[i].x;
    return last >= 0 ? last : find_first(s->x, s->vocab, max);
}

static int32_t draw_ranked(struct sampler *s, const struct sampler_input *in, struct passed p, double u, float inverse_t) {
    double total = 0, sum = 0;
    float max = 0;
    int32_t last = -1;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < p.end; i++) {
            const struct ranked *r = &s->list[i];
            if (i < p.begin && !is_kept(in, r->id)) continue;
            if (last < 0) max = r->x;
            double w = (double)exp_below((r->x - max) * inverse_t);
            if (w > 0) last = r->id;
            if (!pass) total += w;
            else if ((sum += w) > u * total) return last;
        }
    return last;
}

static int32_t draw(struct sampler *s, const struct sampler_input *in) {
    const struct weft_sampling *o = in->o;
    int xtc = o->xtc_probability > 0 && random_uniform(o->seed, in->position, RANDOM_XTC) < (double)o->xtc_probability;
    int cut = (o->top_p > 0 && o->top_p < 1) || o->min_p > 0 || (o->top_k > 0 && o->top_k < s->vocab);
    double u = random_uniform(o->seed, in->position, RANDOM_DRAW);
    float inverse_t = 1.0f / o->temperature;
    struct passed p = {0, s->vocab};
    if (cut || xtc) p = filter(s, in, xtc);
    if (!cut) return draw_all(s, in, p, u, inverse_t);
    rank_at(s, p.end - 1);
    return draw_ranked(s, in, p, u, inverse_t);
}

static int numeric_error(struct weft_error *e) {
    return error_set(e, WEFT_ERROR_NUMERIC, "the logits are not finite: the weights or the sequence's state are damaged");
}

int sampler_pick(struct sampler *s, const struct sampler_input *in, struct sampler_output *out, struct weft_error *e) {
    const struct weft_sampling *o = in->o;
    int32_t first;
    int greedy = o->temperature < COLDEST;
    *out = (struct sampler_output){-1, 0, 0};
    s->max = largest(s, in->logits, &first);
    if (first < 0) return numeric_error(e);
    if (greedy && in->n_top < 0 && !changes_logits(o)) {
        out->token = first;
        return 0;
    }
    memcpy(s->x, in->logits, (size_t)s->vocab * sizeof *s->x);
    s->n_heap = 0, s->n_list = 0, s->bucket = -3, s->low = INFINITY;
    if (changes_logits(o)) {
        adjust(s, in);
        s->max = largest(s, s->x, &first);
        if (first < 0) return numeric_error(e);
    }
    s->lse = (double)s->max + log(sum_exp(s, s->max, 1));
    out->token = greedy ? first : draw(s, in);
    if (in->n_top < 0) return 0;
    out->logprob = (float)((double)s->x[out->token] - s->lse);
    for (const struct ranked *r; out->n_top < in->n_top && (r = rank_at(s, out->n_top)); out->n_top++)
        in->top[out->n_top] = (struct weft_logprob){r->id, (float)((double)r->x - s->lse)};
    return 0;
}
