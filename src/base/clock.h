#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H
double clock_ms(void); /* monotonic, for differences only */
#endif
