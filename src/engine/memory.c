#include <stdio.h>
#include <string.h>

#include "engine/inside.h"

/* The number behind `key` in a file of lines, or the file's first number when key is empty; `missing` when there is none. */
static size_t read_number(const char *path, const char *key, size_t missing) {
    FILE *f = fopen(path, "r");
    if (!f) return missing;
    char line[256];
    size_t out = missing;
    while (fgets(line, sizeof line, f)) {
        unsigned long long n;
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%llu", &n) == 1) {
            out = (size_t)n;
            break;
        }
    }
    fclose(f);
    return out;
}

size_t memory_free_bytes(void) {
    size_t kib = read_number("/proc/meminfo", "MemAvailable:", (size_t)1 << 20);
    size_t free_bytes = kib * 1024;
    size_t limit = read_number("/sys/fs/cgroup/memory.max", "", SIZE_MAX),
           used = read_number("/sys/fs/cgroup/memory.current", "", 0);
    if (limit != SIZE_MAX) {
        /* file pages count as used there but can be had back */
        size_t file = read_number("/sys/fs/cgroup/memory.stat", "file ", 0);
        size_t firm = used > file ? used - file : 0, left = limit > firm ? limit - firm : 0;
        if (left < free_bytes) free_bytes = left;
    }
    return free_bytes;
}
