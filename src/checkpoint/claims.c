/* The quantization block of config.json: what it says about each module. Shapes decide; this only cross-checks. */
#include <string.h>

#include "base/json.h"
#include "checkpoint/files.h"

static const json_t *find_block(const struct config *c) {
    static const char *const keys[] = {"quantization", "quantization_config"};
    const json_t *places[] = {c->raw, c->text};
    for (int p = 0; p < 2; p++)
        for (int k = 0; k < 2; k++) {
            const json_t *block = json_object_get(places[p], keys[k]);
            if (block && !json_is_null(block)) return block;
        }
    return NULL;
}

/* Blocks in Hugging Face's style name a method. Of those only fp8 in blocks of 128 is read. */
static int check_method(const json_t *block, const char *path, struct weft_error *e) {
    const char *method = NULL;
    int code = json_get_text(block, "quant_method", 0, &method, path, e);
    if (code || !method) return code;
    if (strcmp(method, "fp8") != 0)
        return error_set(e, WEFT_ERROR_SUPPORT, "%s: quantization method \"%s\" is not supported", path, method);
    const json_t *size = json_object_get(block, "weight_block_size");
    if (json_array_size(size) != 2 || json_integer_value(json_array_get(size, 0)) != 128 ||
        json_integer_value(json_array_get(size, 1)) != 128)
        return error_set(e, WEFT_ERROR_SUPPORT, "%s: fp8 with a \"weight_block_size\" other than [128, 128] is not supported", path);
    return 0;
}

int checkpoint_read_claims(struct checkpoint *c, const char *config_path, struct weft_error *e) {
    const json_t *block = find_block(&c->config);
    if (!block) return 0;
    if (!json_is_object(block)) return error_set(e, WEFT_ERROR_INPUT, "%s: \"quantization\" is no object", config_path);
    int code = check_method(block, config_path, e);
    if (code) return code;
    struct checkpoint_files *f = c->files;
    f->global = block, f->claims = json_object();
    if (!f->claims) return error_memory(e, config_path);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)block, key, v) {
        char name[NAME_ROOM];
        if (!json_is_object(v) && !json_is_boolean(v)) continue;
        if (name_canonical(key, c->config.drafter, name) < 0) continue;
        if (json_object_set(f->claims, name, v)) return error_memory(e, config_path);
    }
    return 0;
}

static int positive(const json_t *o, const char *key) {
    json_int_t v = json_integer_value(json_object_get(o, key));
    return v > 0 && v < 1 << 20 ? (int)v : 0;
}

int checkpoint_claim(const struct checkpoint *c, const char *module, struct quantization_claim *out) {
    const struct checkpoint_files *f = c->files;
    *out = (struct quantization_claim){0};
    if (!f->global) return 0;
    const json_t *own = json_object_get(f->claims, module);
    if (json_is_false(own)) return 1;
    const json_t *o = json_is_object(own) ? own : f->global;
    const char *mode = json_string_value(json_object_get(o, json_object_get(o, "quant_method") ? "quant_method" : "mode"));
    if (!mode) mode = "affine";
    out->quantized = 1, out->bits = positive(o, "bits"), out->group = positive(o, "group_size");
    strncpy(out->mode, mode, sizeof out->mode - 1);
    return 1;
}
