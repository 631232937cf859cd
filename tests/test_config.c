#include "help_test.h"

#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/config.h"

static const char whole[] =
    "{'model_type':'qwen3_5','image_token_id':60,'tie_word_embeddings':false,'text_config':{'hidden_size':32,'num_hidden_layers':5,"
    "'vocab_size':64,'intermediate_size':48,'num_attention_heads':4,'num_key_value_heads':2,'head_dim':16,'linear_num_key_heads':2,"
    "'linear_num_value_heads':4,'linear_key_head_dim':8,'linear_value_head_dim':8,'linear_conv_kernel_dim':4,'rms_norm_eps':1e-5,"
    "'eos_token_id':[62,63],'rope_parameters':{'rope_type':'default','rope_theta':10000000,'partial_rotary_factor':0.5,"
    "'mrope_section':[2,1,1],'mrope_interleaved':true},'attn_output_gate':true,'hidden_act':'silu','mtp_num_hidden_layers':1}}";

/* `whole` with the first occurrence of `from` replaced, single quotes made double. */
static json_t *edited(const char *from, const char *to) {
    char text[4096];
    const char *at = from ? strstr(whole, from) : NULL;
    if (from) assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at ? at - whole : 0), whole, at ? to : "", at ? at + strlen(from) : whole);
    for (char *p = text; *p; p++)
        if (*p == '\'') *p = '"';
    json_t *j;
    struct weft_error e = {0};
    if (json_parse(&j, text, strlen(text), "config.json", &e)) fail_msg("%s", e.message);
    return j;
}

static void refused(const char *from, const char *to, int code, const char *because) {
    json_t *j = edited(from, to);
    struct config c;
    struct weft_error e = {0};
    assert_int_equal(config_read(&c, j, "config.json", &e), code);
    if (!strstr(e.message, because)) fail_msg("\"%s\" does not say \"%s\"", e.message, because);
    json_decref(j);
}

static struct config accepted(const char *from, const char *to) {
    json_t *j = edited(from, to);
    struct config c;
    struct weft_error e = {0};
    if (config_read(&c, j, "config.json", &e)) fail_msg("%s", e.message);
    json_decref(j);
    c.raw = c.text = c.vision = NULL;
    return c;
}

static void every_dimension_comes_from_the_file(void **state) {
    (void)state;
    struct config c = accepted(NULL, NULL);
    assert_int_equal(c.hidden, 32);
    assert_int_equal(c.vocab, 64);
    assert_int_equal(c.rotary_dim, 8);
    assert_int_equal(c.linear_v_heads, 4);
    assert_int_equal(c.n_ends, 2);
    assert_int_equal(c.ends[1], 63);
    assert_int_equal(c.image_token, 60);
    assert_int_equal(c.video_token, -1);
    assert_int_equal(c.mrope_sections[0], 2);
    assert_int_equal(c.n_mtp_layers, 1);
    assert_true(c.rms_eps == 1e-5 && c.rope_theta == 1e7 && !c.tied && !c.drafter);
}

static void the_list_of_layers_wins_over_the_interval_which_is_four_by_default(void **state) {
    (void)state;
    struct config c = accepted(NULL, NULL);
    for (int i = 0; i < 5; i++) assert_int_equal(c.layer_kinds[i], i == 3 ? LAYER_FULL : LAYER_LINEAR);
    c = accepted("'vocab_size'", "'full_attention_interval':2,'vocab_size'");
    for (int i = 0; i < 5; i++) assert_int_equal(c.layer_kinds[i], i % 2 ? LAYER_FULL : LAYER_LINEAR);
    c = accepted("'vocab_size'", "'full_attention_interval':2,'layer_types':['full_attention','linear_attention','linear_attention',"
                                 "'linear_attention','full_attention'],'vocab_size'");
    for (int i = 0; i < 5; i++) assert_int_equal(c.layer_kinds[i], i % 4 ? LAYER_LINEAR : LAYER_FULL);
}

static void what_older_and_converted_files_write_is_understood(void **state) {
    (void)state;
    struct config c = accepted("'rope_type':'default'", "'type':'mrope'");
    assert_int_equal(c.rotary_dim, 8);
    c = accepted("'rope_type':'default',", "");
    c = accepted("'rope_parameters':{'rope_type':'default','rope_theta':10000000,'partial_rotary_factor':0.5,'mrope_section':[2,1,1],"
                 "'mrope_interleaved':true}", "'rope_theta':5000,'partial_rotary_factor':0.25");
    assert_true(c.rope_theta == 5000 && c.rotary_dim == 4 && c.mrope_sections[0] == 2 && c.mrope_sections[1] == 0);
    c = accepted("'tie_word_embeddings':false", "'tie_word_embeddings':true");
    assert_int_equal(c.tied, 1);
    c = accepted("'image_token_id':60", "'eos_token_id':61");
    assert_true(c.n_ends == 1 && c.ends[0] == 61);
    c = accepted("'hidden_size':32", "'hidden_size':32.0");
    assert_int_equal(c.hidden, 32);
    c = accepted("'model_type':'qwen3_5'", "'model_type':'qwen3_5_mtp'");
    assert_int_equal(c.drafter, 1);
}

static void every_field_missing_null_huge_or_negative_is_refused_by_name(void **state) {
    (void)state;
    static const struct { const char *field, *value; } fields[] = {
        {"'hidden_size'", "32"}, {"'num_hidden_layers'", "5"}, {"'vocab_size'", "64"}, {"'num_attention_heads'", "4"},
        {"'num_key_value_heads'", "2"}, {"'head_dim'", "16"}, {"'linear_num_key_heads'", "2"}, {"'linear_num_value_heads'", "4"},
        {"'linear_key_head_dim'", "8"}, {"'linear_value_head_dim'", "8"}, {"'linear_conv_kernel_dim'", "4"}, {"'intermediate_size'", "48"}};
    static const char *const values[] = {"null", "-1", "0", "1e300", "99999999999", "'x'", "[1]", "2.5"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char from[64], to[96], name[64];
        snprintf(name, sizeof name, "\"%.*s\"", (int)strlen(fields[i].field) - 2, fields[i].field + 1);
        snprintf(from, sizeof from, "%s:%s,", fields[i].field, fields[i].value);
        refused(from, "", WEFT_ERROR_INPUT, name);
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            snprintf(to, sizeof to, "%s:%s,", fields[i].field, values[v]);
            refused(from, to, WEFT_ERROR_INPUT, name);
        }
    }
    refused("'model_type':'qwen3_5',", "", WEFT_ERROR_INPUT, "\"model_type\" is missing");
    refused("'rope_theta':10000000,", "", WEFT_ERROR_INPUT, "\"rope_theta\" is missing");
    refused("10000000", "-5", WEFT_ERROR_INPUT, "\"rope_theta\"");
    refused("'rms_norm_eps':1e-5", "'rms_norm_eps':-1e-5", WEFT_ERROR_INPUT, "\"rms_norm_eps\"");
    refused("[62,63]", "[62,64]", WEFT_ERROR_INPUT, "\"eos_token_id\"");
    refused("[62,63]", "-1", WEFT_ERROR_INPUT, "\"eos_token_id\"");
    refused("60", "64", WEFT_ERROR_INPUT, "\"image_token_id\"");
    refused("'text_config':{", "'text_config':7,'x':{", WEFT_ERROR_INPUT, "\"text_config\"");
}

static void fields_that_contradict_each_other_are_refused(void **state) {
    (void)state;
    refused("'num_key_value_heads':2", "'num_key_value_heads':3", WEFT_ERROR_INPUT, "4 attention heads are no multiple of 3");
    refused("'linear_num_key_heads':2", "'linear_num_key_heads':3", WEFT_ERROR_INPUT, "4 linear value heads are no multiple of 3");
    refused("'partial_rotary_factor':0.5", "'partial_rotary_factor':0.05", WEFT_ERROR_INPUT, "\"partial_rotary_factor\"");
    refused("'partial_rotary_factor':0.5", "'partial_rotary_factor':1.5", WEFT_ERROR_INPUT, "\"partial_rotary_factor\"");
    refused("[2,1,1]", "[2,1,2]", WEFT_ERROR_INPUT, "\"mrope_section\" sums to 5");
    refused("[2,1,1]", "[2,2]", WEFT_ERROR_INPUT, "\"mrope_section\"");
    refused("'vocab_size'", "'layer_types':['full_attention'],'vocab_size'", WEFT_ERROR_INPUT, "\"layer_types\"");
    refused("'head_dim':16", "'head_dim':65536,'num_attention_heads':4096", WEFT_ERROR_INPUT, "num_attention_heads");
    refused("'model_type':'qwen3_5'", "'model_type':'qwen3_5_moe'", WEFT_ERROR_INPUT, "\"num_experts\" is missing");
    refused("'vocab_size'", "'num_experts':4,'num_experts_per_tok':5,'moe_intermediate_size':8,'vocab_size'", WEFT_ERROR_INPUT,
            "5 of 4 experts");
    refused("'vocab_size'", "'num_experts':4,'vocab_size'", WEFT_ERROR_INPUT, "\"num_experts_per_tok\" is missing");
}

static void what_would_change_the_numbers_and_is_not_done_is_refused_as_unsupported(void **state) {
    (void)state;
    refused("'model_type':'qwen3_5'", "'model_type':'llama'", WEFT_ERROR_SUPPORT, "llama");
    refused("'rope_type':'default'", "'rope_type':'yarn'", WEFT_ERROR_SUPPORT, "yarn");
    refused("'attn_output_gate':true", "'attn_output_gate':false", WEFT_ERROR_SUPPORT, "attn_output_gate");
    refused("'silu'", "'gelu'", WEFT_ERROR_SUPPORT, "gelu");
    refused("'vocab_size'", "'use_sliding_window':true,'vocab_size'", WEFT_ERROR_SUPPORT, "sliding");
    refused("'vocab_size'", "'mtp_use_dedicated_embeddings':true,'vocab_size'", WEFT_ERROR_SUPPORT, "mtp_use_dedicated_embeddings");
    refused("'vocab_size'", "'num_experts':4,'num_experts_per_tok':2,'moe_intermediate_size':8,'mlp_only_layers':[1],'vocab_size'",
            WEFT_ERROR_SUPPORT, "mlp_only_layers");
    refused("'vocab_size'", "'layer_types':['full_attention','full_attention','full_attention','full_attention','mamba'],'vocab_size'",
            WEFT_ERROR_SUPPORT, "layer 4 is \"mamba\"");
}

static void generation_config_gives_defaults_and_never_an_error(void **state) {
    (void)state;
    struct generation_config g;
    json_t *j;
    static const char good[] = "{\"do_sample\":true,\"temperature\":0.7,\"top_k\":20,\"top_p\":0.95,\"eos_token_id\":[5,6],\"min_p\":7}";
    assert_int_equal(json_parse(&j, good, strlen(good), "g", NULL), 0);
    generation_config_read(&g, j, 64);
    assert_true(g.do_sample == 1 && g.has_temperature && g.temperature == 0.7 && g.has_top_k && g.top_k == 20 && g.has_top_p);
    assert_true(!g.has_min_p && !g.has_repetition_penalty && g.n_ends == 2 && g.ends[1] == 6);
    generation_config_read(&g, j, 6); /* an end token outside the vocabulary */
    assert_int_equal(g.n_ends, 0);
    json_decref(j);
    generation_config_read(&g, NULL, 64);
    assert_true(g.do_sample == -1 && !g.has_temperature && !g.has_top_p && !g.has_top_k && g.n_ends == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dimension_comes_from_the_file),
        cmocka_unit_test(the_list_of_layers_wins_over_the_interval_which_is_four_by_default),
        cmocka_unit_test(what_older_and_converted_files_write_is_understood),
        cmocka_unit_test(every_field_missing_null_huge_or_negative_is_refused_by_name),
        cmocka_unit_test(fields_that_contradict_each_other_are_refused),
        cmocka_unit_test(what_would_change_the_numbers_and_is_not_done_is_refused_as_unsupported),
        cmocka_unit_test(generation_config_gives_defaults_and_never_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
