/* Planes of codes within a block: see the layouts in kv.h. */
#include <string.h>

#include "base/error.h"
#include "quant/kv.h"
#include "quant/kv_codes.h"

struct kv_planes kv_planes_of(struct kv_shape s) {
    static const uint8_t parts[9][2] = {[2] = {2}, [3] = {2, 1}, [4] = {4}, [5] = {4, 1}, [6] = {4, 2}, [8] = {8}};
    struct kv_planes p = {0};
    CHECK(s.bits >= 2 && s.bits <= 8 && parts[s.bits][0]);
    for (int shift = 0; p.n < 2 && parts[s.bits][p.n]; p.n++) {
        int w = parts[s.bits][p.n];
        p.bits[p.n] = w, p.shift[p.n] = shift, p.offset[p.n] = p.bytes;
        p.bytes += (size_t)s.dim * KV_ROWS / 8 * (size_t)w;
        shift += w;
    }
    return p;
}

/* Byte and bit of element (row, d) in a plane of w bits. */
static size_t place(int is_v, struct kv_shape s, int w, int row, int d, int *bit) {
    int n = 8 / w, along = is_v ? row : d, lane = is_v ? d : row, lanes = is_v ? s.dim : KV_ROWS;
    *bit = along / 4 % n * w;
    return ((size_t)(along / (4 * n)) * (size_t)lanes + (size_t)lane) * 4 + (size_t)(along % 4);
}

void kv_codes_put(uint8_t *block, int is_v, struct kv_shape s, int row, const uint8_t *codes) {
    struct kv_planes p = kv_planes_of(s);
    for (int i = 0; i < p.n; i++) {
        int w = p.bits[i], mask = (1 << w) - 1, bit;
        for (int d = 0; d < s.dim; d++) {
            uint8_t *at = block + p.offset[i] + place(is_v, s, w, row, d, &bit);
            *at = (uint8_t)((*at & ~(mask << bit)) | (codes[d] >> p.shift[i] & mask) << bit);
        }
    }
}

void kv_codes_get(const uint8_t *block, int is_v, struct kv_shape s, int row, uint8_t *codes) {
    struct kv_planes p = kv_planes_of(s);
    memset(codes, 0, (size_t)s.dim);
    for (int i = 0; i < p.n; i++) {
        int w = p.bits[i], mask = (1 << w) - 1, bit;
        for (int d = 0; d < s.dim; d++) {
            size_t at = p.offset[i] + place(is_v, s, w, row, d, &bit);
            codes[d] |= (uint8_t)((block[at] >> bit & mask) << p.shift[i]);
        }
    }
}
