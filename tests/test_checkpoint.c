#define _GNU_SOURCE
#include "help_small.h"
#include "help_test.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "quant/convert.h"
#include "quant/open.h"

static int open_whole(const char *folder, struct weft_error *e) {
    struct checkpoint *c;
    int code = checkpoint_open(&c, folder, e);
    if (code) return code;
    code = help_take_all(c, e);
    checkpoint_close(c);
    return code;
}

static void opens(const char *folder) {
    struct weft_error e = {0};
    if (open_whole(folder, &e)) fail_msg("%s", e.message);
}

static void refuses(const char *folder, int code, const char *because, const char *also) {
    struct weft_error e = {0};
    assert_int_equal(open_whole(folder, &e), code);
    if (!strstr(e.message, because) || !strstr(e.message, also)) fail_msg("\"%s\" does not say \"%s\" and \"%s\"", e.message, because, also);
}

/* Each call in a folder of its own. */
static const char *written(const struct small *s) {
    static int n;
    char name[32];
    snprintf(name, sizeof name, "small-%d", n++);
    return small_write(s, name, "model.safetensors", 0, s->n);
}

static void a_small_checkpoint_opens_and_every_tensor_is_used_once(void **state) {
    (void)state;
    struct small s;
    small_init(&s);
    opens(written(&s));
    small_init_affine(&s);
    opens(written(&s));
    struct checkpoint *c;
    struct weft_error e = {0};
    assert_int_equal(checkpoint_open(&c, written(&s), &e), 0);
    assert_int_equal(help_take_all(c, &e), 0);
    for (int i = 0; i < c->n_entries; i++) assert_true(c->entries[i].used && !c->entries[i].skipped);
    assert_int_equal(c->n_entries, s.n);
    checkpoint_close(c);
}

static void all_published_layouts_open(void **state) {
    (void)state;
    static const char *const names[] = {"micro/text-tied", "micro/vl-mtp", "micro/odd", "micro/f16", "micro/moe", "micro/moe-split",
                                        "micro/mlx-mixed", "micro/mlx-prefix", "micro/mlx-moe", "tiny", "tiny-mlx"};
    opens(help_source("models/tiny"));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        snprintf(path, sizeof path, "checkpoints/%s", names[i]);
        if (!help_shared(path)) skip();
        opens(help_shared(path));
    }
}

static void the_bundled_model_is_what_its_config_claims(void **state) {
    (void)state;
    struct checkpoint *c;
    struct weight w;
    struct weft_error e = {0};
    assert_int_equal(checkpoint_open(&c, help_source("models/tiny"), &e), 0);
    static const struct { const char *module; int rows, cols, bits; } want[] = {{"embed_tokens", 12288, 512, 8},
        {"layers.0.linear_attn.out_proj", 512, 1024, 6}, {"layers.3.self_attn.q_proj", 2048, 512, 4}, {"mtp.fc", 512, 1024, 8}};
    for (int i = 0; i < 4; i++) {
        struct quantization_claim claim;
        assert_int_equal(weight_open(&w, c, want[i].module, want[i].rows, want[i].cols, &e), 0);
        assert_int_equal(checkpoint_claim(c, want[i].module, &claim), 1);
        assert_true(w.bits == want[i].bits && w.group == 64 && w.repr == representation_find("affine"));
        assert_true(claim.quantized && claim.bits == w.bits && claim.group == 64);
    }
    assert_int_equal(c->config.n_ends, 2);
    assert_int_equal(weight_open(&w, c, "embed_tokens", 12288, 256, &e), WEFT_ERROR_SUPPORT); /* 16 bits */
    assert_int_equal(weight_open(&w, c, "embed_tokens", 12288, 480, &e), WEFT_ERROR_INPUT);
    checkpoint_close(c);
}

/* ---- damaged in one place each */

static void missing_misshapen_and_surplus_tensors_are_named(void **state) {
    (void)state;
    struct small s;
    small_init(&s), small_remove(&s, "model.layers.0.mlp.up_proj.weight");
    refuses(written(&s), WEFT_ERROR_INPUT, "\"layers.0.mlp.up_proj.weight\" is missing", "small-");
    small_init(&s), small_remove(&s, "model.layers.0.linear_attn.A_log");
    refuses(written(&s), WEFT_ERROR_INPUT, "\"layers.0.linear_attn.A_log\" is missing", "small-");
    small_init(&s), small_find(&s, "model.layers.1.self_attn.q_proj.weight")->shape[0] = 64;
    refuses(written(&s), WEFT_ERROR_INPUT, "\"model.layers.1.self_attn.q_proj.weight\" has the shape [64, 64], expected [128, 64]", "model.safetensors");
    small_init(&s), small_find(&s, "model.norm.weight")->shape[0] = 63;
    refuses(written(&s), WEFT_ERROR_INPUT, "\"model.norm.weight\" has the shape [63], expected [64]", "model.safetensors");
    small_init(&s), small_find(&s, "model.layers.0.linear_attn.conv1d.weight")->shape[2] = 3;
    refuses(written(&s), WEFT_ERROR_INPUT, "conv1d.weight\" has the shape [128, 1, 3]", "model.safetensors");
    small_init(&s), small_add(&s, "model.layers.1.self_attn.q_proj.bias", DTYPE_BF16, 1, 128, 0, 0);
    refuses(written(&s), WEFT_ERROR_INPUT, "q_proj.bias\" has no place", "model.safetensors");
    small_init(&s), small_add(&s, "model.layers.2.input_layernorm.weight", DTYPE_BF16, 1, 64, 0, 0);
    refuses(written(&s), WEFT_ERROR_INPUT, "belongs to layer 2, but config.json has 2 layers", "model.safetensors");
    small_init(&s), small_find(&s, "model.norm.weight")->dtype = DTYPE_I16;
    refuses(written(&s), WEFT_ERROR_INPUT, "\"model.norm.weight\" is I16", "model.safetensors");
    small_init(&s), small_find(&s, "model.layers.0.mlp.up_proj.weight")->dtype = DTYPE_I8;
    refuses(written(&s), WEFT_ERROR_SUPPORT, "up_proj.weight\" is I8", "model.safetensors");
}

static void quantized_tensors_without_their_companions_are_named(void **state) {
    (void)state;
    struct small s;
    small_init_affine(&s), small_remove(&s, "model.layers.0.mlp.up_proj.scales");
    refuses(written(&s), WEFT_ERROR_INPUT, "up_proj.weight\" is quantized, but its scales are missing", "model.safetensors");
    small_init_affine(&s), small_remove(&s, "model.layers.0.mlp.up_proj.biases");
    refuses(written(&s), WEFT_ERROR_INPUT, "but its biases are missing", "model.safetensors");
    small_init(&s), small_add(&s, "model.layers.0.mlp.up_proj.scales", DTYPE_BF16, 2, 96, 2, 0);
    refuses(written(&s), WEFT_ERROR_INPUT, "up_proj.scales\" does not go with", "BF16");
    small_init_affine(&s), small_find(&s, "model.layers.0.mlp.up_proj.scales")->shape[1] = 3;
    refuses(written(&s), WEFT_ERROR_INPUT, "up_proj.weight\" [96, 8] with scales [96, 3]", "64 inputs");
    small_init_affine(&s), small_find(&s, "model.layers.0.mlp.up_proj.scales")->shape[0] = 95;
    refuses(written(&s), WEFT_ERROR_INPUT, "up_proj.scales\" has the shape [95, 2], expected [96, 2]", "model.safetensors");
    small_init_affine(&s), small_find(&s, "model.layers.0.mlp.up_proj.weight")->shape[1] = 14;
    refuses(written(&s), WEFT_ERROR_SUPPORT, "7 bits in groups of 32", "up_proj.weight");
    small_init_affine(&s), small_find(&s, "model.layers.0.mlp.up_proj.biases")->dtype = DTYPE_F16;
    refuses(written(&s), WEFT_ERROR_INPUT, "up_proj.biases\" is F16", "BF16");
    small_init_affine(&s), small_add(&s, "model.layers.0.mlp.up_proj.global_scale", DTYPE_F32, 1, 1, 0, 0);
    refuses(written(&s), WEFT_ERROR_INPUT, "global_scale", "model.safetensors");
    small_init(&s), small_find(&s, "model.layers.0.mlp.up_proj.weight")->dtype = DTYPE_F8_E4M3;
    refuses(written(&s), WEFT_ERROR_INPUT, "but its weight_scale_inv are missing", "up_proj.weight");
}

static void values_that_are_not_finite_are_refused_at_open(void **state) {
    (void)state;
    static const char *const names[] = {"model.norm.weight", "model.layers.0.linear_attn.A_log", "model.layers.0.linear_attn.dt_bias",
        "model.layers.0.linear_attn.conv1d.weight", "model.layers.0.mlp.up_proj.scales", "model.layers.0.mlp.up_proj.biases"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct small s;
        small_init_affine(&s);
        s.fill[small_find(&s, names[i]) - s.specs] = 0xff; /* NaN in every type */
        refuses(written(&s), WEFT_ERROR_INPUT, "not finite", i < 4 ? names[i] : "model.layers.0.mlp.up_proj");
    }
}

static void a_tensor_twice_is_an_error_unless_the_bytes_are_equal(void **state) {
    (void)state;
    struct small s;
    struct checkpoint *c;
    struct weft_error e = {0};
    small_init(&s);
    int i = small_add(&s, "model.language_model.norm.weight", DTYPE_BF16, 1, 64, 0, 0);
    const char *folder = written(&s);
    opens(folder);
    assert_int_equal(checkpoint_open(&c, folder, &e), 0);
    assert_int_equal(c->n_skipped_files, 1);
    assert_non_null(strstr(c->skipped_files[0], "the same bytes"));
    checkpoint_close(c);
    s.fill[i] = 0x3c;
    refuses(written(&s), WEFT_ERROR_INPUT, "model.norm.weight\"", "\"model.language_model.norm.weight\"");
}

static void unknown_vision_and_mtp_tensors_are_listed_as_skipped(void **state) {
    (void)state;
    struct small s;
    struct checkpoint *c;
    struct weft_error e = {0};
    small_init(&s);
    small_add(&s, "model.visual.patch_embed.proj.weight", DTYPE_BF16, 1, 4, 0, 0);
    small_add(&s, "mtp.norm.weight", DTYPE_BF16, 1, 64, 0, 0);
    small_add(&s, "score.weight", DTYPE_BF16, 1, 64, 0, 0);
    small_add(&s, "model.layers.0.self_attn.rotary_emb.inv_freq", DTYPE_F32, 1, 4, 0, 0);
    assert_int_equal(checkpoint_open(&c, written(&s), &e), 0);
    assert_int_equal(help_take_all(c, &e), 0);
    static const char *const names[] = {"visual.patch_embed.proj.weight", "mtp.norm.weight", "score.weight",
                                        "layers.0.self_attn.rotary_emb.inv_freq"};
    for (int i = 0; i < 4; i++) assert_non_null(checkpoint_entry(c, names[i])->skipped);
    assert_null(checkpoint_entry(c, "norm.weight")->skipped);
    assert_true(checkpoint_has_prefix(c, "visual.") && checkpoint_has_prefix(c, "mtp.") && !checkpoint_has_prefix(c, "mtp.fc"));
    checkpoint_close(c);
}

/* ---- files of a folder */

static const char index_text[] = "{\"metadata\":{},\"weight_map\":{\"model.norm.weight\":\"%s\",\"model.embed_tokens.weight\":\"%s\"}}";

static const char *sharded(struct small *s, const char *folder, const char *norm_in, const char *embedding_in) {
    char text[256];
    small_init(s); /* the embedding is the first tensor, the last norm the last */
    small_write(s, folder, "model-00001-of-00002.safetensors", 0, s->n / 2);
    const char *where = small_write(s, folder, "model-00002-of-00002.safetensors", s->n / 2, s->n);
    snprintf(text, sizeof text, index_text, norm_in, embedding_in);
    help_write_text(where, "model.safetensors.index.json", text);
    return where;
}

static void an_index_must_be_satisfied_and_other_files_are_listed(void **state) {
    (void)state;
    struct small s;
    struct checkpoint *c;
    struct weft_error e = {0};
    const char *where = sharded(&s, "sharded", "model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors");
    opens(where);
    small_write(&s, "sharded", "model-extra.safetensors", 0, 3);
    assert_int_equal(checkpoint_open(&c, where, &e), 0);
    assert_int_equal(c->n_skipped_files, 1);
    assert_non_null(strstr(c->skipped_files[0], "model-extra.safetensors: not in the index"));
    assert_int_equal(help_take_all(c, &e), 0);
    checkpoint_close(c);
    where = sharded(&s, "lost", "model-00002-of-00002.safetensors", "model-00003-of-00002.safetensors");
    refuses(where, WEFT_ERROR_INPUT, "\"model-00003-of-00002.safetensors\"", "index.json");
    where = sharded(&s, "moved", "model-00001-of-00002.safetensors", "model-00001-of-00002.safetensors");
    refuses(where, WEFT_ERROR_INPUT, "\"model.norm.weight\" is not in \"model-00001-of-00002.safetensors\"", "index.json");
    where = sharded(&s, "climbs", "../sharded/model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors");
    refuses(where, WEFT_ERROR_INPUT, "names no file of this folder", "model.norm.weight");
    help_write_text(where, "model.safetensors.index.json", "{\"weight_map\":7}");
    refuses(where, WEFT_ERROR_INPUT, "\"weight_map\"", "index.json");
    help_write_text(where, "model.safetensors.index.json", "{");
    refuses(where, WEFT_ERROR_INPUT, "bad JSON", "index.json");
}

static void without_an_index_every_shard_is_read(void **state) {
    (void)state;
    struct small s;
    small_init(&s);
    small_write(&s, "pair", "model-a.safetensors", 0, 9);
    small_write(&s, "pair", "modelb.safetensors", 9, s.n);
    const char *where = small_write(&s, "pair", "other.safetensors", 3, 5); /* no shard's name */
    opens(where);
    small_write(&s, "pair", "model-c.safetensors", 8, 10); /* the same bytes again */
    opens(where);
    s.fill[8] = 1;
    small_write(&s, "pair", "model-c.safetensors", 8, 10);
    refuses(where, WEFT_ERROR_INPUT, "same one twice", "model-c.safetensors");
}

static void a_truncated_shard_is_named(void **state) {
    (void)state;
    struct small s;
    small_init(&s);
    const char *where = small_write(&s, "short", "model.safetensors", 0, s.n);
    char path[4200];
    struct stat st;
    snprintf(path, sizeof path, "%s/model.safetensors", where);
    assert_int_equal(stat(path, &st), 0);
    for (int64_t n = st.st_size - 1; n > 0; n -= n > 8192 ? 4096 : 509) {
        assert_int_equal(truncate(path, n), 0);
        refuses(where, WEFT_ERROR_INPUT, "truncated", "model.safetensors");
    }
}

static void what_is_no_model_folder_is_refused_in_a_sentence(void **state) {
    (void)state;
    struct small s;
    refuses(help_temp("nowhere"), WEFT_ERROR_INPUT, "no such folder", "nowhere");
    mkdir(help_temp("empty"), 0777);
    refuses(help_temp("empty"), WEFT_ERROR_INPUT, "it has no config.json", "empty");
    small_init(&s);
    const char *where = small_write(&s, "weightless", "other.safetensors", 0, 1);
    refuses(where, WEFT_ERROR_INPUT, "no model*.safetensors", "weightless");
    help_write_text(where, "config.json", "[1]");
    refuses(where, WEFT_ERROR_INPUT, "not a JSON object", "config.json");
    help_write_text(where, "config.json", "{\"model_type\":\"qwen3_5\"");
    refuses(where, WEFT_ERROR_INPUT, "bad JSON", "config.json");
    small_init(&s);
    snprintf(s.config + strlen(s.config) - 1, 100, ",\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}");
    refuses(written(&s), WEFT_ERROR_SUPPORT, "\"awq\"", "config.json");
}

static void a_malformed_generation_config_is_ignored(void **state) {
    (void)state;
    struct small s;
    struct checkpoint *c;
    struct weft_error e = {0};
    small_init(&s);
    const char *where = written(&s);
    help_write_text(where, "generation_config.json", "{\"top_k\":");
    assert_int_equal(checkpoint_open(&c, where, &e), 0);
    assert_false(c->generation.has_top_k);
    checkpoint_close(c);
    help_write_text(where, "generation_config.json", "{\"top_k\":7,\"eos_token_id\":[3,4]}");
    assert_int_equal(checkpoint_open(&c, where, &e), 0);
    assert_true(c->generation.top_k == 7 && c->config.n_ends == 2 && c->config.ends[0] == 3);
    checkpoint_close(c);
}

static void a_sidecar_brings_the_mtp_head_that_the_shards_lack(void **state) {
    (void)state;
    struct small s, head;
    struct checkpoint *c;
    struct weft_error e = {0};
    small_init(&s), small_init(&head);
    head.n = 0;
    small_add(&head, "fc.weight", DTYPE_BF16, 2, 64, 128, 0);
    small_add(&head, "layers.0.input_layernorm.weight", DTYPE_BF16, 1, 64, 0, 0);
    small_write(&s, "sidecar", "model.safetensors", 0, s.n);
    const char *where = small_write(&head, "sidecar", "mtp.safetensors", 0, head.n);
    assert_int_equal(checkpoint_open(&c, where, &e), 0);
    assert_non_null(checkpoint_entry(c, "mtp.fc.weight"));
    assert_non_null(checkpoint_entry(c, "mtp.layers.0.input_layernorm.weight"));
    assert_false(c->config.drafter);
    checkpoint_close(c);
    small_add(&s, "mtp.fc.weight", DTYPE_BF16, 2, 64, 128, 0);
    small_write(&s, "sidecar", "model.safetensors", 0, s.n);
    assert_int_equal(checkpoint_open(&c, where, &e), 0);
    assert_non_null(strstr(c->skipped_files[0], "mtp.safetensors"));
    checkpoint_close(c);
    where = small_write(&head, "drafter", "model.safetensors", 0, head.n);
    assert_int_equal(checkpoint_open(&c, where, &e), 0);
    assert_true(c->config.drafter && checkpoint_entry(c, "mtp.fc.weight"));
    checkpoint_close(c);
}

static void warn(void *arg, int level, const char *line) {
    if (level == LOG_WARNING) snprintf(arg, 512, "%s", line);
}

static void a_claim_that_differs_from_the_shapes_is_a_warning(void **state) {
    (void)state;
    struct small s;
    char line[512] = "";
    small_init_affine(&s);
    snprintf(s.config + strlen(s.config) - 1, 300, ",\"quantization\":{\"group_size\":32,\"bits\":4,"
             "\"language_model.model.layers.0.mlp.up_proj\":{\"group_size\":null,\"bits\":4},\"model.embed_tokens\":true}}");
    log_set_sink(warn, line);
    opens(written(&s));
    assert_string_equal(line, "");
    char *at = strstr(s.config, "null,\"bits\":4");
    at[12] = '8';
    opens(written(&s));
    log_set_sink(NULL, NULL);
    assert_non_null(strstr(line, "\"model.layers.0.mlp.up_proj.weight\" is affine with 4 bits in groups of 32"));
}

/* ---- experts */

static void experts_are_the_same_in_every_layout(void **state) {
    (void)state;
    static const char *const names[] = {"checkpoints/micro/moe", "checkpoints/micro/moe-split"};
    struct checkpoint *c[2];
    struct expert_weights experts[2][8];
    struct weft_error e = {0};
    for (int i = 0; i < 2; i++) {
        if (!help_shared(names[i])) skip();
        assert_int_equal(checkpoint_open(&c[i], help_shared(names[i]), &e), 0);
        assert_int_equal(weight_open_experts(experts[i], 8, c[i], "layers.2.mlp", 128, 64, &e), 0);
    }
    for (int x = 0; x < 8; x++) {
        const struct weight *a[3] = {&experts[0][x].gate, &experts[0][x].up, &experts[0][x].down};
        const struct weight *b[3] = {&experts[1][x].gate, &experts[1][x].up, &experts[1][x].down};
        for (int k = 0; k < 3; k++) {
            assert_true(a[k]->n_rows == b[k]->n_rows && a[k]->n_cols == b[k]->n_cols);
            assert_memory_equal(a[k]->data, b[k]->data, weight_bytes(b[k]));
        }
    }
    checkpoint_close(c[0]), checkpoint_close(c[1]);
    if (!help_shared("checkpoints/micro/mlx-moe")) skip();
    assert_int_equal(checkpoint_open(&c[0], help_shared("checkpoints/micro/mlx-moe"), &e), 0);
    assert_int_equal(weight_open_experts(experts[0], 8, c[0], "layers.2.mlp", 128, 64, &e), 0);
    const struct tensor *t = checkpoint_look(c[0], "layers.2.mlp.switch_mlp.up_proj", "weight");
    const struct tensor *scales = checkpoint_look(c[0], "layers.2.mlp.switch_mlp.up_proj", "scales");
    assert_ptr_equal(experts[0][5].up.data, t->data + 5 * t->n_bytes / 8);
    assert_ptr_equal(experts[0][5].up.scales, scales->data + 5 * scales->n_bytes / 8);
    assert_true(experts[0][5].up.bits == 4 && experts[0][5].up.group == 32);
    assert_int_equal(weight_open_experts(experts[0], 8, c[0], "layers.2.mlp", 128, 32, &e), WEFT_ERROR_INPUT);
    checkpoint_close(c[0]);
}

/* FP8 in blocks, one tensor for all experts: the up half of inner 96 begins within the first block of 128 rows. */
static void fp8_experts_take_the_scales_of_their_own_blocks(void **state) {
    (void)state;
    struct small s;
    struct checkpoint *c;
    struct expert_weights experts[2];
    struct weft_error e = {0};
    float row[64], scales[2][2][1] = {{{1}, {2}}, {{4}, {8}}};
    small_init(&s);
    small_add(&s, "model.layers.0.mlp.experts.gate_up_proj", DTYPE_F8_E4M3, 3, 2, 192, 64);
    small_add(&s, "model.layers.0.mlp.experts.gate_up_proj_scale_inv", DTYPE_F32, 3, 2, 2, 1);
    small_add(&s, "model.layers.0.mlp.experts.down_proj", DTYPE_F8_E4M3, 3, 2, 64, 96);
    small_add(&s, "model.layers.0.mlp.experts.down_proj_scale_inv", DTYPE_BF16, 3, 2, 1, 1);
    assert_int_equal(checkpoint_open(&c, written(&s), &e), 0);
    if (weight_open_experts(experts, 2, c, "layers.0.mlp", 64, 96, &e)) fail_msg("%s", e.message);
    for (int x = 0; x < 2; x++) {
        const struct tensor *t = checkpoint_look(c, "layers.0.mlp.experts.gate_up_proj_scale_inv", "");
        assert_ptr_equal(experts[x].up.scales, t->data + 8 * x);
        assert_ptr_equal(experts[x].down.data, experts[0].down.data + 64 * 96 * x);
        experts[x].gate.scales = experts[x].up.scales = (const uint8_t *)scales[x];
        for (int r = 0; r < 96; r++) {
            weight_decode(&experts[x].gate, r, row);
            assert_true(row[63] == float_from_e4m3(0x3d) * scales[x][0][0]);
            weight_decode(&experts[x].up, r, row);
            assert_true(row[0] == float_from_e4m3(0x3d) * scales[x][96 + r >= 128][0]);
        }
        assert_int_equal(weight_check(&experts[x].down, 0, 64, &e), 0);
    }
    checkpoint_close(c);
    small_find(&s, "model.layers.0.mlp.experts.gate_up_proj_scale_inv")->shape[1] = 1;
    assert_int_equal(checkpoint_open(&c, written(&s), &e), 0);
    assert_int_equal(weight_open_experts(experts, 2, c, "layers.0.mlp", 64, 96, &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "[2, 1, 1], expected [2, 2, 1]"));
    checkpoint_close(c);
}

/* The fixture's own decoder, in Python, wrote what each matrix stands for. */
static void a_model_in_fp8_stands_for_exactly_what_its_maker_says(void **state) {
    (void)state;
    const char *source = help_shared("checkpoints/micro/text-tied");
    if (!source) skip();
    char command[4 * 4200], packed[4200], decoded[4200];
    snprintf(packed, sizeof packed, "%s", help_temp("fp8"));
    snprintf(decoded, sizeof decoded, "%s", help_temp("fp8-decoded"));
    snprintf(command, sizeof command, "python3 %s %s %s --decoded %s >/dev/null", help_source("tools/make_fp8.py"), source, packed, decoded);
    assert_int_equal(system(command), 0);
    opens(packed);
    opens(decoded);
    struct checkpoint *a, *b;
    struct weft_error e = {0};
    assert_int_equal(checkpoint_open(&a, packed, &e), 0);
    assert_int_equal(checkpoint_open(&b, decoded, &e), 0);
    int n_fp8 = 0;
    for (int i = 0; i < a->n_entries; i++) {
        const struct tensor *t = a->entries[i].tensor;
        if (t->dtype != DTYPE_F8_E4M3) continue;
        char module[NAME_ROOM];
        struct weight w;
        snprintf(module, sizeof module, "%.*s", (int)(strlen(a->entries[i].name) - strlen(".weight")), a->entries[i].name);
        assert_int_equal(weight_open(&w, a, module, t->shape[0], t->shape[1], &e), 0);
        const struct tensor *want = checkpoint_look(b, module, "weight");
        float *row = malloc((size_t)w.n_cols * 4);
        for (int64_t r = 0; r < w.n_rows; r++) {
            weight_decode(&w, r, row);
            assert_memory_equal(row, want->data + r * w.n_cols * 4, (size_t)w.n_cols * 4);
        }
        free(row);
        n_fp8++;
    }
    assert_true(n_fp8 > 20);
    checkpoint_close(a), checkpoint_close(b);
}

/* ---- the Hub's cache */

static void make_folders(const char *path) {
    char part[4400];
    snprintf(part, sizeof part, "%s", path);
    for (char *p = part + 1; *p; p++)
        if (*p == '/') *p = 0, mkdir(part, 0777), *p = '/';
    mkdir(part, 0777);
}

static void a_hub_name_is_found_in_the_cache_as_it_is_laid_out(void **state) {
    (void)state;
    char hub[4096], path[4300];
    struct weft_error e = {0};
    char *found;
    snprintf(hub, sizeof hub, "%s", help_temp("hub"));
    snprintf(path, sizeof path, "%s/models--Qwen--Qwen3.5-4B/snapshots/c0ffee", hub);
    make_folders(path);
    help_write_text(path, "config.json", "{}");
    snprintf(path, sizeof path, "%s/models--Qwen--Qwen3.5-4B/refs/pr", hub);
    make_folders(path);
    help_write_text(path, "1", "c0ffee");
    snprintf(path, sizeof path, "%s/models--Qwen--Qwen3.5-4B/refs", hub);
    help_write_text(path, "main", "c0ffee\n");
    static const char *const names[] = {"Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-4B@main", "Qwen/Qwen3.5-4B@c0ffee", "Qwen/Qwen3.5-4B@pr/1"};
    snprintf(path, sizeof path, "%s/models--Qwen--Qwen3.5-4B/snapshots/c0ffee", hub);
    for (int i = 0; i < 4; i++) {
        if (checkpoint_find(&found, names[i], hub, &e)) fail_msg("%s", e.message);
        assert_string_equal(found, path);
        mem_free(found);
    }
    assert_int_equal(checkpoint_find(&found, "Qwen/Qwen3.5-9B", hub, &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "hf download Qwen/Qwen3.5-9B"));
    assert_int_equal(checkpoint_find(&found, "Qwen/Qwen3.5-4B@other", hub, &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "hf download Qwen/Qwen3.5-4B --revision other"));
    assert_int_equal(checkpoint_find(&found, "Qwen/Qwen3.5-4B", NULL, &e), WEFT_ERROR_INPUT);
    static const char *const wrong[] = {"Qwen/Qwen3.5-4B@../x", "Qwen/Qwen3.5-4B@/x", "../x", "a/b/c", "/no/such", "Qwen/", "", "a b/c"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(checkpoint_find(&found, wrong[i], hub, &e), WEFT_ERROR_INPUT);
    assert_int_equal(checkpoint_find(&found, hub, NULL, &e), 0); /* a folder is itself */
    assert_string_equal(found, hub);
    mem_free(found);
    snprintf(path, sizeof path, "%s/models--Qwen--Qwen3.5-4B/refs/main", hub);
    assert_int_equal(checkpoint_find(&found, path, hub, &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "a file"));
}

/* ---- memory */

static void opening_survives_every_failed_allocation(void **state) {
    (void)state;
    struct small s;
    small_init_affine(&s);
    snprintf(s.config + strlen(s.config) - 1, 200, ",\"quantization\":{\"group_size\":32,\"bits\":4,\"model.embed_tokens\":true}}");
    small_add(&s, "model.language_model.norm.weight", DTYPE_BF16, 1, 64, 0, 0);
    const char *where = written(&s);
    help_write_text(where, "generation_config.json", "{\"top_k\":7}");
    help_write_text(where, "model.safetensors.index.json", "{\"weight_map\":{\"model.norm.weight\":\"model.safetensors\"}}");
    for (int sticky = 0; sticky < 2; sticky++) {
        int code = WEFT_ERROR_MEMORY;
        for (int n = 0; code; n++) {
            struct weft_error e = {0};
            assert_true(n < 20000);
            mem_fail_at(n, sticky);
            code = open_whole(where, &e);
            mem_fail_at(-1, 0);
            if (code && code != WEFT_ERROR_MEMORY) fail_msg("allocation %d: %s", n, e.message);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_checkpoint_opens_and_every_tensor_is_used_once),
        cmocka_unit_test(all_published_layouts_open),
        cmocka_unit_test(the_bundled_model_is_what_its_config_claims),
        cmocka_unit_test(missing_misshapen_and_surplus_tensors_are_named),
        cmocka_unit_test(quantized_tensors_without_their_companions_are_named),
        cmocka_unit_test(values_that_are_not_finite_are_refused_at_open),
        cmocka_unit_test(a_tensor_twice_is_an_error_unless_the_bytes_are_equal),
        cmocka_unit_test(unknown_vision_and_mtp_tensors_are_listed_as_skipped),
        cmocka_unit_test(an_index_must_be_satisfied_and_other_files_are_listed),
        cmocka_unit_test(without_an_index_every_shard_is_read),
        cmocka_unit_test(a_truncated_shard_is_named),
        cmocka_unit_test(what_is_no_model_folder_is_refused_in_a_sentence),
        cmocka_unit_test(a_malformed_generation_config_is_ignored),
        cmocka_unit_test(a_sidecar_brings_the_mtp_head_that_the_shards_lack),
        cmocka_unit_test(a_claim_that_differs_from_the_shapes_is_a_warning),
        cmocka_unit_test(experts_are_the_same_in_every_layout),
        cmocka_unit_test(fp8_experts_take_the_scales_of_their_own_blocks),
        cmocka_unit_test(a_model_in_fp8_stands_for_exactly_what_its_maker_says),
        cmocka_unit_test(a_hub_name_is_found_in_the_cache_as_it_is_laid_out),
        cmocka_unit_test(opening_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
