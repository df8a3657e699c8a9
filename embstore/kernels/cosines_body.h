/* Sums of unit vectors; included for floats and for doubles.

   The sums of words are read and written at random: they are floats for vectors of floats, which halves their bytes, and
   are fetched while an earlier vector is added. No sum of floats has more than FLUSH_COUNT terms but that of a
   sentence. */

#ifndef REAL

#ifdef __GNUC__
#define FETCH(address) __builtin_prefetch(address, 1)
#else
#define FETCH(address)
#endif
#define AHEAD 2
#define CACHE_LINE 64
#define N_SUMS 4

#define REAL float
#define OWN(name) NAME(JOIN(name, float))
#include "cosines_body.h"
#undef OWN
#undef REAL

#define REAL double
#define OWN(name) NAME(JOIN(name, double))
#include "cosines_body.h"
#undef OWN
#undef REAL

#undef FETCH
#undef AHEAD
#undef CACHE_LINE
#undef N_SUMS

#else

#define LANES (4 * WIDTH / (int)sizeof(REAL) > 0 ? 4 * WIDTH / (int)sizeof(REAL) : 1)
#if WIDTH > 1
typedef REAL OWN(lanes) __attribute__((vector_size(4 * WIDTH), aligned(sizeof(REAL)), may_alias));
#else
typedef REAL OWN(lanes);
#endif

/* Several sums at a time hide the time that an addition takes; their order does not depend on addresses. */
TARGET static REAL OWN(dot)(const REAL *left, const REAL *right, int64_t size) {
    OWN(lanes) sums[N_SUMS];
    REAL parts[N_SUMS * LANES];
    int64_t j = 0;
    memset(sums, 0, sizeof sums);
    for (; j + N_SUMS * LANES <= size; j += N_SUMS * LANES)
        UNROLL for (int i = 0; i < N_SUMS; i++)
            sums[i] += *(const OWN(lanes) *)(left + j + i * LANES) * *(const OWN(lanes) *)(right + j + i * LANES);
    memcpy(parts, sums, sizeof sums);
    for (int i = 0; j < size; i++, j++) parts[i] += left[j] * right[j];
    for (int half = N_SUMS * LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

TARGET static void OWN(read_halves)(const uint16_t *from, int64_t size, REAL *row) {
    int64_t j = 0;
    for (; j + WIDTH <= size; j += WIDTH) {
        float values[WIDTH];
        NAME(store_floats)(values, NAME(load_halves)(from + j));
        for (int i = 0; i < WIDTH; i++) row[j + i] = values[i];
    }
    for (; j < size; j++) row[j] = float_of_half(from[j]);
}

TARGET static void OWN(fetch_sum)(const cosines_t *sums, int64_t word) {
    const char *sum = (const char *)((const REAL *)sums->word_sums + word * sums->width);
    for (int64_t j = 0; j < sums->width * (int64_t)sizeof(REAL); j += CACHE_LINE) FETCH(sum + j);
}

/* Add a vector times `scale` to one or two sums. */
TARGET static void OWN(add_unit)(
    const REAL *__restrict row, REAL scale, int64_t size, REAL *__restrict sum, REAL *__restrict word
) {
    if (!word) {
        for (int64_t j = 0; j < size; j++) sum[j] += row[j] * scale;
        return;
    }
    for (int64_t j = 0; j < size; j++) {
        REAL value = row[j] * scale;
        sum[j] += value;
        word[j] += value;
    }
}

/* Add a vector times `scale` to a sum, and the vector to the sum after it. */
TARGET static void OWN(add_both)(const REAL *__restrict row, REAL scale, int64_t size, REAL *__restrict sum) {
    for (int64_t j = 0; j < size; j++) {
        sum[j] += row[j] * scale;
        sum[size + j] += row[j];
    }
}

/* Move a sum to a total, and begin it again. */
TARGET static void OWN(flush)(REAL *__restrict sum, int64_t size, double *__restrict total) {
    for (int64_t j = 0; j < size; j++) {
        total[j] += sum[j];
        sum[j] = 0;
    }
}

/* Set the value of the sentence just read, or store it as the first one if it began before this part. */
TARGET static void OWN(close_run)(const cosines_t *sums) {
    const int64_t size = sums->size, sentence = sums->runs[0], count = sums->runs[1];
    REAL *own = sums->run_sums, *units = own + size;
    if (sentence < 0) return;
    for (int64_t j = 0; j < size; j++) sums->total[j] += units[j];
    if (count < sums->sentence_sizes[sentence]) {
        memcpy(sums->runs + 2, sums->runs, 2 * sizeof(int64_t));
        memcpy(own + 2 * size, own, 2 * size * sizeof(REAL));
    } else {
        double square = OWN(dot)(own, own, size), product = OWN(dot)(own, units, size);
        sums->sentence_values[sentence] = square > 0 ? product / sqrt(square) / count : 0;
    }
}

/* Add a vector to the sentence being read. */
TARGET static void OWN(add_to_run)(const cosines_t *sums, int64_t sentence, const REAL *__restrict row) {
    REAL *__restrict own = sums->run_sums;
    if (sentence != sums->runs[0]) {
        OWN(close_run)(sums);
        sums->runs[0] = sentence;
        sums->runs[1] = 0;
        memset(own, 0, 2 * sums->size * sizeof(REAL));
    }
    sums->runs[1]++;
    for (int64_t j = 0; j < sums->size; j++) own[j] += row[j];
}

TARGET static int64_t OWN(add_cosines)(const cosines_t *sums) {
    const int64_t size = sums->size, n = sums->n;
    const int words_alone = sums->width > size;
    REAL *buffer = sums->buffers, *loose = buffer + size;
    int64_t n_nonzero = 0, n_loose = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t word = sums->words ? sums->words[i] : -1, sentence = sums->sentences ? sums->sentences[i] : -1;
        const REAL *row = buffer;
        REAL *word_sum = word < 0 ? NULL : (REAL *)sums->word_sums + word * sums->width;
        if (sums->words && i + AHEAD < n && sums->words[i + AHEAD] >= 0)
            OWN(fetch_sum)(sums, sums->words[i + AHEAD]);
        if (words_alone && !word_sum) continue;
        if (sums->half) OWN(read_halves)((const uint16_t *)sums->vectors + i * size, size, buffer);
        else row = (const REAL *)sums->vectors + i * size;
        const REAL square = OWN(dot)(row, row, size);
        if (!(square < INFINITY)) return -1;
        const REAL scale = square > 0 ? 1 / sqrt(square) : 0;
        n_nonzero += square > 0;
        if (sentence >= 0) OWN(add_to_run)(sums, sentence, row);
        if (words_alone) {
            OWN(add_both)(row, scale, size, word_sum);
        } else {
            OWN(add_unit)(row, scale, size, sentence < 0 ? loose : (REAL *)sums->run_sums + size, word_sum);
            if (sentence < 0 && ++n_loose % FLUSH_COUNT == 0) OWN(flush)(loose, size, sums->total);
        }
        if (!word_sum) continue;
        int64_t *counts = sums->word_counts + 3 * word;
        counts[2] += square > 0;
        if (counts[0] >= 0 && ++counts[1] == FLUSH_COUNT) {
            OWN(flush)(word_sum, sums->width, sums->word_totals + counts[0] * sums->width);
            counts[1] = 0;
        }
    }
    OWN(flush)(loose, size, sums->total);
    return n_nonzero;
}

#undef LANES

#endif
