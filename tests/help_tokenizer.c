#include "help_tokenizer.h"

#include "text/pretoken.h"

static void add_json_text(struct buf *out, const char *text) {
    buf_add_char(out, '"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') buf_add_char(out, '\\');
        buf_add_char(out, *text);
    }
    buf_add_char(out, '"');
}

static void add_byte_letters(struct buf *out) {
    int next = 0x100;
    for (int b = 0; b < 256; b++) {
        int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        buf_printf(out, "%s\"\\u%04x\": %d", b ? ", " : "", printable ? b : next++, b);
    }
}

void help_write_tokenizer(struct buf *out, const struct help_tokenizer *parts) {
    buf_printf(out, "{\"version\": \"1.0\", \"added_tokens\": %s, \"normalizer\": %s, \"pre_tokenizer\": ",
               parts->added ? parts->added : "[]", parts->normalizer ? parts->normalizer : "{\"type\": \"NFC\"}");
    if (parts->split) {
        buf_add_text(out, parts->split);
    } else {
        buf_add_text(out, "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        add_json_text(out, PRETOKEN_QWEN35);
        buf_add_text(out,
                     "}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                     "\"use_regex\": false}]}");
    }
    buf_add_text(out, ", \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\"");
    buf_printf(out, "%s, \"vocab\": {", parts->model ? parts->model : "");
    add_byte_letters(out);
    buf_printf(out, "%s}, \"merges\": %s}}", parts->vocab ? parts->vocab : "", parts->merges ? parts->merges : "[]");
}
