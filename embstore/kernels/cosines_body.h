/* Sums of unit vectors; included for floats and for doubles. */

#ifndef REAL

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

#else

#define PARTS 16

/* Each part sums every 16th product: the order of additions does not depend on addresses. */
TARGET static REAL OWN(dot)(const REAL *left, const REAL *right, int64_t size) {
    REAL parts[PARTS] = {0};
    int64_t j = 0;
    for (; j + PARTS <= size; j += PARTS)
        UNROLL for (int i = 0; i < PARTS; i++) parts[i] += left[j + i] * right[j + i];
    for (int i = 0; j < size; i++, j++) parts[i] += left[j] * right[j];
    for (int half = PARTS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

/* Set the value of the sentence just read, or store it in `first` if it began before this part. */
TARGET static void OWN(close_run)(const cosines_t *sums, REAL *run_sums, REAL *first_sums, REAL *total) {
    const int64_t size = sums->size, sentence = sums->run[0];
    if (sentence < 0) return;
    for (int64_t j = 0; j < size; j++) total[j] += run_sums[size + j];
    if (sums->run[1] < sums->sentence_sizes[sentence]) {
        memcpy(sums->first, sums->run, 2 * sizeof(int64_t));
        memcpy(first_sums, run_sums, 2 * size * sizeof(REAL));
        return;
    }
    double square = OWN(dot)(run_sums, run_sums, size), product = OWN(dot)(run_sums, run_sums + size, size);
    sums->sentence_values[sentence] = square > 0 ? product / sqrt(square) / sums->run[1] : 0;
}

TARGET static int64_t OWN(add_cosines)(
    const cosines_t *sums, const void *vectors, int half, int64_t n, REAL *row, REAL *run_sums, REAL *first_sums,
    REAL *total
) {
    const int64_t size = sums->size;
    int64_t n_nonzero = 0;
    for (int64_t i = 0; i < n; i++) {
        if (half) {
            const uint16_t *from = (const uint16_t *)vectors + i * size;
            int64_t j = 0;
            for (; j + WIDTH <= size; j += WIDTH) {
                float values[WIDTH];
                NAME(store_floats)(values, NAME(load_halves)(from + j));
                for (int part = 0; part < WIDTH; part++) row[j + part] = values[part];
            }
            for (; j < size; j++) row[j] = float_of_half(from[j]);
        } else {
            memcpy(row, (const REAL *)vectors + i * size, size * sizeof(REAL));
        }
        REAL square = OWN(dot)(row, row, size);
        if (!(square < INFINITY)) return -1;
        n_nonzero += square > 0;
        const REAL scale = square > 0 ? 1 / sqrt(square) : 0;
        if (sums->words && sums->words[i] >= 0) {
            double *word = sums->word_sums + sums->words[i] * size;
            for (int64_t j = 0; j < size; j++) word[j] += row[j] * scale;
            sums->word_nonzero[sums->words[i]] += square > 0;
        }
        if (!sums->sentences || sums->sentences[i] < 0) {
            for (int64_t j = 0; j < size; j++) total[j] += row[j] * scale;
            continue;
        }
        if (sums->sentences[i] != sums->run[0]) {
            OWN(close_run)(sums, run_sums, first_sums, total);
            sums->run[0] = sums->sentences[i];
            sums->run[1] = 0;
            memset(run_sums, 0, 2 * size * sizeof(REAL));
        }
        sums->run[1]++;
        for (int64_t j = 0; j < size; j++) {
            run_sums[j] += row[j];
            run_sums[size + j] += row[j] * scale;
        }
    }
    return n_nonzero;
}

#undef PARTS

#endif
