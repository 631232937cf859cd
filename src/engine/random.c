#include "engine/random.h"

static uint32_t multiply_high(uint32_t a, uint32_t b, uint32_t *low) {
    uint64_t p = (uint64_t)a * b;
    *low = (uint32_t)p;
    return (uint32_t)(p >> 32);
}

void random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint32_t low0, low1;
        uint32_t high0 = multiply_high(0xD2511F53u, c0, &low0), high1 = multiply_high(0xCD9E8D57u, c2, &low1);
        c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

double random_uniform(uint64_t seed, uint64_t position, enum random_purpose purpose) {
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)purpose, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];
    random_philox(counter, key, out);
    uint64_t bits = (uint64_t)out[1] << 32 | out[0];
    return (double)(bits >> 11) * 0x1p-53;
}
