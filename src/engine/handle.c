/* The public model handle: a folder's weights, tokenizer and chat template, and its text functions. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "text/template.h"

#ifndef WEFT_VERSION
#define WEFT_VERSION "0.1.0"
#endif

const char *weft_version(void) { return WEFT_VERSION; }

void weft_free(void *p) { mem_free(p); }

void weft_set_log(void (*sink)(void *arg, int level, const char *line), void *arg) { log_set_sink(sink, arg); }

/* Both files' end tokens count: some folders name the turn's end in the one and the text's in the other. */
static void add_ends(struct weft_model *m, const int *ends, int n) {
    for (int i = 0; i < n; i++) {
        int known = ends[i] < 0 || ends[i] >= model_config(m->model)->vocab || m->n_ends == CONFIG_ENDS;
        for (int j = 0; j < m->n_ends; j++) known |= m->ends[j] == ends[i];
        if (!known) m->ends[m->n_ends++] = ends[i];
    }
}

static int32_t newline_token(const struct weft_model *m) {
    struct token_list list = {0};
    int32_t id = -1;
    if (m->tokenizer && !tokenizer_encode(m->tokenizer, "\n", 1, TOKENIZER_ADDED_NONE, &list, NULL) && list.n == 1)
        id = list.ids[0];
    token_list_drop(&list);
    return id;
}

static int has_file(const struct weft_model *m, const char *name) {
    char *path = file_join(m->folder, name);
    int there = path && file_exists(path);
    mem_free(path);
    return there;
}

static int find_specials(struct weft_model *m, struct weft_error *e) {
    int32_t size = tokenizer_size(m->tokenizer), n = 0;
    for (int32_t id = 0; id < size; id++) n += tokenizer_is_special(m->tokenizer, id);
    m->specials = mem_new((size_t)n + 1, sizeof *m->specials);
    if (!m->specials) return error_memory(e, "the special tokens");
    for (int32_t id = 0; id < size; id++) {
        struct special s = {.id = id};
        if (!tokenizer_is_special(m->tokenizer, id)) continue;
        s.text = tokenizer_bytes(m->tokenizer, id, &s.n_bytes);
        if (s.n_bytes) m->specials[m->n_specials++] = s;
    }
    return 0;
}

static int open_text(struct weft_model *m, struct weft_error *e) {
    int code = 0;
    if (has_file(m, "tokenizer.json")) {
        char *path = file_join(m->folder, "tokenizer.json");
        code = path ? tokenizer_open(&m->tokenizer, path, e) : error_memory(e, "a file name");
        mem_free(path);
        if (!code) code = find_specials(m, e);
    }
    /* a folder without a template, or with one that does not compile, still takes raw text: the sentence comes with the first
     * chat */
    if (!code) template_open(&m->chat, m->folder, &m->chat_error);
    return code;
}

int weft_model_open(struct weft_model **out, const char *path, const struct weft_model_options *o, struct weft_error *e) {
    static const struct weft_model_options none;
    if (!o) o = &none;
    struct weft_model *m = mem_new(1, sizeof *m);
    if (!m) return error_memory(e, "the model");
    struct model_options options = {.backend = o->device,
                                    .isa = o->isa,
                                    .precision = o->precision == WEFT_PRECISION_HIGH ? PRECISION_HIGH : PRECISION_DEFAULT,
                                    .n_threads = o->threads,
                                    .max_rows = o->step_rows,
                                    .max_groups = o->parallel,
                                    .max_logits = o->step_logits,
                                    .max_context = o->context,
                                    .without_mtp = o->without_mtp,
                                    .norms = (enum norm_override)o->norms,
                                    .mtp_norms = (enum norm_override)o->mtp_norms,
                                    .progress = o->progress,
                                    .progress_arg = o->progress_arg};
    int code = checkpoint_find(&m->folder, path, o->hub_cache, e);
    if (!code) code = model_open(&m->model, m->folder, &options, e);
    if (!code) code = open_text(m, e);
    if (code) {
        weft_model_close(m);
        return code;
    }
    const struct config *c = model_config(m->model);
    const struct generation_config *g = &model_checkpoint(m->model)->generation;
    add_ends(m, g->ends, g->n_ends);
    add_ends(m, c->ends, c->n_ends);
    m->newline = newline_token(m);
    *out = m;
    return 0;
}

void weft_model_close(struct weft_model *m) {
    if (!m) return;
    model_close(m->model);
    template_close(m->chat);
    tokenizer_close(m->tokenizer);
    mem_free(m->specials);
    mem_free(m->folder);
    mem_free(m);
}

void weft_model_info(const struct weft_model *m, struct weft_model_info *out) {
    const struct config *c = model_config(m->model);
    const struct model_options *limits = model_limits(m->model);
    struct backend *b = model_backend(m->model);
    struct model_bytes bytes;
    model_sizes(m->model, &bytes);
    *out = (struct weft_model_info){
        .folder = m->folder, .model_type = c->model_type, .arithmetic = b->table->arithmetic(b), .isa = b->table->isa(b),
        .fingerprint = model_fingerprint(m->model), .vocab = c->vocab, .hidden = c->hidden, .layers = c->n_layers,
        .context = limits->max_context, .threads = b->pool ? pool_threads(b->pool) : 1, .step_rows = limits->max_rows,
        .step_logits = limits->max_logits, .parallel = limits->max_groups, .has_mtp = model_has_mtp(m->model),
        .has_tokenizer = m->tokenizer != NULL, .has_template = m->chat != NULL, .n_ends = m->n_ends, .ends = m->ends,
        .packed_bytes = bytes.packed, .mapped_bytes = bytes.mapped, .workspace_bytes = bytes.workspace};
}

void weft_sampling_defaults(const struct weft_model *m, struct weft_sampling *out) {
    const struct generation_config *g = &model_checkpoint(m->model)->generation;
    *out = (struct weft_sampling){.top_p = 1, .min_keep = 1, .xtc_threshold = 0.1f};
    if (g->has_top_p) out->top_p = (float)g->top_p;
    if (g->has_top_k) out->top_k = g->top_k;
    if (g->has_min_p) out->min_p = (float)g->min_p;
    if (g->has_repetition_penalty) out->repetition_penalty = (float)g->repetition_penalty;
    if (g->has_presence_penalty) out->presence_penalty = (float)g->presence_penalty;
    /* do_sample false makes the temperature in the file meaningless; true without one means 1 */
    if (g->do_sample != 0) out->temperature = g->has_temperature ? (float)g->temperature : g->do_sample == 1 ? 1 : 0;
}

static int need_tokenizer(const struct weft_model *m, struct weft_error *e) {
    return m->tokenizer ? 0 : error_set(e, WEFT_ERROR_INPUT, "%s has no tokenizer.json: give token ids", m->folder);
}

int weft_tokenize(struct weft_model *m, const char *text, size_t n_bytes, int added, int32_t **ids, size_t *n_ids,
                  struct weft_error *e) {
    enum tokenizer_added which = added == WEFT_ADDED_ALL    ? TOKENIZER_ADDED_ALL
                                 : added == WEFT_ADDED_NONE ? TOKENIZER_ADDED_NONE
                                                            : TOKENIZER_ADDED_PLAIN;
    struct token_list list = {0};
    int code = need_tokenizer(m, e);
    if (!code) code = token_list_reserve(&list, 1) ? error_memory(e, "tokens") : 0;
    if (!code) code = tokenizer_encode(m->tokenizer, text, n_bytes, which, &list, e);
    if (code) token_list_drop(&list);
    else *ids = list.ids, *n_ids = list.n;
    return code;
}

int weft_detokenize(struct weft_model *m, const int32_t *ids, size_t n_ids, int skip_special, char **text, size_t *n_bytes,
                    struct weft_error *e) {
    struct buf out;
    buf_init(&out);
    int code = need_tokenizer(m, e);
    buf_add_text(&out, "");
    if (!code) code = tokenizer_decode(m->tokenizer, ids, n_ids, skip_special, &out, e);
    if (code) {
        buf_drop(&out);
        return code;
    }
    *text = buf_take(&out, n_bytes);
    return *text ? 0 : error_memory(e, "the text");
}
