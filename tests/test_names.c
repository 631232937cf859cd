#include "help_test.h"

#include "checkpoint/names.h"

static void is(const char *source, int drafter, enum name_kind kind, const char *canonical) {
    char out[NAME_ROOM];
    assert_int_equal(name_canonical(source, drafter, out), kind);
    assert_string_equal(out, canonical);
}

static void every_published_prefix_gives_one_canonical_name(void **state) {
    (void)state;
    static const char *const prefixes[] = {"", "model.", "language_model.model.", "model.language_model.", "model.language_model.model."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        char name[256];
        snprintf(name, sizeof name, "%slayers.3.self_attn.q_proj.weight", prefixes[i]);
        is(name, 0, NAME_TEXT, "layers.3.self_attn.q_proj.weight");
        snprintf(name, sizeof name, "%sembed_tokens", prefixes[i]);
        is(name, 0, NAME_TEXT, "embed_tokens");
        snprintf(name, sizeof name, "%snorm.weight", prefixes[i]);
        is(name, 0, NAME_TEXT, "norm.weight");
        snprintf(name, sizeof name, "%smtp.layers.0.mlp.up_proj.scales", prefixes[i]);
        is(name, 0, NAME_MTP, "mtp.layers.0.mlp.up_proj.scales");
        snprintf(name, sizeof name, "%svisual.blocks.0.attn.qkv.bias", prefixes[i]);
        is(name, 0, NAME_VISION, "visual.blocks.0.attn.qkv.bias");
        snprintf(name, sizeof name, "%svision_tower.merger.norm.weight", prefixes[i]);
        is(name, 0, NAME_VISION, "visual.merger.norm.weight");
        snprintf(name, sizeof name, "%slm_head.weight", prefixes[i]);
        is(name, 0, NAME_HEAD, "lm_head.weight");
    }
}

static void bare_names_of_a_drafter_belong_to_its_head(void **state) {
    (void)state;
    is("fc.weight", 1, NAME_MTP, "mtp.fc.weight");
    is("layers.0.input_layernorm.weight", 1, NAME_MTP, "mtp.layers.0.input_layernorm.weight");
    is("norm.weight", 1, NAME_MTP, "mtp.norm.weight");
    is("pre_fc_norm_hidden.weight", 1, NAME_MTP, "mtp.pre_fc_norm_hidden.weight");
    is("mtp.fc.weight", 1, NAME_MTP, "mtp.fc.weight");
    is("embed_tokens.weight", 1, NAME_TEXT, "embed_tokens.weight");
}

static void names_that_only_look_known_stay_unknown(void **state) {
    (void)state;
    is("normal.weight", 0, NAME_OTHER, "normal.weight");
    is("fc.weight", 0, NAME_OTHER, "fc.weight");
    is("models.layers.0", 0, NAME_OTHER, "models.layers.0");
    is("lm_head2.weight", 0, NAME_OTHER, "lm_head2.weight");
    is("", 0, NAME_OTHER, "");
    is("model.", 0, NAME_OTHER, "");
    is("layers.0.mtp.weight", 0, NAME_TEXT, "layers.0.mtp.weight");
}

static void a_name_longer_than_the_room_is_refused(void **state) {
    (void)state;
    char source[2 * NAME_ROOM], out[NAME_ROOM];
    memset(source, 'x', sizeof source);
    source[NAME_ROOM] = 0;
    assert_int_equal(name_canonical(source, 0, out), -1);
    source[NAME_ROOM - 1] = 0;
    assert_int_equal(name_canonical(source, 0, out), NAME_OTHER);
    memset(source, 'x', NAME_ROOM);
    memcpy(source, "layers.", 7);
    source[NAME_ROOM - 1] = 0;
    assert_int_equal(name_canonical(source, 1, out), -1); /* four bytes longer as mtp.layers */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_published_prefix_gives_one_canonical_name),
        cmocka_unit_test(bare_names_of_a_drafter_belong_to_its_head),
        cmocka_unit_test(names_that_only_look_known_stay_unknown),
        cmocka_unit_test(a_name_longer_than_the_room_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
