#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "engine/score.h"

struct options { const char *tokens_file, *kl_save, *kl, *session; int mtp, json; };

/* One window of the text. Its rows are rows [row0, row0 + n) of the reference. */
struct window { const int32_t *tokens; int n; int64_t row0; double nll, kl; int64_t same; };

struct measure {
    struct run *run;
    const struct options *o;
    struct id_lines lines;
    struct window *windows; int n_windows;
    int64_t n_rows, n_predicted;
    struct safetensors_writer *save;
    struct safetensors *reference; const struct tensor *logits;
    float *row;                       /* [vocab] of the reference */
    struct window *now;
};

/* Sequences longer than the context are cut into windows of that many tokens; a rest of one token predicts nothing and is left. */
static int cut_windows(struct measure *m, int context, struct weft_error *e) {
    int n = 0;
    for (int i = 0; i < m->lines.n; i++) n += (m->lines.n_ids[i] + context - 1) / context;
    if (!(m->windows = mem_new((size_t)n, sizeof *m->windows))) return error_memory(e, "the windows of the text");
    for (int i = 0; i < m->lines.n; i++)
        for (int at = 0; at < m->lines.n_ids[i]; at += context) {
            int take = m->lines.n_ids[i] - at < context ? m->lines.n_ids[i] - at : context;
            if (take < 2) continue;
            m->windows[m->n_windows++] = (struct window){.tokens = m->lines.ids[i] + at, .n = take, .row0 = m->n_rows};
            m->n_rows += take, m->n_predicted += take - 1;
        }
    return m->n_windows ? 0 : error_set(e, WEFT_ERROR_INPUT, "the text has fewer than two tokens");
}

static int read_text(struct measure *m, const char *path, struct weft_error *e) {
    if (m->o->tokens_file) return id_lines_read(&m->lines, m->o->tokens_file, e);
    int32_t *ids = NULL;
    int n, code = ids_of_text(&ids, &n, m->run->model, path, e);
    if (code) return code;
    m->lines.ids = mem_new(1, sizeof *m->lines.ids), m->lines.n_ids = mem_new(1, sizeof *m->lines.n_ids);
    if (!m->lines.ids || !m->lines.n_ids) return mem_free(ids), error_memory(e, path);
    m->lines.ids[0] = ids, m->lines.n_ids[0] = n, m->lines.n = 1;
    return 0;
}

static int open_reference(struct measure *m, struct weft_error *e) {
    const char *path = m->o->kl;
    int vocab = m->run->info.vocab, code = safetensors_open(&m->reference, path, e);
    if (code) return code;
    const struct tensor *t = m->logits = safetensors_find(m->reference, "logits");
    if (!t) return error_set(e, WEFT_ERROR_INPUT, "%s: no tensor \"logits\"", path);
    char shape[TENSOR_SHAPE_TEXT];
    if (!dtype_is_float(t->dtype) || t->n_dims != 2 || t->shape[0] != m->n_rows || t->shape[1] != vocab)
        return error_set(e, WEFT_ERROR_INPUT, "%s: logits is %s %s; this text has %lld rows of %d", path, dtype_name(t->dtype),
                         tensor_shape_text(t, shape), (long long)m->n_rows, vocab);
    m->row = mem_new((size_t)vocab, sizeof *m->row);
    return m->row ? 0 : error_memory(e, path);
}

static int largest(const float *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* sum p (log p - log q): p the reference, q ours. */
static int compare_row(struct measure *m, int row, const float *q, double q_norm, struct weft_error *e) {
    int vocab = m->run->info.vocab;
    const float *p = m->row;
    tensor_to_floats(m->logits, (m->now->row0 + row) * (int64_t)vocab, vocab, m->row);
    double p_norm = score_logsumexp(p, vocab), kl = 0;
    if (!isfinite(p_norm))
        return error_set(e, WEFT_ERROR_NUMERIC, "%s: row %lld is not finite", m->o->kl, (long long)(m->now->row0 + row));
    for (int i = 0; i < vocab; i++) {
        double lp = (double)p[i] - p_norm;
        kl += exp(lp) * (lp - ((double)q[i] - q_norm));
    }
    m->now->kl += kl;
    m->now->same += largest(p, vocab) == largest(q, vocab);
    return 0;
}

static int take_rows(void *arg, const struct score_rows *rows, struct weft_error *e) {
    struct measure *m = arg;
    if (!rows->logits) return 0;
    int vocab = m->run->info.vocab, code = 0;
    for (int i = 0; i < rows->n_rows && !code; i++) {
        const float *x = rows->logits + (size_t)i * (size_t)vocab;
        int row = rows->row0 + i;
        double norm = score_logsumexp(x, vocab);
        if (!isfinite(norm)) return error_set(e, WEFT_ERROR_NUMERIC, "logits of token %d are not finite", row);
        if (row + 1 < m->now->n) m->now->nll += norm - (double)x[m->now->tokens[row + 1]];
        if (m->logits) code = compare_row(m, row, x, norm, e);
    }
    if (!code && m->save) code = safetensors_write(m->save, rows->logits, (size_t)rows->n_rows * (size_t)vocab * sizeof(float), e);
    progress_show(NULL, "reading", (double)(m->now->row0 + rows->row0 + rows->n_rows) / (double)m->n_rows);
    return code;
}

static int measure_windows(struct measure *m, struct score_agreement *agreement, struct weft_error *e) {
    int code = 0;
    for (int i = 0; i < m->n_windows && !code; i++) {
        m->now = &m->windows[i];
        for (int t = 0; t < m->now->n && !code; t++)
            if (m->now->tokens[t] < 0 || m->now->tokens[t] >= m->run->info.vocab)
                code = error_set(e, WEFT_ERROR_INPUT, "token id %d is outside the vocabulary of %d", m->now->tokens[t],
                                 m->run->info.vocab);
        struct score_input in = {.tokens = m->now->tokens, .n_tokens = m->now->n, .adapters = m->run->uses, .n_adapters = m->run->n_uses,
                                 .session = m->o->session};
        if (!code) code = score_run(m->run->engine, &in, take_rows, m, e);
        if (!code && m->o->mtp) code = score_mtp_agreement(m->run->engine, &in, m->o->mtp, agreement, e);
    }
    progress_end();
    return code;
}

static double ratio(int64_t a, int64_t b) { return b ? (double)a / (double)b : 0; }

static void report(struct measure *m, const struct score_agreement *x) {
    double nll = 0, kl = 0;
    int64_t same = 0;
    json_t *o = json_object(), *nll_rows = json_array(), *kl_rows = json_array(), *agree = json_array(), *kept = json_array();
    for (int i = 0; i < m->n_windows; i++) {
        const struct window *w = &m->windows[i];
        nll += w->nll, kl += w->kl, same += w->same;
        json_array_append_new(nll_rows, json_real(w->nll / (w->n - 1)));
        json_array_append_new(kl_rows, json_real(w->kl / w->n));
    }
    nll /= (double)m->n_predicted, kl /= (double)m->n_rows;
    for (int d = 0; d < m->o->mtp; d++) {
        json_array_append_new(agree, json_real(ratio(x->agree[d], x->rows[d])));
        json_array_append_new(kept, json_real(ratio(x->kept_agree[d], x->kept_rows[d])));
    }
    if (m->o->json) {
        json_object_set_new(o, "nll", json_real(nll)), json_object_set(o, "nll_rows", nll_rows);
        json_object_set_new(o, "tokens", json_integer(m->n_predicted));
        if (m->logits) {
            json_object_set_new(o, "kl", json_real(kl)), json_object_set(o, "kl_rows", kl_rows);
            json_object_set_new(o, "top1", json_real(ratio(same, m->n_rows)));
        }
        if (m->o->mtp) json_object_set(o, "agree", agree), json_object_set(o, "agree_when_kept", kept);
        char *text = json_dumps(o, JSON_REAL_PRECISION(15));
        out_text(text ? text : "{}"), out_text("\n");
        free(text);
    } else {
        out_printf("perplexity %.4f, %.6f nats a token over %lld tokens\n", exp(nll), nll, (long long)m->n_predicted);
        if (m->logits)
            out_printf("KL %.4g nats, the same choice in %.2f%% of %lld rows\n", kl, 100 * ratio(same, m->n_rows),
                       (long long)m->n_rows);
        for (int d = 0; d < m->o->mtp; d++)
            out_printf("draft %d: right in %.2f%%, %.2f%% where those before it were kept\n", d + 1,
                       100 * json_real_value(json_array_get(agree, (size_t)d)), 100 * json_real_value(json_array_get(kept, (size_t)d)));
    }
    json_decref(o), json_decref(nll_rows), json_decref(kl_rows), json_decref(agree), json_decref(kept);
}

static int measure_all(struct measure *m, const char *file, int context, struct weft_error *e) {
    struct score_agreement agreement = {0};
    int vocab = m->run->info.vocab, code = read_text(m, file, e);
    if (!code) code = cut_windows(m, context, e);
    if (!code && m->o->kl) code = open_reference(m, e);
    if (!code && m->o->kl_save) {
        struct tensor_spec spec = {"logits", DTYPE_F32, 2, {m->n_rows, vocab}};
        code = safetensors_open_writer(&m->save, m->o->kl_save, &spec, 1, NULL, 0, e);
    }
    if (!code) code = measure_windows(m, &agreement, e);
    if (m->save) {
        int closed = safetensors_close_writer(m->save, !code, code ? NULL : e);
        if (!code) code = closed;
    }
    if (!code) report(m, &agreement);
    id_lines_drop(&m->lines), mem_free(m->windows), mem_free(m->row);
    safetensors_close(m->reference);
    return code;
}

static int run(int argc, char **argv, struct weft_error *e) {
    struct options o = {0};
    struct run_options ro = {0};
    const struct arg list[] = {
        {"tokens-file", 0, ARG_TEXT, &o.tokens_file, "F", "token ids instead of a text, one sequence a line", 0, 0},
        {"kl-save", 0, ARG_TEXT, &o.kl_save, "F", "write the logits, as reference for --kl", 0, 0},
        {"kl", 0, ARG_TEXT, &o.kl, "F", "compare with such a reference", 0, 0},
        {"mtp", 0, ARG_COUNT, &o.mtp, "N", "how often the multi-token head is right, depth 1 to N", 1, WEFT_DRAFT_MAX},
        {"session", 0, ARG_TEXT, &o.session, "F", "every window follows the tokens of a saved session", 0, 0},
        {"json", 0, ARG_FLAG, &o.json, "", "one JSON object", 0, 0},
    };
    struct arg model_args[RUN_MODEL_ARGS], engine_args[RUN_ENGINE_ARGS];
    struct args a = {
        .usage = "MODEL (FILE | --tokens-file F) [--context N]",
        .about = "How well the model foresees a text: mean negative log likelihood, in nats a token. The text is cut into windows\n"
                 "of --context tokens (by default 2048), each read by itself.",
        .group = {{"Options", list, sizeof list / sizeof *list}, run_model_args(&ro, model_args), run_engine_args(&ro, engine_args)},
        .n_groups = 3, .min_positional = 1, .max_positional = 2};
    int code = args_parse(&a, argc, argv, e);
    if (code) return code < 0 ? code : 0;
    if (o.mtp && o.session) return error_set(e, WEFT_ERROR_INPUT, "--mtp begins with the first token: it does not go with --session");
    if ((a.n_positional == 2) == (o.tokens_file != NULL))
        return error_set(e, WEFT_ERROR_INPUT, "give either a FILE or --tokens-file");
    int context = ro.context ? ro.context : 2048;
    if (context < 2) return error_set(e, WEFT_ERROR_INPUT, "--context: a window has at least two tokens");
    struct run r;
    code = run_open(&r, a.positional[0], &ro, e);
    if (code) return code;
    if (!ro.context && context > r.info.context) context = r.info.context;
    struct measure m = {.run = &r, .o = &o};
    if (o.mtp && !r.info.has_mtp)
        code = error_set(e, WEFT_ERROR_INPUT, "%s: there is no multi-token head for --mtp", r.info.folder);
    if (!code) code = measure_all(&m, a.n_positional == 2 ? a.positional[1] : NULL, context, e);
    run_close(&r);
    return code;
}

const struct command command_perplexity = {"perplexity", "how well a model foresees a text", run};
