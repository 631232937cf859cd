#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H
double clock_ms(void);      /* monotonic, for differences only */
double clock_work_ms(void); /* the calling thread's processor time, for differences only */
#endif
