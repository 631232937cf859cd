/* Known spans: tokens that the caller knows already (forced by a grammar, a template, a tool's result) are appended in one step,
 * with logits only where the model is to choose. Here the model fills the blanks of a form:
 *     spans MODEL */
#include <stdio.h>
#include <string.h>
#include <weft.h>

struct form { struct weft_model *model; struct weft_engine *engine; struct weft_sequence *sequence; const float *logits; };

/* Rows of a known text; logits of its last row. Added tokens in it are found. */
static int append(struct form *f, const char *text, struct weft_error *e) {
    int32_t *ids = NULL;
    size_t n = 0;
    int r = weft_tokenize(f->model, text, strlen(text), WEFT_ADDED_ALL, &ids, &n, e);
    if (r == 0) {
        struct weft_group group = {.sequence = f->sequence, .n_rows = (int)n, .tokens = ids, .n_logits = 1};
        r = weft_step(f->engine, &group, 1, NULL, e);
        f->logits = group.logits;
    }
    weft_free(ids);
    return r;
}

/* What the model writes, up to `max` tokens or a token that holds `stop`. */
static int fill(struct form *f, int max, char stop, struct weft_error *e) {
    struct weft_sampling greedy;
    weft_sampling_defaults(f->model, &greedy);
    greedy.temperature = 0;
    int r = 0;
    for (int i = 0; i < max && r == 0; i++) {
        int32_t token;
        char *text = NULL;
        size_t n = 0;
        r = weft_sample(f->sequence, f->logits, &greedy, &token, e);
        if (r == 0) r = weft_detokenize(f->model, &token, 1, 1, &text, &n, e);
        int done = r != 0 || n == 0 || memchr(text, stop, n) != NULL;
        if (r == 0 && !done) fwrite(text, 1, n, stdout);
        weft_free(text);
        if (done) return r;
        struct weft_group group = {.sequence = f->sequence, .n_rows = 1, .tokens = &token, .n_logits = 1};
        r = weft_step(f->engine, &group, 1, NULL, e);
        f->logits = group.logits;
    }
    return r;
}

int main(int argc, char **argv) {
    static const char question[] = "<|im_start|>user\nMy name is Milo and I live in Prague.<|im_end|>\n<|im_start|>assistant\n"
                                   "<think>\n\n</think>\n\nNice to meet you, Milo.<|im_end|>\n<|im_start|>user\nWhere do I live?"
                                   "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    static const char known[] = "You live in"; /* forced: the model only says where */
    struct weft_error e = {0};
    struct form f = {0};
    int r = weft_model_open(&f.model, argc > 1 ? argv[1] : "models/tiny", NULL, &e);
    if (r == 0) r = weft_engine_open(&f.engine, f.model, NULL, &e);
    if (r == 0) r = weft_sequence_new(&f.sequence, f.engine, 256, &e);
    if (r == 0) r = append(&f, question, &e);
    if (r == 0) r = append(&f, known, &e);
    if (r == 0) printf("[%s]", known), r = fill(&f, 8, '.', &e), printf("\n");
    if (r != 0) fprintf(stderr, "%s\n", e.message);
    weft_sequence_free(f.sequence);
    if (f.engine) weft_engine_close(f.engine);
    weft_model_close(f.model);
    return r != 0;
}
