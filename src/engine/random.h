/* Random numbers that are a function of (seed, position, purpose) alone: Philox4x32-10 of Salmon, Moraes, Dror and Shaw (2011).
 * So a token's number does not depend on how many were drawn before it, by whom, or in which step. docs/sampling.md */
#ifndef ENGINE_RANDOM_H
#define ENGINE_RANDOM_H
#include <stdint.h>

enum random_purpose { RANDOM_DRAW, RANDOM_XTC };

void random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* In [0, 1), a multiple of 2^-53. key = seed (low word first); counter = (position low, position high, purpose, 0). */
double random_uniform(uint64_t seed, uint64_t position, enum random_purpose purpose);
#endif
