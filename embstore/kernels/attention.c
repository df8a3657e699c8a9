#define LOWEST -87.0f  /* the smallest score less the largest; its power is the smallest normal number, about */
#define BODY "attention_body.h"
#include "targets.h"

#include <stdlib.h>

#ifdef __linux__
#include <dlfcn.h>
#endif

typedef struct {
    const attention_t *attention;
    int64_t next;  /* the sentence that is next */
    int failed;
} work_t;

/* Take one sentence after the other until none is left; each is computed in the same way, whoever takes it. */
static void work_on(void *given) {
    work_t *work = given;
    const attention_t *attention = work->attention;
    float *buffer = NULL;
    int64_t held = 0;
    for (;;) {
#ifdef __GNUC__
        const int64_t sentence = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
#else
        const int64_t sentence = work->next++;
#endif
        if (sentence >= attention->n_sentences) break;
        const int64_t start = attention->bounds[sentence], n = attention->bounds[sentence + 1] - start;
        const int64_t needed = (attention->size + 4) * (n + 32) + 4 * attention->size;
        if (needed > held) {
            free(buffer);
            buffer = calloc(needed, sizeof(float));
            held = needed;
        }
        if (!buffer) {
            work->failed = 1;
            break;
        }
        for (int64_t head = 0; head < attention->n_heads; head++)
            CHOOSE(attend_head)(attention, start, n, head, buffer);
    }
    free(buffer);
}

/* The threads are those of torch, whose OpenMP library is loaded for all; a second library's would compete with them. */
int attend(const attention_t *attention, int n_threads) {
    work_t work = {attention, 0, 0};
    void (*in_parallel)(void (*)(void *), void *, unsigned, unsigned) = NULL;
#ifdef __linux__
    if (n_threads > 1) *(void **)&in_parallel = dlsym(RTLD_DEFAULT, "GOMP_parallel");
#endif
    if (in_parallel) in_parallel(work_on, &work, (unsigned)n_threads, 0);
    else work_on(&work);
    return work.failed;
}
