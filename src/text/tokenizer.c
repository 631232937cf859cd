#include "text/tokenizer.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/decode_stream.h"
#include "text/decode_utf8.h"
#include "text/tokenizer_inside.h"

int token_list_reserve(struct token_list *list, size_t more) {
    if (list->room - list->n >= more) return 0;
    if (more > SIZE_MAX / 16 - list->n) return WEFT_ERROR_MEMORY;
    size_t room = list->n + more + list->n / 2 + 64;
    int32_t *ids = mem_resize(list->ids, room * sizeof *ids);
    if (!ids) return WEFT_ERROR_MEMORY;
    list->ids = ids, list->room = room;
    return 0;
}

int token_list_add(struct token_list *list, int32_t id) {
    if (token_list_reserve(list, 1)) return WEFT_ERROR_MEMORY;
    list->ids[list->n++] = id;
    return 0;
}

void token_list_drop(struct token_list *list) {
    mem_free(list->ids);
    *list = (struct token_list){0};
}

/* ---- opening ---- */

int tokenizer_open_bytes(struct tokenizer **out, const char *json, size_t n_bytes, const char *name, struct weft_error *e) {
    *out = NULL;
    struct tokenizer *t = mem_new(1, sizeof *t);
    if (!t) return error_memory(e, name);
    vocab_init(&t->vocab);
    added_init(&t->raw), added_init(&t->normal);
    pthread_mutex_init(&t->lock, NULL);
    int code = tokenizer_read(t, json, n_bytes, name, e);
    if (code) return tokenizer_close(t), code;
    *out = t;
    return 0;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct weft_error *e) {
    *out = NULL;
    struct file_map file;
    int code = file_open_map(&file, path, e);
    if (code) return code;
    code = tokenizer_open_bytes(out, (const char *)file.data, file.n_bytes, path, e);
    file_close_map(&file);
    return code;
}

static void free_encoder(struct encoder *x) {
    pieces_drop(&x->pieces), nfc_drop(&x->nfc), bpe_drop(&x->bpe);
    mem_free(x);
}

void tokenizer_close(struct tokenizer *t) {
    if (!t) return;
    for (struct encoder *x = t->idle, *next; x; x = next) next = x->next, free_encoder(x);
    vocab_drop(&t->vocab);
    added_drop(&t->raw), added_drop(&t->normal);
    pretoken_free(t->pretoken);
    pthread_mutex_destroy(&t->lock);
    mem_free(t);
}

static struct encoder *take_encoder(struct tokenizer *t) {
    pthread_mutex_lock(&t->lock);
    struct encoder *x = t->idle;
    if (x) t->idle = x->next;
    pthread_mutex_unlock(&t->lock);
    return x ? x : mem_new(1, sizeof *x);
}

static void give_encoder(struct tokenizer *t, struct encoder *x) {
    pthread_mutex_lock(&t->lock);
    x->next = t->idle, t->idle = x;
    pthread_mutex_unlock(&t->lock);
}

/* ---- text to ids ---- */

/* One call's way through the text. */
struct job { struct tokenizer *t; struct encoder *x; enum tokenizer_added added; struct token_list *out; struct weft_error *e; };

/* A piece that is in the vocabulary is one token only if merging gives it: some entries no merge makes. */
static int is_whole(struct job *j, int32_t id, const uint8_t *p, size_t n) {
    struct vocab *v = &j->t->vocab;
    if (j->t->ignores_merges) return 1;
    unsigned char known = atomic_load_explicit(v->whole + id, memory_order_relaxed);
    if (known != WHOLE_UNKNOWN) return known == WHOLE_YES;
    int64_t n_ids = bpe_run(&j->x->bpe, v, p, n);
    if (n_ids < 0) return -1;
    int whole = n_ids == 1 && j->x->bpe.ids[0] == id;
    atomic_store_explicit(v->whole + id, whole ? WHOLE_YES : WHOLE_NO, memory_order_relaxed);
    return whole;
}

static int encode_piece(struct job *j, const uint8_t *p, size_t n) {
    const struct vocab *v = &j->t->vocab;
    struct token_list *out = j->out;
    uint64_t key = vocab_key(p, n);
    int32_t id = vocab_find_key(v, key, p, n);
    if (id >= 0) {
        int whole = is_whole(j, id, p, n);
        if (whole < 0) return -1;
        if (whole) return out->ids[out->n++] = id, 0;
    }
    struct memo *m = j->x->memos + (vocab_mix(key, n) >> (64 - MEMO_BITS));
    if (n <= MEMO_BYTES && m->n_bytes == n && memcmp(m->bytes, p, n) == 0) {
        memcpy(out->ids + out->n, m->ids, m->n_ids * sizeof *m->ids);
        return out->n += m->n_ids, 0;
    }
    int64_t n_ids = bpe_run(&j->x->bpe, v, p, n);
    if (n_ids < 0) return -1;
    memcpy(out->ids + out->n, j->x->bpe.ids, (size_t)n_ids * sizeof *out->ids);
    out->n += (size_t)n_ids;
    if (n <= MEMO_BYTES && n_ids <= MEMO_IDS) {
        memcpy(m->bytes, p, n), memcpy(m->ids, j->x->bpe.ids, (size_t)n_ids * sizeof *m->ids);
        m->n_bytes = (uint8_t)n, m->n_ids = (uint8_t)n_ids;
    }
    return 0;
}

/* Text without added tokens, normalized. */
static int encode_plain(struct job *j, const uint8_t *p, size_t n) {
    struct pieces *pieces = &j->x->pieces;
    int code = pretoken_split(j->t->pretoken, pieces, p, n, j->e);
    if (code) return code;
    size_t begin = 0;
    for (size_t i = 0; i < pieces->n; i++) {
        size_t end = pieces->ends[i];
        if (token_list_reserve(j->out, end - begin) || encode_piece(j, p + begin, end - begin))
            return error_memory(j->e, "the tokens");
        begin = end;
    }
    return 0;
}

/* Text cut at added tokens; what stands between them goes to `rest`. */
static int encode_around(struct job *j, const struct added *tokens, const uint8_t *p, size_t n,
                         int (*rest)(struct job *, const uint8_t *, size_t)) {
    size_t at = 0;
    struct added_match m;
    while (j->added != TOKENIZER_ADDED_NONE && added_next(tokens, j->t->chars, j->added, p, n, at, &m)) {
        int code = rest(j, p + at, m.begin - at);
        if (code) return code;
        if (token_list_add(j->out, m.id)) return error_memory(j->e, "the tokens");
        at = m.end;
    }
    return rest(j, p + at, n - at);
}

/* Text between the added tokens that are searched before normalization. */
static int encode_stretch(struct job *j, const uint8_t *p, size_t n) {
    if (n && j->t->normalizes) p = nfc_run(&j->x->nfc, j->t->chars, p, n, &n);
    if (!p) return error_memory(j->e, "the text");
    return encode_around(j, &j->t->normal, p, n, encode_plain);
}

int tokenizer_encode(struct tokenizer *t, const char *text, size_t n_bytes, enum tokenizer_added added, struct token_list *out,
                     struct weft_error *e) {
    const uint8_t *p = (const uint8_t *)text;
    /* Half of what 32-bit piece ends hold: normalization can make text longer. */
    if (n_bytes > INT32_MAX / 4) return error_set(e, WEFT_ERROR_INPUT, "the text is longer than 512 MiB");
    size_t good = utf8_good_bytes(p, n_bytes);
    if (good < n_bytes) return error_set(e, WEFT_ERROR_INPUT, "the text is not UTF-8 at byte %zu (0x%02X)", good, p[good]);
    struct encoder *x = take_encoder(t);
    if (!x) return error_memory(e, "the tokens");
    size_t before = out->n;
    struct job j = {t, x, added, out, e};
    int code = encode_around(&j, &t->raw, p, n_bytes, encode_stretch);
    if (code) out->n = before;
    give_encoder(t, x);
    return code;
}

/* ---- ids to text ---- */

static int has_text(const struct tokenizer *t, int32_t id) {
    return id >= 0 && id < t->vocab.n_ids && (t->vocab.kinds[id] & TOKEN_USED);
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n) {
    if (!has_text(t, id)) return *n = 0, NULL;
    *n = t->vocab.pieces[id].n;
    return (const char *)t->vocab.bytes + t->vocab.pieces[id].start;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, int skip_special, struct buf *out,
                     struct weft_error *e) {
    enum { CHUNK = 4096 };
    char chunk[CHUNK + sizeof(struct short_piece)];
    size_t fill = 0;
    struct decode_stream s = {0};
    const struct vocab *v = &t->vocab;
    for (size_t i = 0; i < n; i++) {
        int32_t id = ids[i];
        if (id < 0 || id >= v->n_ids || (skip_special && (v->kinds[id] & TOKEN_SPECIAL))) continue;
        const struct short_piece *piece = v->shorts + id;
        if (piece->n == SHORT_NO || fill + piece->n > CHUNK) {
            decode_stream_add(&s, chunk, fill, out);
            fill = 0;
        }
        if (piece->n == SHORT_NO) {
            decode_stream_add(&s, (const char *)v->bytes + v->pieces[id].start, v->pieces[id].n, out);
        } else {
            memcpy(chunk + fill, piece, sizeof *piece); /* all of it whatever the length: one move */
            fill += piece->n;
        }
    }
    decode_stream_add(&s, chunk, fill, out);
    decode_stream_end(&s, out);
    return out->failed ? error_memory(e, "the text") : 0;
}

/* ---- look-ups ---- */

int32_t tokenizer_find(const struct tokenizer *t, const char *content, size_t n) {
    int32_t id = added_find(&t->raw, (const uint8_t *)content, n);
    if (id < 0) id = added_find(&t->normal, (const uint8_t *)content, n);
    return id >= 0 ? id : vocab_find(&t->vocab, (const uint8_t *)content, n);
}

int32_t tokenizer_size(const struct tokenizer *t) { return t->vocab.n_ids; }
static int is_kind(const struct tokenizer *t, int32_t id, unsigned kind) {
    return has_text(t, id) && (t->vocab.kinds[id] & kind) != 0;
}
int tokenizer_is_special(const struct tokenizer *t, int32_t id) { return is_kind(t, id, TOKEN_SPECIAL); }
int tokenizer_is_added(const struct tokenizer *t, int32_t id) { return is_kind(t, id, TOKEN_ADDED); }
