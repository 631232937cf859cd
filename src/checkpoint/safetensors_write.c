#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"

enum { HEADER_UNIT = 64 };

struct safetensors_writer {
    struct file_writer file;
    uint64_t n_left; /* bytes of data still to come */
};

struct placed { const struct tensor_spec *spec; uint64_t begin, end; };

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct placed *)a)->spec->name, ((const struct placed *)b)->spec->name);
}

static void add_quoted(struct buf *b, const char *text) {
    buf_add_char(b, '"');
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\') buf_printf(b, "\\%c", *p);
        else if (*p < 0x20) buf_printf(b, "\\u%04x", *p);
        else buf_add_char(b, (char)*p);
    }
    buf_add_char(b, '"');
}

static void add_metadata(struct buf *b, const struct text_pair *metadata, int n_metadata) {
    static const struct text_pair usual = {"format", "pt"};
    if (n_metadata == 0) metadata = &usual, n_metadata = 1;
    buf_add_text(b, "{\"__metadata__\":{");
    for (int i = 0; i < n_metadata; i++) {
        if (i) buf_add_char(b, ',');
        add_quoted(b, metadata[i].key);
        buf_add_char(b, ':');
        add_quoted(b, metadata[i].value);
    }
    buf_add_char(b, '}');
}

static void add_tensor(struct buf *b, const struct placed *p) {
    buf_add_char(b, ',');
    add_quoted(b, p->spec->name);
    buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(p->spec->dtype));
    for (int d = 0; d < p->spec->n_dims; d++) buf_printf(b, "%s%lld", d ? "," : "", (long long)p->spec->shape[d]);
    buf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)p->begin, (unsigned long long)p->end);
}

static uint64_t place_all(struct placed *placed, const struct tensor_spec *specs, int n) {
    uint64_t at = 0;
    for (int i = 0; i < n; i++) {
        uint64_t bytes = (uint64_t)dtype_bytes(specs[i].dtype);
        CHECK(specs[i].n_dims >= 0 && specs[i].n_dims <= TENSOR_DIMS);
        for (int d = 0; d < specs[i].n_dims; d++) bytes *= (uint64_t)specs[i].shape[d];
        placed[i] = (struct placed){&specs[i], at, at + bytes};
        at += bytes;
    }
    qsort(placed, (size_t)n, sizeof *placed, by_name);
    for (int i = 1; i < n; i++) CHECK(strcmp(placed[i - 1].spec->name, placed[i].spec->name) != 0);
    return at;
}

int safetensors_open_writer(struct safetensors_writer **out, const char *path, const struct tensor_spec *specs, int n_specs,
                            const struct text_pair *metadata, int n_metadata, struct weft_error *e) {
    struct safetensors_writer *w = mem_new(1, sizeof *w);
    struct placed *placed = mem_new((size_t)n_specs, sizeof *placed);
    struct buf header;
    buf_init(&header);
    int code = w && placed ? 0 : error_memory(e, path);
    if (!code) {
        w->n_left = place_all(placed, specs, n_specs);
        add_metadata(&header, metadata, n_metadata);
        for (int i = 0; i < n_specs; i++) add_tensor(&header, &placed[i]);
        buf_add_char(&header, '}');
        while (!header.failed && header.n % HEADER_UNIT != HEADER_UNIT - 8) buf_add_char(&header, ' ');
        if (header.failed) code = error_memory(e, path);
    }
    if (!code) code = file_open_writer(&w->file, path, e);
    if (!code) {
        uint8_t length[8];
        for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)header.n >> 8 * i);
        code = file_write(&w->file, length, sizeof length, e);
        if (!code) code = file_write(&w->file, header.data, header.n, e);
        if (code) file_close_writer(&w->file, 0, NULL);
    }
    buf_drop(&header);
    mem_free(placed);
    if (code) return mem_free(w), code;
    *out = w;
    return 0;
}

int safetensors_write(struct safetensors_writer *w, const void *bytes, size_t n, struct weft_error *e) {
    CHECK(n <= w->n_left);
    w->n_left -= n;
    return file_write(&w->file, bytes, n, e);
}

int safetensors_close_writer(struct safetensors_writer *w, int commit, struct weft_error *e) {
    if (!w) return 0;
    CHECK(!commit || w->n_left == 0);
    int code = file_close_writer(&w->file, commit, e);
    mem_free(w);
    return code;
}
