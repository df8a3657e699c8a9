/* Copy rows from the memory maps of many files straight into the order asked for. */

#include <string.h>

#include "kernels.h"

#define AHEAD 8

#ifdef __GNUC__
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address)
#endif

int64_t gather_rows(
    const uint64_t *bases, int64_t segment_rows, int64_t row_nbytes, const int64_t *rows, int64_t n_rows, char *out
) {
    for (int64_t i = 0; i < n_rows; i++) {
        if (i + AHEAD < n_rows) {
            uint64_t ahead = bases[rows[i + AHEAD] / segment_rows];
            if (ahead) PREFETCH((const char *)(uintptr_t)ahead + rows[i + AHEAD] % segment_rows * row_nbytes);
        }
        uint64_t base = bases[rows[i] / segment_rows];
        if (!base) return i;
        memcpy(out + i * row_nbytes, (const char *)(uintptr_t)base + rows[i] % segment_rows * row_nbytes, row_nbytes);
    }
    return n_rows;
}
