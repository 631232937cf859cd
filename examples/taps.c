/* Hidden layers: the residual stream after chosen layers and the rows after the final norm, as outside drafters, embeddings and
 * research want them. Prints how large they are at the last token, and that the head makes of the final row what the step did:
 *     taps MODEL TEXT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

static double size(const float *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum / n);
}

static int look(struct weft_model *model, struct weft_engine *engine, const char *text, struct weft_error *e) {
    struct weft_model_info info;
    struct weft_sequence *sequence = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    weft_model_info(model, &info);
    float *logits = malloc((size_t)info.vocab * sizeof *logits);
    int r = logits ? weft_tokenize(model, text, strlen(text), WEFT_ADDED_PLAIN, &ids, &n, e) : -1;
    if (r == 0) r = weft_sequence_new(&sequence, engine, (int)n, e);
    if (r == 0) {
        const int layers[] = {0, info.layers / 2, info.layers - 1};
        struct weft_group group = {.sequence = sequence, .n_rows = (int)n, .tokens = ids, .n_logits = 1, .want_hidden = 1,
                                   .want_taps = 1};
        r = weft_step(engine, &group, 1, &(struct weft_step_options){.taps = layers, .n_taps = 3}, e);
        if (r == 0) {
            size_t last = (n - 1) * (size_t)info.hidden;
            for (int i = 0; i < 3; i++)
                printf("after layer %d: %.4f\n", layers[i], size(group.taps[i] + last, info.hidden));
            printf("after the final norm: %.4f\n", size(group.hidden + last, info.hidden));
            float *copy = malloc((size_t)info.vocab * sizeof *copy);
            if (copy) memcpy(copy, group.logits, (size_t)info.vocab * sizeof *copy);
            r = weft_head(engine, group.hidden + last, 1, logits, e);
            if (r == 0 && copy) printf("the head gives %s\n", memcmp(copy, logits, (size_t)info.vocab * sizeof *copy) ? "other logits" : "the same logits");
            free(copy);
        }
    }
    weft_sequence_free(sequence);
    weft_free(ids);
    free(logits);
    return r;
}

int main(int argc, char **argv) {
    struct weft_error e = {0};
    struct weft_model *model = NULL;
    struct weft_engine *engine = NULL;
    int r = weft_model_open(&model, argc > 1 ? argv[1] : "models/tiny", NULL, &e);
    if (r == 0) r = weft_engine_open(&engine, model, NULL, &e);
    if (r == 0) r = look(model, engine, argc > 2 ? argv[2] : "The quick brown fox", &e);
    if (r != 0) fprintf(stderr, "%s\n", e.message);
    if (engine) weft_engine_close(engine);
    weft_model_close(model);
    return r != 0;
}
