/* Rows of float16 as float32: see targets.h for what is defined. */

TARGET static void NAME(widen)(const uint16_t *from, float *to, int64_t size) {
    int64_t i = 0;
    for (; i + WIDTH <= size; i += WIDTH) NAME(store_floats)(to + i, NAME(load_halves)(from + i));
    for (; i < size; i++) to[i] = float_of_half(from[i]);
}
