#include <string.h>

#include "cache/checksum.h"
#include "lora/parts.h"

static const char *last_part(const char *path, size_t *n) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    *n = end - begin;
    return path + begin;
}

static size_t low_rank_values(const struct adapter_target *g) { return (size_t)(g->kind == TARGET_EXPERTS ? g->n_experts : 1); }

static void add_part(struct checksum *c, const struct adapter_target *g, const struct part *p) {
    size_t n = low_rank_values(g) * (size_t)p->rank;
    checksum_add_text(c, g->name);
    checksum_add(c, &p->rank, sizeof p->rank), checksum_add(c, &p->scale, sizeof p->scale);
    if (p->rank) checksum_add(c, p->a, n * (size_t)g->n_in * 4), checksum_add(c, p->b, n * (size_t)g->n_out * 4);
    if (p->magnitude) checksum_add(c, p->magnitude, (size_t)g->n_out * 4);
    if (p->values) checksum_add(c, p->values, (size_t)g->n_values * 4);
    if (p->weight) checksum_add(c, p->weight->data, p->weight->row_bytes * (size_t)p->weight->n_rows);
}

static int finish(struct adapter *a, struct weft_error *e) {
    struct checksum sum;
    int n = 0;
    checksum_init(&sum);
    for (int i = 0; i < a->base->n_targets; i++) {
        if (part_is_empty(&a->parts[i])) continue;
        add_part(&sum, &a->base->targets[i], &a->parts[i]), n++;
    }
    a->hash = checksum_get(&sum);
    if (n) return 0;
    return error_set(e, WEFT_ERROR_INPUT, "%s: the adapter changes nothing: %s", a->rules.tensors,
                     a->n_zero ? "every lora_B is zero" : "its tensors are those of the base");
}

static int read_all(struct adapter *a, struct weft_error *e) {
    size_t n = (size_t)a->base->n_targets;
    a->slots = mem_new(n, sizeof *a->slots), a->parts = mem_new(n, sizeof *a->parts);
    a->packed = mem_new(n, sizeof *a->packed), a->packed_bytes = mem_new(n, sizeof *a->packed_bytes);
    if (!a->slots || !a->parts || !a->packed || !a->packed_bytes) return error_memory(e, a->folder);
    int code = slots_fill(a, e);
    for (int i = 0; i < a->base->n_targets && !code; i++)
        if (a->slots[i].path) code = part_read(a, i, e);
    if (!code) code = part_tie_head(a, e);
    mem_free(a->slots);
    a->slots = NULL;
    return code;
}

int adapter_open(struct adapter **out, const char *folder, const struct adapter_base *base, struct weft_error *e) {
    size_t n;
    const char *name = last_part(folder, &n);
    struct adapter *a = mem_new(1, sizeof *a);
    if (!a) return error_memory(e, folder);
    arena_init(&a->arena);
    a->base = base, a->folder = mem_copy_text(folder, strlen(folder)), a->name = mem_copy_text(name, n);
    int code = a->folder && a->name ? 0 : error_memory(e, folder);
    if (!code) code = rules_read(&a->rules, folder, e);
    if (!code) code = safetensors_open(&a->file, a->rules.tensors, e);
    if (!code) code = read_all(a, e);
    if (!code) code = finish(a, e);
    if (code) return adapter_close(a), code;
    *out = a;
    return 0;
}

void adapter_close(struct adapter *a) {
    if (!a) return;
    struct backend *b = a->base->backend;
    for (int i = 0; i < a->n_packed; i++) b->table->memory_free(b, a->packed[i], a->packed_bytes[i]);
    mem_free(a->packed), mem_free(a->packed_bytes), mem_free(a->parts), mem_free(a->slots);
    safetensors_close(a->file);
    rules_drop(&a->rules);
    arena_drop(&a->arena);
    mem_free(a->folder), mem_free(a->name);
    mem_free(a);
}

const char *adapter_name(const struct adapter *a) { return a->name; }
int adapter_rank(const struct adapter *a) { return a->rank; }
size_t adapter_bytes(const struct adapter *a) { return a->bytes; }

/* ---- what matched ---- */

static const char *short_name(const char *name) {
    size_t n = strlen(name), tail = strlen(".weight");
    if (n > tail && strcmp(name + n - tail, ".weight") == 0) n -= tail;
    size_t at = n;
    while (at > 0 && name[at - 1] != '.') at--;
    return name + at;
}

static int same_short(const char *x, const char *y) { return strcmp(short_name(x), short_name(y)) == 0; }

/* "q_proj 2 of 2, k_proj 1 of 2", over the targets that have a low-rank part (or are replaced). */
static void count_kinds(const struct adapter *a, int replaced, struct buf *out) {
    const struct adapter_target *t = a->base->targets;
    int any = 0;
    for (int i = 0; i < a->base->n_targets; i++) {
        int have = 0, all = 0, seen = 0;
        for (int j = 0; j < i && !seen; j++)
            seen = same_short(t[j].name, t[i].name) && (t[j].kind < TARGET_GAIN) == (t[i].kind < TARGET_GAIN);
        for (int j = i; j < a->base->n_targets && !seen; j++) {
            if (!same_short(t[j].name, t[i].name) || (t[j].kind < TARGET_GAIN) != (t[i].kind < TARGET_GAIN)) continue;
            const struct part *p = &a->parts[j];
            all++, have += replaced ? p->weight || p->values : p->rank > 0;
        }
        if (!have) continue;
        const char *name = short_name(t[i].name);
        const char *before = any++ ? ", " : replaced ? "  replaced: " : "  low rank: ";
        buf_printf(out, "%s%.*s %d of %d", before, (int)strcspn(name, "."), name, have, all);
    }
    if (any) buf_add_char(out, '\n');
}

void adapter_report(const struct adapter *a, struct buf *out) {
    int dora = 0, least = 0;
    double low = 0, high = 0;
    for (int i = 0; i < a->base->n_targets; i++) {
        const struct part *p = &a->parts[i];
        if (!p->rank) continue;
        low = least && low < p->scale ? low : p->scale, high = least && high > p->scale ? high : p->scale;
        least = least && least < p->rank ? least : p->rank;
        dora += p->magnitude != NULL;
    }
    buf_printf(out, "%s: %s", a->name, a->rules.format == FORMAT_PEFT ? "PEFT" : "MLX");
    if (least) buf_printf(out, least == a->rank ? ", rank %d" : ", ranks %d to %d", least, a->rank);
    if (least) buf_printf(out, low == high ? ", scale %.4g" : ", scales %.4g to %.4g", low, high);
    if (dora) buf_printf(out, ", DoRA on %d", dora);
    buf_printf(out, ", %.1f MiB\n", (double)a->bytes / 1048576);
    count_kinds(a, 0, out), count_kinds(a, 1, out);
    if (a->n_zero) buf_printf(out, "  left out, since they change nothing: %d\n", a->n_zero);
    if (a->n_copies) buf_printf(out, "  copies of the base's weights, ignored: %d\n", a->n_copies);
    if (a->n_same) buf_printf(out, "  replacements equal to the base, ignored: %d\n", a->n_same);
}
