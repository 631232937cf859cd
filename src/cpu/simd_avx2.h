/* Eight lanes with fused multiply-add: see simd_portable.h for what the names promise. */
#ifndef CPU_SIMD_H
#define CPU_SIMD_H
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { V = 8 };
typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));

static inline __m256i vi_lanes_below(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
static inline vi vi_load(const void *p) { return (vi)_mm256_loadu_si256((const __m256i *)p); }
static inline void vi_store(void *p, vi v) { _mm256_storeu_si256((__m256i *)p, (__m256i)v); }
static inline vf vf_set(float x) { return _mm256_set1_ps(x); }
static inline vi vi_set(int32_t x) { return (vi)_mm256_set1_epi32(x); }
static inline vf vf_load_n(const float *p, int n) { return _mm256_maskload_ps(p, vi_lanes_below(n)); }
static inline void vf_store_n(float *p, vf v, int n) { _mm256_maskstore_ps(p, vi_lanes_below(n), v); }
static inline vf vf_madd(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_pick(vi mask, vf a, vf b) { return _mm256_blendv_ps(b, a, (__m256)mask); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_rint(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vi vf_to_int(vf x) { return (vi)_mm256_cvtps_epi32(x); }
static inline vf vf_from_int(vi x) { return _mm256_cvtepi32_ps((__m256i)x); }
static inline vf vf_sqrt(vf x) { return _mm256_sqrt_ps(x); }
static inline float vf_sum(vf v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
static inline float vf_highest(vf v) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
static inline vi vi_max(vi a, vi b) { return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b); }
static inline int32_t vi_highest(vi v) {
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}
static inline int32_t vi_sum(vi v) {
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}
static inline vf vf_even(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
static inline vf vf_odd(vf a, vf b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15); }
static inline vi vi_load_u16(const uint16_t *p) { return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline __m128i vi_to_16(vi v) { /* lanes hold 0 .. 65535 */
    return _mm_packus_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
}
static inline void vi_store_u16(uint16_t *p, vi v) { _mm_storeu_si128((__m128i *)p, vi_to_16(v)); }
static inline void vi_store_i8(int8_t *p, vi v) {
    __m128i w = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(w, w));
}
static inline vf vf_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vf vf_lookup(const float *table, int n, vi i) {
    if (n <= 8) return _mm256_permutevar8x32_ps(vf_load(table), (__m256i)i);
    return _mm256_i32gather_ps(table, (__m256i)i, 4);
}
static inline vf vf_times_power(vf x, vf power) {
    vi n = vf_to_int(power);
    vi half = n >> 1;
    return x * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}
#endif
