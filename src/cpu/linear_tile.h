/* Sets of up to six rows as named variables: GCC 12 keeps arrays of sums in memory. */
#ifndef CPU_LINEAR_TILE_H
#define CPU_LINEAR_TILE_H

#define INLINE static inline __attribute__((always_inline))
#define TILE_ROWS(M) M(0) M(1) M(2) M(3) M(4) M(5)

/* CALL(R) with R = n as a constant; more than six are six. */
#define TILE_CASES(n, CALL)  \
    switch (n) {             \
    case 1: CALL(1); break;  \
    case 2: CALL(2); break;  \
    case 3: CALL(3); break;  \
    case 4: CALL(4); break;  \
    case 5: CALL(5); break;  \
    default: CALL(6); break; \
    }

enum { SET_ROWS = 6 };

/* Rows of a set: six, and an even cut of the last twelve. */
INLINE int rows_of_set(int left) { return left <= SET_ROWS ? left : left < 2 * SET_ROWS ? (left + 1) / 2 : SET_ROWS; }
#endif
