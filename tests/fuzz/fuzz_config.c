/* Any JSON as config.json and generation_config.json: refused with a sentence, or every field within its promise. */
#include <string.h>

#include "base/json.h"
#include "checkpoint/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check(const struct config *c) {
    CHECK(c->hidden > 0 && c->vocab > 0 && c->n_layers > 0 && c->n_layers <= CONFIG_LAYERS);
    CHECK(c->rotary_dim >= 2 && c->rotary_dim % 2 == 0 && c->rotary_dim <= c->head_dim);
    CHECK(c->mrope_sections[0] + c->mrope_sections[1] + c->mrope_sections[2] == c->rotary_dim / 2);
    CHECK(c->n_heads % c->n_kv_heads == 0 && (int64_t)c->n_heads * c->head_dim < 1 << 24);
    CHECK(c->n_experts ? c->top_k >= 1 && c->top_k <= c->n_experts && c->moe_intermediate > 0 : c->intermediate > 0);
    for (int i = 0; i < c->n_layers; i++)
        CHECK(c->layer_kinds[i] == LAYER_FULL || (c->linear_k_heads > 0 && c->linear_v_heads % c->linear_k_heads == 0));
    for (int i = 0; i < c->n_ends; i++) CHECK(c->ends[i] >= 0 && c->ends[i] < c->vocab);
    CHECK(c->rope_theta >= 1 && c->rms_eps >= 0 && strlen(c->model_type) < sizeof c->model_type);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    json_t *raw;
    struct weft_error e = {0};
    int code = json_parse(&raw, (const char *)bytes, n_bytes, "fuzz", &e);
    CHECK(code == 0 || (code < 0 && e.message[0]));
    if (code) return 0;
    struct config c;
    code = config_read(&c, raw, "fuzz", &e);
    CHECK(code == 0 || (code < 0 && e.message[0]));
    if (!code) check(&c);
    struct generation_config g;
    generation_config_read(&g, raw, 64);
    CHECK(g.n_ends >= 0 && g.n_ends <= CONFIG_ENDS && (!g.has_top_p || (g.top_p >= 0 && g.top_p <= 1)));
    json_decref(raw);
    return 0;
}
