/* Warnings and progress from the library: to the sink that the embedding program sets, else dropped. Thread-safe. */
#ifndef BASE_LOG_H
#define BASE_LOG_H
enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING };
typedef void log_sink(void *arg, int level, const char *line);
void log_set_sink(log_sink *sink, void *arg);
void log_write(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#endif
