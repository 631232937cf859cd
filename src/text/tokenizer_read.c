/* tokenizer.json. Whatever this version does not do is refused by name, not ignored. */
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "text/decode_utf8.h"
#include "text/pretoken_chars.h"
#include "text/tokenizer_inside.h"
#include "text/tokenizer_scan.h"

enum { JSON_BYTES_MAX = 1 << 30, BYTE_LETTERS = 0x144 };

struct reader {
    struct tokenizer *t;
    const char *name;
    struct weft_error *e;
    int16_t letter_byte[BYTE_LETTERS]; /* byte that a letter stands for, or -1 */
};

#define REFUSE(r, ...) error_set((r)->e, WEFT_ERROR_INPUT, __VA_ARGS__)
#define UNSUPPORTED(r, ...) error_set((r)->e, WEFT_ERROR_SUPPORT, __VA_ARGS__)

/* Byte-level BPE writes each byte as a printable letter: itself where it is one, else one from U+0100 on, in order. */
static void fill_letters(struct reader *r) {
    memset(r->letter_byte, -1, sizeof r->letter_byte);
    int next = 0x100;
    for (int b = 0; b < 256; b++) {
        int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        r->letter_byte[printable ? b : next++] = (int16_t)b;
    }
}

/* Letters to bytes, in place (a byte never needs more room than its letter). -1 when some character is no byte letter. */
static int64_t letters_to_bytes(const struct reader *r, uint8_t *p, size_t n) {
    size_t out = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c = p[i];
        if (c >= 0x80) {
            if (c < 0xC2 || c > 0xC5 || i + 1 >= n || (p[i + 1] & 0xC0) != 0x80) return -1;
            c = (c & 31) << 6 | (p[i + 1] & 63), i++;
        }
        i++;
        if (c >= BYTE_LETTERS || r->letter_byte[c] < 0) return -1;
        p[out++] = (uint8_t)r->letter_byte[c];
    }
    return (int64_t)out;
}

static int is_byte_letters(const struct reader *r, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n;) {
        unsigned length;
        uint32_t c = utf8_get(p + i, &length);
        if (c >= BYTE_LETTERS || r->letter_byte[c] < 0) return 0;
        i += length;
    }
    return 1;
}

static int read_vocab(struct reader *r, struct scan_range range) {
    struct vocab *v = &r->t->vocab;
    struct scan s = {range.begin, range.end};
    if (!range.begin) return REFUSE(r, "%s: model.vocab is missing", r->name);
    if (!scan_take(&s, '{')) return REFUSE(r, "%s: model.vocab is not an object", r->name);
    if (vocab_reserve_bytes(v, (size_t)(range.end - range.begin), r->e)) return error_prefix(r->e, "%s", r->name);
    if (scan_take(&s, '}')) return REFUSE(r, "%s: model.vocab is empty", r->name);
    int64_t entry = 0;
    do {
        uint8_t *text = v->bytes + v->n_bytes;
        int64_t id, n = scan_string(&s, text);
        if (n < 0 || !scan_take(&s, ':')) return REFUSE(r, "%s: model.vocab: entry %lld is malformed", r->name, (long long)entry);
        if (scan_next_char(&s) < 0 || !scan_int(&s, &id))
            return REFUSE(r, "%s: model.vocab: the id of entry %lld (\"%.*s\") is not an integer", r->name, (long long)entry,
                          n < 60 ? (int)n : 60, (const char *)text);
        if (utf8_good_bytes(text, (size_t)n) != (size_t)n)
            return REFUSE(r, "%s: model.vocab: entry %lld is not UTF-8", r->name, (long long)entry);
        unsigned kind = 0;
        if (is_byte_letters(r, text, (size_t)n)) n = letters_to_bytes(r, text, (size_t)n);
        else kind = TOKEN_RAW;
        char what[64];
        snprintf(what, sizeof what, "model.vocab: entry %lld", (long long)entry);
        if (vocab_add(v, id, text, (size_t)n, kind, what, r->e)) return error_prefix(r->e, "%s", r->name);
        entry++;
    } while (scan_take(&s, ','));
    if (!scan_take(&s, '}') || scan_next_char(&s) >= 0)
        return REFUSE(r, "%s: model.vocab is malformed after entry %lld", r->name, (long long)entry - 1);
    return 0;
}

/* One merge, "a b" or ["a", "b"], its two parts behind one another at `out`; the length of the first in *n_left. -1: neither. */
static int64_t read_pair(const struct reader *r, struct scan *s, uint8_t *out, size_t *n_left) {
    if (scan_take(s, '[')) {
        int64_t left = scan_string(s, out);
        if (left < 0 || (left = letters_to_bytes(r, out, (size_t)left)) < 0 || !scan_take(s, ',')) return -1;
        int64_t right = scan_string(s, out + left);
        if (right < 0 || (right = letters_to_bytes(r, out + left, (size_t)right)) < 0 || !scan_take(s, ']')) return -1;
        return *n_left = (size_t)left, left + right;
    }
    int64_t n = scan_string(s, out);
    uint8_t *space = n > 0 ? memchr(out, ' ', (size_t)n) : NULL;
    if (!space) return -1;
    size_t before = (size_t)(space - out), behind = (size_t)n - before - 1;
    int64_t right = letters_to_bytes(r, space + 1, behind), left = letters_to_bytes(r, out, before);
    if (left < 0 || right < 0) return -1; /* a second space is no letter either */
    memmove(out + left, space + 1, (size_t)right);
    return *n_left = (size_t)left, left + right;
}

static int read_one_merge(struct reader *r, struct scan *s, uint8_t *text, int64_t entry) {
    struct vocab *v = &r->t->vocab;
    size_t n_left;
    int64_t n = read_pair(r, s, text, &n_left);
    if (n < 0) return REFUSE(r, "%s: model.merges[%lld] is not two pieces of byte letters", r->name, (long long)entry);
    int32_t left = vocab_find(v, text, n_left), right = vocab_find(v, text + n_left, (size_t)n - n_left);
    int32_t made = vocab_find(v, text, (size_t)n);
    if (left < 0 || right < 0 || made < 0)
        return REFUSE(r, "%s: model.merges[%lld]: %s is not in model.vocab", r->name, (long long)entry,
                      left < 0 ? "its first part" : right < 0 ? "its second part" : "what it makes");
    return vocab_add_merge(v, left, right, made, r->e) ? error_prefix(r->e, "%s", r->name) : 0;
}

static int read_merges(struct reader *r, struct scan_range range) {
    struct scan s = {range.begin, range.end};
    if (!range.begin) return REFUSE(r, "%s: model.merges is missing", r->name);
    if (!scan_take(&s, '[')) return REFUSE(r, "%s: model.merges is not a list", r->name);
    if (scan_take(&s, ']')) return 0;
    uint8_t *text = mem_alloc((size_t)(range.end - range.begin) + 16);
    if (!text) return error_memory(r->e, "the merges");
    int64_t entry = 0;
    int code;
    do code = read_one_merge(r, &s, text, entry++);
    while (!code && scan_take(&s, ','));
    mem_free(text);
    if (!code && (!scan_take(&s, ']') || scan_next_char(&s) >= 0))
        return REFUSE(r, "%s: model.merges is malformed after entry %lld", r->name, (long long)entry - 1);
    return code;
}

/* ---- added tokens ---- */

static int read_added_flags(struct reader *r, const json_t *o, const char *what, unsigned *flags, int *normalized) {
    static const struct { const char *key; unsigned flag; } keys[] = {
        {"special", ADDED_SPECIAL}, {"lstrip", ADDED_LEFT}, {"rstrip", ADDED_RIGHT}, {"single_word", ADDED_WORD}};
    *flags = 0;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        int on = 0;
        if (json_get_bool(o, keys[k].key, 0, &on, what, r->e)) return r->e ? r->e->code : WEFT_ERROR_INPUT;
        if (on) *flags |= keys[k].flag;
    }
    *normalized = !(*flags & ADDED_SPECIAL);
    return json_get_bool(o, "normalized", 0, normalized, what, r->e);
}

/* Enters an added token in the vocabulary, where it may stand already, with the same id. */
static int add_to_vocab(struct reader *r, int64_t id, const char *content, size_t n, unsigned kind, const char *what) {
    struct vocab *v = &r->t->vocab;
    if (vocab_reserve_bytes(v, n, r->e)) return error_prefix(r->e, "%s", r->name);
    uint8_t *bytes = v->bytes + v->n_bytes;
    memcpy(bytes, content, n);
    /* What consists of byte letters is read as bytes, as the reference decoder does with added tokens too. */
    int letters = is_byte_letters(r, bytes, n);
    size_t n_bytes = letters ? (size_t)letters_to_bytes(r, bytes, n) : n;
    if (id >= 0 && id < v->n_ids && (v->kinds[id] & TOKEN_USED)) {
        const struct piece *old = v->pieces + id;
        if ((v->kinds[id] & TOKEN_ADDED) || old->n != n_bytes || memcmp(v->bytes + old->start, bytes, n_bytes) != 0)
            return REFUSE(r, "%s has id %lld, which another entry has too", what, (long long)id);
        v->kinds[id] |= (uint8_t)kind;
        return 0;
    }
    if (letters && v->slots) {
        int32_t other = vocab_find(v, bytes, n_bytes);
        if (other >= 0) return REFUSE(r, "%s has id %lld, but model.vocab gives it %d", what, (long long)id, other);
    }
    return vocab_add(v, id, bytes, n_bytes, kind | TOKEN_RAW, what, r->e);
}

static int read_added_token(struct reader *r, const json_t *o, const char *what) {
    struct tokenizer *t = r->t;
    int64_t id = 0;
    unsigned flags;
    int normalized;
    int code = json_get_int(o, "id", 1, 0, t->vocab.ids_max - 1, &id, what, r->e);
    if (!code) code = read_added_flags(r, o, what, &flags, &normalized);
    if (code) return code;
    const json_t *content = json_object_get(o, "content");
    if (!json_is_string(content)) return REFUSE(r, "%s: \"content\" is not text", what);
    const char *text = json_string_value(content);
    size_t n = json_string_length(content);
    if (n == 0) return REFUSE(r, "%s: \"content\" is empty", what);
    if (added_find(&t->raw, (const uint8_t *)text, n) >= 0 || added_find(&t->normal, (const uint8_t *)text, n) >= 0)
        return REFUSE(r, "%s: another added token has the content \"%.60s\"", what, text);
    code = add_to_vocab(r, id, text, n, TOKEN_ADDED | (flags & ADDED_SPECIAL ? TOKEN_SPECIAL : 0), what);
    if (code) return code;
    struct added *where = normalized && t->normalizes ? &t->normal : &t->raw;
    struct nfc nfc = {0};
    const uint8_t *find = (const uint8_t *)text;
    if (where == &t->normal) find = nfc_run(&nfc, t->chars, find, n, &n);
    if (!find || added_insert(where, find, n, (struct added_token){(int32_t)id, flags}))
        code = error_memory(r->e, "the added tokens");
    nfc_drop(&nfc);
    return code;
}

static int read_added(struct reader *r, const json_t *list) {
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list)) return REFUSE(r, "%s: added_tokens is not a list", r->name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char what[256];
        snprintf(what, sizeof what, "%.200s: added_tokens[%zu]", r->name, i);
        const json_t *o = json_array_get(list, i);
        if (!json_is_object(o)) return REFUSE(r, "%s is not an object", what);
        int code = read_added_token(r, o, what);
        if (code) return code;
    }
    return 0;
}

/* ---- normalizer, split patterns, model ---- */

static const char *type_of(const json_t *o) {
    const char *type = json_string_value(json_object_get(o, "type"));
    return type ? type : "";
}

static int read_normalizer(struct reader *r, const json_t *o, int depth) {
    if (!o || json_is_null(o)) return 0;
    const json_t *list = json_object_get(o, "normalizers");
    if (strcmp(type_of(o), "NFC") == 0) return r->t->normalizes = 1, 0;
    if (strcmp(type_of(o), "Sequence") != 0 || !json_is_array(list) || depth > 8)
        return UNSUPPORTED(r, "%s: normalizer \"%.40s\" is not supported, only NFC is", r->name, type_of(o));
    for (size_t i = 0; i < json_array_size(list); i++) {
        int code = read_normalizer(r, json_array_get(list, i), depth + 1);
        if (code) return code;
    }
    return 0;
}

struct patterns { char *text[PRETOKEN_PATTERNS_MAX]; int n, byte_level; };

static int add_pattern(struct reader *r, struct patterns *p, const char *text, size_t n) {
    if (p->n == PRETOKEN_PATTERNS_MAX)
        return UNSUPPORTED(r, "%s: pre_tokenizer has more than %d patterns", r->name, PRETOKEN_PATTERNS_MAX);
    if (strlen(text) != n) return REFUSE(r, "%s: pre_tokenizer: a pattern holds U+0000", r->name);
    char *copy = mem_copy_text(text, n);
    if (!copy) return error_memory(r->e, "the split patterns");
    p->text[p->n++] = copy;
    return 0;
}

static int read_split(struct reader *r, struct patterns *p, const json_t *o) {
    const json_t *pattern = json_object_get(o, "pattern"), *regex = json_object_get(pattern, "Regex");
    const json_t *literal = json_object_get(pattern, "String");
    const char *behavior = json_string_value(json_object_get(o, "behavior"));
    if (!behavior || strcmp(behavior, "Isolated") != 0 || json_is_true(json_object_get(o, "invert")))
        return UNSUPPORTED(r, "%s: pre_tokenizer: Split must have behavior \"Isolated\" and no \"invert\"", r->name);
    if (json_is_string(regex)) return add_pattern(r, p, json_string_value(regex), json_string_length(regex));
    if (!json_is_string(literal) || json_string_length(literal) == 0)
        return REFUSE(r, "%s: pre_tokenizer: Split has neither a Regex nor a String pattern", r->name);
    struct buf escaped;
    buf_init(&escaped);
    for (const char *c = json_string_value(literal); *c; c++) {
        if ((unsigned char)*c < 0x80 && strchr("\\^$.[]|()?*+{}#-", *c)) buf_add_char(&escaped, '\\');
        buf_add_char(&escaped, *c);
    }
    int code = escaped.failed ? error_memory(r->e, "the split patterns") : add_pattern(r, p, escaped.data, escaped.n);
    buf_drop(&escaped);
    return code;
}

static int read_pre_tokenizer(struct reader *r, struct patterns *p, const json_t *o, int depth) {
    if (!o || json_is_null(o)) return 0;
    const char *type = type_of(o);
    const json_t *list = json_object_get(o, "pretokenizers");
    if (strcmp(type, "Split") == 0 && !p->byte_level) return read_split(r, p, o);
    if (strcmp(type, "ByteLevel") == 0 && !p->byte_level) {
        p->byte_level = 1;
        if (json_is_true(json_object_get(o, "add_prefix_space")))
            return UNSUPPORTED(r, "%s: pre_tokenizer: add_prefix_space is not supported", r->name);
        if (json_is_false(json_object_get(o, "use_regex"))) return 0;
        return add_pattern(r, p, PRETOKEN_GPT2, strlen(PRETOKEN_GPT2));
    }
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth > 8)
        return UNSUPPORTED(r, "%s: pre_tokenizer \"%.40s\" is not supported, only Split and a last ByteLevel", r->name, type);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int code = read_pre_tokenizer(r, p, json_array_get(list, i), depth + 1);
        if (code) return code;
    }
    return 0;
}

static int read_patterns(struct reader *r, const json_t *o) {
    struct patterns p = {0};
    int code = read_pre_tokenizer(r, &p, o, 0);
    if (!code && !p.byte_level)
        code = UNSUPPORTED(r, "%s: pre_tokenizer has no ByteLevel: only byte-level BPE is supported", r->name);
    if (!code) code = pretoken_new(&r->t->pretoken, (const char *const *)p.text, p.n, PRETOKEN_FASTEST, r->name, r->e);
    for (int i = 0; i < p.n; i++) mem_free(p.text[i]);
    return code;
}

/* A part of BPE that byte-level vocabularies leave empty. */
static int must_be_empty(struct reader *r, const json_t *model, const char *key) {
    const json_t *v = json_object_get(model, key);
    if (!v || json_is_null(v) || json_is_false(v) || (json_is_string(v) && json_string_length(v) == 0)) return 0;
    if (json_is_number(v) && json_number_value(v) == 0) return 0;
    return UNSUPPORTED(r, "%s: model.%s is not supported", r->name, key);
}

static int read_model(struct reader *r, const json_t *model) {
    static const char *const empty[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"};
    if (!json_is_object(model)) return REFUSE(r, "%s: model is not an object", r->name);
    const json_t *type = json_object_get(model, "type");
    if (type && strcmp(type_of(model), "BPE") != 0)
        return UNSUPPORTED(r, "%s: model.type \"%.40s\" is not BPE", r->name, type_of(model));
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        int code = must_be_empty(r, model, empty[i]);
        if (code) return code;
    }
    return json_get_bool(model, "ignore_merges", 0, &r->t->ignores_merges, r->name, r->e);
}

/* The text with both large parts replaced by null, parsed. */
static int parse_rest(struct reader *r, const char *json, size_t n, struct scan_range a, struct scan_range b, json_t **out) {
    if (b.begin && (!a.begin || b.begin < a.begin)) {
        struct scan_range swap = a;
        a = b, b = swap;
    }
    struct buf rest;
    buf_init(&rest);
    const char *at = json, *parts[2][2] = {{a.begin, a.end}, {b.begin, b.end}};
    for (int i = 0; i < 2; i++) {
        if (!parts[i][0]) continue;
        buf_add(&rest, at, (size_t)(parts[i][0] - at));
        buf_add_text(&rest, "null");
        at = parts[i][1];
    }
    buf_add(&rest, at, (size_t)(json + n - at));
    int code = rest.failed ? error_memory(r->e, r->name) : json_parse(out, rest.data, rest.n, r->name, r->e);
    buf_drop(&rest);
    return code;
}

static int read_parts(struct reader *r, const json_t *root, struct scan_range vocab, struct scan_range merges) {
    if (!json_is_object(root)) return REFUSE(r, "%s: not an object", r->name);
    int code = read_model(r, json_object_get(root, "model"));
    if (!code) code = read_normalizer(r, json_object_get(root, "normalizer"), 0);
    if (!code) code = read_patterns(r, json_object_get(root, "pre_tokenizer"));
    const json_t *decoder = json_object_get(root, "decoder");
    if (!code && json_is_object(decoder) && strcmp(type_of(decoder), "ByteLevel") != 0)
        code = UNSUPPORTED(r, "%s: decoder \"%.40s\" is not ByteLevel", r->name, type_of(decoder));
    if (!code) code = read_vocab(r, vocab);
    if (!code) code = vocab_index(&r->t->vocab, r->name, r->e);
    if (!code) code = read_merges(r, merges);
    if (!code) code = read_added(r, json_object_get(root, "added_tokens"));
    if (!code) code = vocab_seal(&r->t->vocab, r->name, r->e);
    return code;
}

int tokenizer_read(struct tokenizer *t, const char *json, size_t n, const char *name, struct weft_error *e) {
    struct reader r = {.t = t, .name = name, .e = e};
    struct scan_range vocab, merges;
    json_t *root = NULL;
    if (n > JSON_BYTES_MAX) return REFUSE(&r, "%s: larger than %d bytes", name, JSON_BYTES_MAX);
    fill_letters(&r);
    /* Vocabularies have gaps between ids, but none as long as the file, and every id costs memory. */
    if (n < VOCAB_IDS_MAX - 65536) t->vocab.ids_max = 65536 + (int32_t)n;
    t->chars = chars_table();
    int found = scan_find_parts(json, n, &vocab, &merges);
    if (found == -2) return REFUSE(&r, "%s: model, model.vocab or model.merges stands twice", name);
    if (found) vocab = merges = (struct scan_range){0}; /* broken somewhere: the parser finds where */
    int code = parse_rest(&r, json, n, vocab, merges, &root);
    if (!code) code = found ? REFUSE(&r, "%s: not a tokenizer.json", name) : read_parts(&r, root, vocab, merges);
    json_decref(root);
    return code;
}
