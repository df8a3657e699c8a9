/* The products of rows with a few queries, as the rows are read. */

/* The squared length of a row of float16 bits, and its product with a query. */
TARGET static inline float NAME(dot)(const uint16_t *row, const float *query, int64_t size, float *square) {
    floats product = {0}, own = {0}, product_2 = {0}, own_2 = {0};
    int64_t j = 0;
    for (; j + 2 * WIDTH <= size; j += 2 * WIDTH) {
        floats one = NAME(load_halves)(row + j), two = NAME(load_halves)(row + j + WIDTH);
        product += one * NAME(load_floats)(query + j);
        product_2 += two * NAME(load_floats)(query + j + WIDTH);
        own += one * one;
        own_2 += two * two;
    }
    float total = NAME(sum)(product + product_2);
    *square = NAME(sum)(own + own_2);
    for (; j < size; j++) {
        float value = float_of_half(row[j]);
        total += value * query[j];
        *square += value * value;
    }
    return total;
}

TARGET static void NAME(dot_rows)(
    const uint16_t *rows, int64_t n_rows, int64_t size, const float *query, float *products, float *squares
) {
    for (int64_t i = 0; i < n_rows; i++) products[i] = NAME(dot)(rows + i * size, query, size, squares + i);
}
