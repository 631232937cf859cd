#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"

static int lost; /* errno of the first failed write, or 0 */

static void note(int failed) {
    if (failed && !lost) lost = errno ? errno : EIO;
}

void out_bytes(const void *bytes, size_t n) {
    if (!lost) note(fwrite(bytes, 1, n, stdout) != n);
}

void out_text(const char *text) { out_bytes(text, strlen(text)); }

void out_printf(const char *format, ...) {
    if (lost) return;
    va_list list;
    va_start(list, format);
    note(vfprintf(stdout, format, list) < 0);
    va_end(list);
}

int out_check(struct weft_error *e) {
    if (!lost) note(fflush(stdout) != 0 || ferror(stdout));
    return lost ? error_set(e, WEFT_ERROR_INPUT, "standard output: %s", strerror(lost)) : 0;
}

static double progress_start_ms, progress_last_ms;
static int progress_shown;

void progress_show(void *arg, const char *what, double fraction) {
    (void)arg;
    double now = clock_ms();
    if (progress_start_ms == 0) progress_start_ms = now;
    if (now - progress_start_ms < 1000 || now - progress_last_ms < 100 || !isatty(2)) return;
    progress_last_ms = now;
    if (fraction < 0) fprintf(stderr, "\r\033[K%s", what);
    else fprintf(stderr, "\r\033[K%s %3.0f%%", what, 100 * fraction);
    fflush(stderr);
    progress_shown = 1;
}

void progress_end(void) {
    if (progress_shown) fputs("\r\033[K", stderr), fflush(stderr);
    progress_shown = 0;
    progress_start_ms = progress_last_ms = 0;
}

static void show_warning(void *arg, int level, const char *line) {
    (void)arg;
    if (level < LOG_WARNING) return;
    if (progress_shown) fputs("\r\033[K", stderr);
    fprintf(stderr, "weft: warning: %s\n", line);
}

void warnings_show(void) { log_set_sink(show_warning, NULL); }
