#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static log_sink *current;
static void *current_arg;

void log_set_sink(log_sink *sink, void *arg) {
    pthread_mutex_lock(&lock);
    current = sink, current_arg = arg;
    pthread_mutex_unlock(&lock);
}

void log_write(int level, const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    pthread_mutex_lock(&lock);
    if (current) current(current_arg, level, line);
    pthread_mutex_unlock(&lock);
}
