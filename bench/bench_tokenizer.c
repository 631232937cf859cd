/* Speed of the tokenizer on one core, both ways: bench_tokenizer tokenizer.json CORPUS [ROUNDS]. The corpus is documents with
 * a zero byte between them, one call each; processor time, best of the rounds. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/tokenizer.h"

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run(const char *path, const char *corpus, int rounds, struct weft_error *e) {
    double start = cpu_seconds(), encode = 1e9, decode = 1e9;
    struct tokenizer *t;
    struct file_map file;
    if (tokenizer_open(&t, path, e)) return -1;
    printf("open: %.0f ms\n", 1e3 * (cpu_seconds() - start));
    if (file_open_map(&file, corpus, e)) return -1;
    const char *all = (const char *)file.data, *end = all + file.n_bytes;
    struct token_list ids = {0};
    struct buf text = {0};
    size_t n_docs = 0, n_tokens = 0, n_text = 0;
    for (int r = 0; r < rounds; r++) {
        double spent[2] = {0, 0};
        n_docs = n_tokens = n_text = 0;
        for (const char *p = all, *stop; p < end; p = stop + 1, n_docs++) {
            stop = memchr(p, 0, (size_t)(end - p));
            if (!stop) stop = end;
            ids.n = 0;
            buf_clear(&text);
            double t0 = cpu_seconds();
            if (tokenizer_encode(t, p, (size_t)(stop - p), TOKENIZER_ADDED_ALL, &ids, e)) return -1;
            double t1 = cpu_seconds();
            if (tokenizer_decode(t, ids.ids, ids.n, 0, &text, e)) return -1;
            spent[0] += t1 - t0, spent[1] += cpu_seconds() - t1;
            n_tokens += ids.n, n_text += text.n;
        }
        if (spent[0] < encode) encode = spent[0];
        if (spent[1] < decode) decode = spent[1];
    }
    double mb = (double)file.n_bytes / 1e6, million = (double)n_tokens / 1e6;
    printf("%zu documents, %.1f MB, %zu tokens, %.1f MB decoded\n", n_docs, mb, n_tokens, (double)n_text / 1e6);
    printf("encode: %.2f MB/s, %.2f million tokens/s\n", mb / encode, million / encode);
    printf("decode: %.2f MB/s, %.2f million tokens/s\n", mb / decode, million / decode);
    token_list_drop(&ids), buf_drop(&text);
    file_close_map(&file), tokenizer_close(t);
    return 0;
}

int main(int argc, char **argv) {
    struct weft_error e = {0};
    if (argc < 3) return fprintf(stderr, "usage: bench_tokenizer tokenizer.json CORPUS [ROUNDS]\n"), 2;
    int rounds = argc > 3 ? atoi(argv[3]) : 3;
    if (run(argv[1], argv[2], rounds < 1 ? 1 : rounds, &e)) return fprintf(stderr, "bench_tokenizer: %s\n", e.message), 1;
    return 0;
}
