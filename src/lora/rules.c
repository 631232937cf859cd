#define PCRE2_CODE_UNIT_WIDTH 8
#include "lora/rules.h"

#include <math.h>
#include <pcre2.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

enum { CONFIG_BYTES = 16 << 20 };

struct rule { pcre2_code *code; pcre2_match_data *match; double value; };

/* ---- PEFT ---- */

/* Fields that change what the forward computes, in ways that are not implemented. */
static int refuse_fields(const json_t *o, const char *path, struct weft_error *e) {
    static const char *const fields[] = {"alora_invocation_tokens", "arrow_config", "fan_in_fan_out",    "kasa_config",
                                         "layer_replication",       "lora_bias",    "monteclora_config", "target_parameters",
                                         "trainable_token_indices", "use_bdlora",   "use_qalora"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = json_object_get(o, fields[i]);
        int unset = !v || json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
                    (json_is_object(v) && !json_object_size(v));
        if (!unset) return error_set(e, WEFT_ERROR_SUPPORT, "%s: \"%s\" is set, which is not supported", path, fields[i]);
    }
    /* These begin by taking something out of the base's weights; the published base is then not what the adapter adds to. */
    static const char *const changes_base[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
    const char *init = json_string_value(json_object_get(o, "init_lora_weights"));
    for (size_t i = 0; init && i < sizeof changes_base / sizeof *changes_base; i++)
        if (strncmp(init, changes_base[i], strlen(changes_base[i])) == 0)
            return error_set(e, WEFT_ERROR_SUPPORT,
                             "%s: \"init_lora_weights\" is \"%s\", which changes the base: convert the adapter to plain LoRA",
                             path, init);
    return 0;
}

static int add_rule(struct rule *out, const char *pattern, double value, const char *path, struct weft_error *e) {
    struct buf whole;
    int number;
    PCRE2_SIZE at;
    buf_init(&whole);
    buf_printf(&whole, "^(?:.*\\.)?(?:%s)$", pattern);
    if (whole.failed) return buf_drop(&whole), error_memory(e, path);
    out->value = value;
    out->code = pcre2_compile((PCRE2_SPTR)whole.data, whole.n, 0, &number, &at, NULL);
    buf_drop(&whole);
    if (!out->code) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(number, why, sizeof why);
        return error_set(e, WEFT_ERROR_INPUT, "%s: the pattern \"%.200s\" is no regular expression: %s", path, pattern,
                         (const char *)why);
    }
    out->match = pcre2_match_data_create_from_pattern(out->code, NULL);
    return out->match ? 0 : error_memory(e, path);
}

static int read_patterns(struct rule **out, int *n, const json_t *o, const char *key, const char *path, struct weft_error *e) {
    json_t *patterns = json_object_get(o, key), *v;
    const char *pattern;
    if (!patterns || json_is_null(patterns)) return 0;
    if (!json_is_object(patterns)) return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" is no object", path, key);
    *out = mem_new(json_object_size(patterns), sizeof **out);
    if (!*out) return error_memory(e, path);
    json_object_foreach(patterns, pattern, v) {
        double value = json_number_value(v);
        if (!json_is_number(v) || !isfinite(value) || value < 0)
            return error_set(e, WEFT_ERROR_INPUT, "%s: \"%s\" of \"%.200s\" is no number from 0", path, key, pattern);
        int code = add_rule(&(*out)[(*n)++], pattern, value, path, e);
        if (code) return code;
    }
    return 0;
}

static int read_peft(struct rules *r, const json_t *o, struct weft_error *e) {
    const char *type = NULL, *bias = NULL;
    int code = json_get_text(o, "peft_type", 1, &type, r->config, e);
    if (code) return code;
    if (strcmp(type, "LORA") != 0)
        return error_set(e, WEFT_ERROR_SUPPORT, "%s: peft_type is %.60s, only LORA is supported", r->config, type);
    if ((code = refuse_fields(o, r->config, e))) return code;
    if ((code = json_get_text(o, "bias", 0, &bias, r->config, e))) return code;
    r->rank = 8, r->alpha = 8; /* as PEFT has them when a file does not */
    (void)((code = json_get_number(o, "r", 0, 0, 1 << 20, &r->rank, r->config, e)) ||
        (code = json_get_number(o, "lora_alpha", 0, 0, 1e9, &r->alpha, r->config, e)) ||
        (code = json_get_bool(o, "use_rslora", 0, &r->root_rank, r->config, e)) ||
        (code = json_get_bool(o, "use_dora", 0, &r->dora, r->config, e)) ||
        (code = json_get_bool(o, "ensure_weight_tying", 0, &r->tie, r->config, e)) ||
        (code = read_patterns(&r->alphas, &r->n_alphas, o, "alpha_pattern", r->config, e)) ||
        (code = read_patterns(&r->ranks, &r->n_ranks, o, "rank_pattern", r->config, e)));
    return code;
}

/* ---- MLX ---- */

static int read_scale(struct rules *r, const json_t *o, const char *path, struct weft_error *e) {
    const json_t *parameters = json_object_get(o, "lora_parameters");
    if (!json_is_object(parameters) || !json_object_get(parameters, "scale")) return 0;
    r->has_scale = 1;
    return json_get_number(parameters, "scale", 1, -1e6, 1e6, &r->scale, path, e);
}

static int read_mlx(struct rules *r, const json_t *o, const char *folder, struct weft_error *e) {
    const char *type = "lora";
    int code = json_get_text(o, "fine_tune_type", 0, &type, r->config, e);
    if (code) return code;
    r->full = strcmp(type, "full") == 0, r->dora = strcmp(type, "dora") == 0, r->tie = 1;
    if (!r->full && !r->dora && strcmp(type, "lora") != 0)
        return error_set(e, WEFT_ERROR_SUPPORT, "%s: fine_tune_type \"%.60s\" is not supported", r->config, type);
    if ((code = read_scale(r, o, r->config, e))) return code;
    /* Another trainer's record beside it; its scale is the one that was trained with. */
    char *path = file_join(folder, "optiq_lora_config.json");
    if (!path) return error_memory(e, folder);
    json_t *record = NULL;
    if (file_exists(path)) code = json_read_file(&record, path, CONFIG_BYTES, e);
    if (record) code = read_scale(r, record, path, e);
    json_decref(record);
    mem_free(path);
    return code;
}

/* ---- both ---- */

static int has_file(const char *folder, const char *name, char **path, struct weft_error *e) {
    mem_free(*path);
    *path = file_join(folder, name);
    return *path ? file_exists(*path) : error_memory(e, folder);
}

static int find_tensors(struct rules *r, const char *folder, int is_peft, struct weft_error *e) {
    static const char *const names[] = {"adapter_model.safetensors", "adapters.safetensors"};
    r->format = is_peft ? FORMAT_PEFT : FORMAT_MLX;
    int found = has_file(folder, names[r->format], &r->tensors, e);
    if (found) return found < 0 ? found : 0;
    found = is_peft ? has_file(folder, "adapter_model.bin", &r->tensors, e) : 0;
    if (found < 0) return found;
    return error_set(e, found ? WEFT_ERROR_SUPPORT : WEFT_ERROR_INPUT, "%s: no %s%s", folder, names[r->format],
                     found ? " (a .bin file holds Python objects and is not read: save it as safetensors)" : "");
}

int rules_read(struct rules *r, const char *folder, struct weft_error *e) {
    *r = (struct rules){0};
    if (!file_is_folder(folder)) return error_set(e, WEFT_ERROR_INPUT, "%s: no such folder", folder);
    int found = has_file(folder, "adapter_config.json", &r->config, e);
    if (found < 0) return found;
    if (!found) return error_set(e, WEFT_ERROR_INPUT, "%s: no adapter: adapter_config.json is missing", folder);
    json_t *o = NULL;
    int code = json_read_file(&o, r->config, CONFIG_BYTES, e);
    if (code) return code;
    if (!json_is_object(o)) code = error_set(e, WEFT_ERROR_INPUT, "%s: no JSON object", r->config);
    int is_peft = json_object_get(o, "peft_type") != NULL;
    if (!code) code = is_peft ? read_peft(r, o, e) : read_mlx(r, o, folder, e);
    if (!code) code = find_tensors(r, folder, is_peft, e);
    json_decref(o);
    return code;
}

static void drop_patterns(struct rule *p, int n) {
    for (int i = 0; i < n; i++) pcre2_match_data_free(p[i].match), pcre2_code_free(p[i].code);
    mem_free(p);
}

void rules_drop(struct rules *r) {
    drop_patterns(r->alphas, r->n_alphas), drop_patterns(r->ranks, r->n_ranks);
    mem_free(r->tensors), mem_free(r->config);
    *r = (struct rules){0};
}

/* The value of the first pattern that matches; `value` keeps the default when none does. */
static int first_match(const struct rule *p, int n, const char *module, double *value, const char *path, struct weft_error *e) {
    for (int i = 0; i < n; i++) {
        int found = pcre2_match(p[i].code, (PCRE2_SPTR)module, strlen(module), 0, 0, p[i].match, NULL);
        if (found >= 0) return *value = p[i].value, 0;
        if (found != PCRE2_ERROR_NOMATCH)
            return error_set(e, WEFT_ERROR_INPUT, "%s: a pattern does not finish on \"%.200s\" (code %d)", path, module, found);
    }
    return 0;
}

int rules_scale(const struct rules *r, const char *module, int rank, double *out, struct weft_error *e) {
    if (r->format == FORMAT_MLX) {
        *out = r->scale;
        return r->has_scale ? 0 : error_set(e, WEFT_ERROR_INPUT, "%s: lora_parameters gives no scale", r->config);
    }
    double alpha = r->alpha, claimed = r->rank;
    int code = first_match(r->alphas, r->n_alphas, module, &alpha, r->config, e);
    if (!code) code = first_match(r->ranks, r->n_ranks, module, &claimed, r->config, e);
    if (code) return code;
    if (claimed != rank) log_write(LOG_WARNING, "%s: rank %g for %s, but its tensors have %d", r->config, claimed, module, rank);
    *out = r->root_rank ? alpha / sqrt(rank) : alpha / rank;
    return 0;
}
