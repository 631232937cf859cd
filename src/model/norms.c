#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "model/weights.h"

const char *convention_name(enum convention c) {
    static const char *const names[] = {"raw, gain = 1 + w", "folded, gain = w", "folded twice, gain = w - 1"};
    return names[c];
}

double norms_mean(const float *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return n ? sum / n : 0;
}

void norms_apply(enum convention c, float *gain, int n) {
    float add = c == CONVENTION_RAW ? 1.0f : c == CONVENTION_TWICE ? -1.0f : 0.0f;
    for (int i = 0; i < n && add != 0; i++) gain[i] += add;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* Thresholds: means measured in public files, raw -0.03 to 0.22, folded 0.94 to 1.15, folded twice 1.94 to 2.0. */
int norms_decide_text(enum convention *out, double *means, int n, int conv_layout, const char *folder, struct weft_error *e) {
    if (n == 0) return error_set(e, WEFT_ERROR_INPUT, "%s: no layer has norms", folder);
    double m = median(means, n);
    if (m < 0.4) *out = CONVENTION_RAW;
    else if (m < 0.75) *out = conv_layout == 1 ? CONVENTION_FOLDED : CONVENTION_RAW;
    else *out = m <= 1.6 ? CONVENTION_FOLDED : CONVENTION_TWICE;
    if (*out == CONVENTION_TWICE)
        log_write(LOG_WARNING, "%s: norm gains have a mean of %.2f: taken as shifted twice, 1 is subtracted", folder, m);
    else if (conv_layout >= 0 && (conv_layout == 1) != (*out == CONVENTION_FOLDED))
        log_write(LOG_WARNING, "%s: norm gains have a mean of %.2f (%s), though the convolutions are %s; the values win", folder, m,
                  convention_name(*out), conv_layout ? "converted" : "not converted");
    return 0;
}

enum convention norms_decide_mtp_layer(double *means, int n, enum convention text) {
    double m = median(means, n);
    if (m < 0.4) return CONVENTION_RAW;
    if (m < 0.75) return text == CONVENTION_RAW ? CONVENTION_RAW : CONVENTION_FOLDED;
    return m <= 1.6 ? CONVENTION_FOLDED : CONVENTION_TWICE;
}

enum convention norms_decide_mtp_input(double mean, enum convention text) {
    if (mean < 0.15) return CONVENTION_RAW;
    if (mean > 0.6) return CONVENTION_FOLDED;
    return text;
}

enum convention norms_decide_mtp_final(double mean, enum convention text) {
    if (text == CONVENTION_RAW) return mean < 1 ? CONVENTION_RAW : CONVENTION_FOLDED;
    return mean >= 0.75 ? CONVENTION_FOLDED : CONVENTION_RAW;
}
