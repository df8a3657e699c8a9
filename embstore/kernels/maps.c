#define SMALLEST 1.17549435e-38f  /* normal number; what is below counts as 0 */
#define BODY "maps_body.h"
#include "targets.h"

#include <stdlib.h>

int read_maps(const maps_t *maps) {
    float *buffer = malloc(4 * (maps->width + 16) * sizeof(float));
    if (!buffer) return 1;
    for (int64_t sentence = 0; sentence < maps->n_sentences; sentence++)
        for (int64_t head = 0; head < maps->n_heads; head++) CHOOSE(read_map)(maps, sentence, head, buffer);
    free(buffer);
    return 0;
}

void add_mixed_entropies(const float *rows, int64_t n_rows, int64_t size, int64_t part, double *sums) {
    for (int64_t start = 0; start < size; start += part) {
        const int64_t n = start + part < size ? part : size - start;
        for (int64_t i = 0; i < n_rows; i++)
            for (int64_t j = i; j < n_rows; j++)
                sums[i * n_rows + j] +=
                    CHOOSE(sum_x_log_x)(rows + i * size + start, i == j ? NULL : rows + j * size + start, n);
    }
}

int read_words(const words_t *words) {
    const int64_t width = words->width, most = words->n_words, n_heads = words->n_heads;
    float *mean = malloc(width * sizeof(float));
    if (!mean) return 1;
    for (int64_t sentence = 0; sentence < words->n_sentences; sentence++) {
        const int64_t n = words->counts[sentence], *bounds = words->bounds + sentence * most * 2;
        for (int64_t head = 0; head < n_heads; head++) {
            const float *map = words->values + (sentence * n_heads + head) * width * width;
            for (int64_t word = 0; word < n; word++) {
                const int64_t start = bounds[2 * word], stop = bounds[2 * word + 1];
                const int64_t place = (sentence * most + word) * n_heads + head;
                const float *row = map + start * width;
                float *out = words->out + place * most;
                if (stop - start > 1) {
                    memcpy(mean, row, width * sizeof(float));
                    for (int64_t query = start + 1; query < stop; query++)
                        for (int64_t key = 0; key < width; key++) mean[key] += map[query * width + key];
                    for (int64_t key = 0; key < width; key++) mean[key] /= (float)(stop - start);
                    row = mean;
                }
                for (int64_t other = 0; other < n; other++) {
                    float sum = 0;
                    for (int64_t key = bounds[2 * other]; key < bounds[2 * other + 1]; key++) sum += row[key];
                    out[other] = sum;
                }
            }
        }
    }
    free(mean);
    return 0;
}

void find_most_attended(
    const float *words, int64_t n_sentences, int64_t n_words, int64_t n_heads, const int64_t *counts, int64_t *best
) {
    for (int64_t sentence = 0; sentence < n_sentences; sentence++)
        for (int64_t word = 0; word < counts[sentence]; word++)
            for (int64_t head = 0; head < n_heads; head++) {
                const int64_t place = (sentence * n_words + word) * n_heads + head;
                const float *row = words + place * n_words;
                float largest = 0;
                best[place] = -1;
                for (int64_t other = 0; other < counts[sentence]; other++)
                    if (row[other] > largest && other != word) {
                        largest = row[other];
                        best[place] = other;
                    }
            }
}
