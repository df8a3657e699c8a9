/* Sums of unit vectors; included for floats and for doubles.

   The sums of words are read and written at random: they are floats for vectors of floats, which halves their bytes, and
   are fetched while an earlier vector is added. No sum of floats has more than FLUSH_COUNT terms but that of a
   sentence. */

#ifndef REAL

#define FETCH(address) __builtin_prefetch(address, 1)
#define FETCH_ONCE(address) __builtin_prefetch(address)
#define ROWS_AHEAD 6
#define MOST_ROWS 16
#define PAGE 4096
#define AHEAD 2
#define CACHE_LINE 64
#define N_SUMS 4

/* List the rows that have a word so that those of a word follow each other; words in the order of their first rows.
   `first` [word] is 0, `next` [n]; in both a row is its number + 1. Returns how many rows there are. */
TARGET static int64_t NAME(order_by_word)(
    const int64_t *words, int64_t n, int32_t *first, int32_t *next, int32_t *order
) {
    int64_t count = 0;
    for (int64_t i = n - 1; i >= 0; i--) {
        if (words[i] < 0) continue;
        next[i] = first[words[i]];
        first[words[i]] = (int32_t)i + 1;
    }
    for (int64_t i = 0; i < n; i++) {
        if (words[i] < 0 || first[words[i]] != i + 1) continue;
        for (int64_t row = i + 1; row; row = next[row - 1]) order[count++] = (int32_t)row - 1;
    }
    return count;
}

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
#undef FETCH_ONCE
#undef ROWS_AHEAD
#undef MOST_ROWS
#undef PAGE
#undef AHEAD
#undef CACHE_LINE
#undef N_SUMS

#else

#define LANES (4 * WIDTH / (int)sizeof(REAL))
typedef REAL OWN(lanes) __attribute__((vector_size(4 * WIDTH), aligned(sizeof(REAL)), may_alias));

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

/* Whether squares overflow or vanish, so that the scale of a vector would be wrong. */
TARGET static int OWN(is_lost)(const REAL *row, REAL square, int64_t size) {
    if (square > (sizeof(REAL) == sizeof(float) ? 1e-30 : 1e-290)) return square == INFINITY;
    for (int64_t j = 0; j < size; j++)
        if (row[j] != 0) return 1;
    return 0;
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

TARGET static const REAL *OWN(read_row)(const cosines_t *sums, int64_t i, REAL *buffer) {
    if (!sums->half) return (const REAL *)sums->vectors + i * sums->size;
    OWN(read_halves)((const uint16_t *)sums->vectors + i * sums->size, sums->size, buffer);
    return buffer;
}

/* Add rows times their scales to a sum, and the rows to the sum after it: a few columns of all rows at a time. */
TARGET static void OWN(add_rows)(
    const REAL *const *rows, const REAL *scales, int64_t count, int64_t size, REAL *sum
) {
    int64_t j = 0;
    for (; j + N_SUMS * LANES <= size; j += N_SUMS * LANES) {
        OWN(lanes) units[N_SUMS], plains[N_SUMS];
        memcpy(units, sum + j, sizeof units);
        memcpy(plains, sum + size + j, sizeof plains);
        for (int64_t k = 0; k < count; k++)
            UNROLL for (int i = 0; i < N_SUMS; i++) {
                const OWN(lanes) values = *(const OWN(lanes) *)(rows[k] + j + i * LANES);
                units[i] += values * scales[k];
                plains[i] += values;
            }
        memcpy(sum + j, units, sizeof units);
        memcpy(sum + size + j, plains, sizeof plains);
    }
    for (; j < size; j++)
        for (int64_t k = 0; k < count; k++) {
            sum[j] += rows[k][j] * scales[k];
            sum[size + j] += rows[k][j];
        }
}

/* Add unit and plain vectors to the sums of words. The rows of a word are read one after the other, each once, and are
   fetched a few rows before. Before that a byte of each page is read in their order, so that a disk is read in order. */
TARGET static int64_t OWN(add_ordered)(const cosines_t *sums, const int32_t *order, int64_t count, REAL *buffers) {
    const int64_t row_nbytes = sums->size * (sums->half ? 2 : (int64_t)sizeof(REAL)), nbytes = sums->n * row_nbytes;
    const char *vectors = sums->vectors;
    const REAL *rows[MOST_ROWS];
    REAL scales[MOST_ROWS];
    int64_t n_nonzero = 0;
    for (int64_t i = 0; i < nbytes; i += PAGE) (void)*(const volatile char *)(vectors + i);
    for (int64_t start = 0, k = 0; start < count; start = k) {
        const int64_t word = sums->words[order[start]];
        int64_t *counts = sums->word_counts + 3 * word;
        const int64_t room = FLUSH_COUNT - counts[1], most = start + (room < MOST_ROWS ? room : MOST_ROWS);
        REAL *sum = (REAL *)sums->word_sums + word * sums->width;
        for (; k < count && k < most && sums->words[order[k]] == word; k++) {
            if (k + ROWS_AHEAD < count) {
                const char *later = vectors + order[k + ROWS_AHEAD] * row_nbytes;
                const int64_t next = sums->words[order[k + ROWS_AHEAD]];
                for (int64_t j = 0; j < row_nbytes; j += CACHE_LINE) FETCH_ONCE(later + j);
                if (next != sums->words[order[k + ROWS_AHEAD - 1]]) OWN(fetch_sum)(sums, next);
            }
            const REAL *row = OWN(read_row)(sums, order[k], buffers + (k - start) * sums->size);
            const REAL square = OWN(dot)(row, row, sums->size);
            if (OWN(is_lost)(row, square, sums->size)) return -1;
            rows[k - start] = row;
            scales[k - start] = square > 0 ? 1 / sqrt(square) : 0;
            counts[2] += square > 0;
            n_nonzero += square > 0;
        }
        OWN(add_rows)(rows, scales, k - start, sums->size, sum);
        if (counts[0] >= 0 && (counts[1] += k - start) == FLUSH_COUNT) {
            OWN(flush)(sum, sums->width, sums->word_totals + counts[0] * sums->width);
            counts[1] = 0;
        }
    }
    return n_nonzero;
}

TARGET static int64_t OWN(add_words)(const cosines_t *sums) {
    int32_t *first = calloc(sums->n_words + 2 * sums->n, sizeof(int32_t)), *next = first + sums->n_words;
    REAL *buffers = malloc(MOST_ROWS * sums->size * sizeof(REAL));
    int64_t n_nonzero = -2;
    if (first && buffers) {
        const int64_t count = NAME(order_by_word)(sums->words, sums->n, first, next, next + sums->n);
        n_nonzero = OWN(add_ordered)(sums, next + sums->n, count, buffers);
    }
    free(first);
    free(buffers);
    return n_nonzero;
}

TARGET static int64_t OWN(add_cosines)(const cosines_t *sums) {
    const int64_t size = sums->size, n = sums->n;
    if (sums->width > size) return OWN(add_words)(sums);
    REAL *buffer = sums->buffers, *loose = buffer + size;
    int64_t n_nonzero = 0, n_loose = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t word = sums->words ? sums->words[i] : -1, sentence = sums->sentences ? sums->sentences[i] : -1;
        REAL *word_sum = word < 0 ? NULL : (REAL *)sums->word_sums + word * sums->width;
        if (sums->words && i + AHEAD < n && sums->words[i + AHEAD] >= 0)
            OWN(fetch_sum)(sums, sums->words[i + AHEAD]);
        const REAL *row = OWN(read_row)(sums, i, buffer);
        const REAL square = OWN(dot)(row, row, size);
        if (OWN(is_lost)(row, square, size)) return -1;
        const REAL scale = square > 0 ? 1 / sqrt(square) : 0;
        n_nonzero += square > 0;
        if (sentence >= 0) OWN(add_to_run)(sums, sentence, row);
        OWN(add_unit)(row, scale, size, sentence < 0 ? loose : (REAL *)sums->run_sums + size, word_sum);
        if (sentence < 0 && ++n_loose % FLUSH_COUNT == 0) OWN(flush)(loose, size, sums->total);
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
