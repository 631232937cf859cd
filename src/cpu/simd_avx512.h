/* Sixteen lanes with fused multiply-add: see simd_portable.h for what the names promise. */
#ifndef CPU_SIMD_H
#define CPU_SIMD_H
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { V = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));

static inline __mmask16 lanes_below(int n) { return (__mmask16)((1u << n) - 1); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
static inline vi vi_load(const void *p) { return (vi)_mm512_loadu_si512(p); }
static inline void vi_store(void *p, vi v) { _mm512_storeu_si512(p, (__m512i)v); }
static inline vf vf_set(float x) { return _mm512_set1_ps(x); }
static inline vi vi_set(int32_t x) { return (vi)_mm512_set1_epi32(x); }
static inline vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(lanes_below(n), p); }
static inline void vf_store_n(float *p, vf v, int n) { _mm512_mask_storeu_ps(p, lanes_below(n), v); }
static inline vf vf_madd(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_pick(vi mask, vf a, vf b) { return _mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), b, a); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_rint(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vi vf_to_int(vf x) { return (vi)_mm512_cvtps_epi32(x); }
static inline vf vf_from_int(vi x) { return _mm512_cvtepi32_ps((__m512i)x); }
static inline vf vf_sqrt(vf x) { return _mm512_sqrt_ps(x); }
static inline float vf_sum(vf v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
static inline float vf_highest(vf v) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
static inline vi vi_max(vi a, vi b) { return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b); }
static inline int32_t vi_highest(vi v) { return _mm512_reduce_max_epi32((__m512i)v); }
static inline int32_t vi_sum(vi v) { return _mm512_reduce_add_epi32((__m512i)v); }
static inline vf vf_even(vf a, vf b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
static inline vf vf_odd(vf a, vf b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
static inline vi vi_load_u16(const uint16_t *p) { return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)); }
static inline void vi_store_u16(uint16_t *p, vi v) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)v)); }
static inline void vi_store_i8(int8_t *p, vi v) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v)); }
static inline vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vf vf_lookup(const float *table, int n, vi i) {
    if (n <= 16) return _mm512_permutexvar_ps((__m512i)i, vf_load(table));
    if (n <= 32) return _mm512_permutex2var_ps(vf_load(table), (__m512i)i, vf_load(table + 16));
    return _mm512_i32gather_ps((__m512i)i, table, 4);
}
static inline vf vf_times_power(vf x, vf n) { return _mm512_scalef_ps(x, n); }
#endif
