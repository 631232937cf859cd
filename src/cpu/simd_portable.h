/* Vectors of the portable path: four lanes of what every compiler knows, no fused multiply-add. The other simd_*.h define the
 * same names; *_body.h are written over them, one instance per ISA. */
#ifndef CPU_SIMD_H
#define CPU_SIMD_H
#include <stdint.h>
#include <string.h>

#include "quant/convert.h"

enum { V = 4 }; /* lanes */
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf vf_load(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
static inline void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
static inline vi vi_load(const void *p) { vi v; memcpy(&v, p, sizeof v); return v; }
static inline void vi_store(void *p, vi v) { memcpy(p, &v, sizeof v); }
static inline vf vf_set(float x) { return (vf){x, x, x, x}; }
static inline vi vi_set(int32_t x) { return (vi){x, x, x, x}; }
/* n < V lanes; the others are 0 and not touched in memory. */
static inline vf vf_load_n(const float *p, int n) { vf v = {0}; memcpy(&v, p, (size_t)n * 4); return v; }
static inline void vf_store_n(float *p, vf v, int n) { memcpy(p, &v, (size_t)n * 4); }
static inline vf vf_madd(vf a, vf b, vf c) { return a * b + c; }
static inline vf vf_pick(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
/* The second operand where either is NaN. */
static inline vf vf_max(vf a, vf b) { return vf_pick(a > b, a, b); }
static inline vf vf_min(vf a, vf b) { return vf_pick(a < b, a, b); }
/* To the nearest integer, half to even; |x| < 2^22. */
static inline vf vf_rint(vf x) { vf magic = vf_set(12582912.0f); return (x + magic) - magic; }
static inline vi vf_to_int(vf x) { return __builtin_convertvector(vf_rint(x), vi); }
static inline vf vf_from_int(vi x) { return __builtin_convertvector(x, vf); }
static inline vf vf_sqrt(vf x) {
    for (int i = 0; i < V; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
}
static inline float vf_sum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
static inline float vf_highest(vf v) {
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}
static inline vi vi_max(vi a, vi b) { vi mask = a > b; return (mask & a) | (~mask & b); }
static inline int32_t vi_highest(vi v) {
    int32_t a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}
static inline int32_t vi_sum(vi v) { return v[0] + v[1] + v[2] + v[3]; }
static inline vf vf_even(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6); }
static inline vf vf_odd(vf a, vf b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7); }
/* V values of 16 or 8 bits. */
static inline vi vi_load_u16(const uint16_t *p) { return (vi){p[0], p[1], p[2], p[3]}; }
static inline void vi_store_i8(int8_t *p, vi v) {
    for (int i = 0; i < V; i++) p[i] = (int8_t)v[i];
}
static inline void vi_store_u16(uint16_t *p, vi v) {
    for (int i = 0; i < V; i++) p[i] = (uint16_t)v[i];
}
static inline vf vf_load_f16(const uint16_t *p) {
    return (vf){float_from_f16(p[0]), float_from_f16(p[1]), float_from_f16(p[2]), float_from_f16(p[3])};
}
/* table[i] lane by lane; the table has n entries, and room for 32. */
static inline vf vf_lookup(const float *table, int n, vi i) {
    return (void)n, (vf){table[i[0]], table[i[1]], table[i[2]], table[i[3]]};
}
static inline vf vf_times_power(vf x, vf power) { /* x * 2^n, -252 <= n <= 254, rounded once */
    vi n = vf_to_int(power);
    vi half = n >> 1;
    return x * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}
#endif
