/* Copy rows from the memory maps of many files straight into the order asked for. */

#include <time.h>

#define BODY "gather_body.h"
#include "targets.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#define AHEAD 8  /* rows, of whose first lines the cache is told before they are copied */
#define LINES 4
#define SAMPLE_ROWS 16
#define PREFETCH(address) __builtin_prefetch(address)

/* Division by a number that usually is a power of two. */
typedef struct {
    int64_t by;
    int shift;  /* -1 where it is not */
} divisor;

static divisor divisor_of(int64_t by) {
    divisor found = {by, 0};
    while (((int64_t)1 << found.shift) < by) found.shift++;
    if (((int64_t)1 << found.shift) != by) found.shift = -1;
    return found;
}

static inline int64_t quotient(int64_t value, divisor d) {
    return d.shift >= 0 ? value >> d.shift : value / d.by;
}

static int64_t nanoseconds(void) {
    struct timespec now;
    if (!timespec_get(&now, TIME_UTC)) return 0;
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline const char *address_of(
    const uint64_t *bases, divisor segment_rows, int64_t row_nbytes, int64_t row
) {
    int64_t segment = quotient(row, segment_rows);
    uint64_t base = bases[segment];
    return base ? (const char *)(uintptr_t)base + (row - segment * segment_rows.by) * row_nbytes : 0;
}

int64_t gather_rows(
    const uint64_t *bases, int64_t segment_rows, int64_t row_nbytes, const int64_t *rows, int64_t n_rows, char *out,
    int widened, int64_t most_nanoseconds
) {
    divisor d = divisor_of(segment_rows);
    const char *addresses[AHEAD];
    int64_t began = most_nanoseconds ? nanoseconds() : 0;
    for (int64_t i = -AHEAD; i < n_rows; i++) {
        const char *from = i < 0 ? 0 : addresses[i % AHEAD];
        if (i == SAMPLE_ROWS && most_nanoseconds && nanoseconds() - began > SAMPLE_ROWS * most_nanoseconds) return i;
        if (i + AHEAD < n_rows) {
            const char *ahead = address_of(bases, d, row_nbytes, rows[i + AHEAD]);
            for (int line = 0; ahead && line < LINES; line++) PREFETCH(ahead + 64 * line);
            addresses[(i + AHEAD) % AHEAD] = ahead;
        }
        if (i < 0) continue;
        if (!from) return i;
        if (!widened) memcpy(out + i * row_nbytes, from, row_nbytes);
        else CHOOSE(widen)((const uint16_t *)from, (float *)(out + 2 * i * row_nbytes), row_nbytes / 2);
    }
    return n_rows;
}

#ifdef MADV_WILLNEED
enum { REQUEST_NBYTES = 1 << 19 };  /* Linux does not read more for one call than for one request */
#endif
#ifdef __linux__
enum { LOOK_NBYTES = 1 << 24 };     /* a call of mincore takes as long for so many as for a page */
#endif

int is_resident(uint64_t start, int64_t nbytes) {
#ifdef __linux__
    unsigned char flags[LOOK_NBYTES / 4096];
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), stop = start + (uint64_t)nbytes;
    for (uint64_t at = start / page * page; at < stop; at += LOOK_NBYTES) {
        uint64_t part = stop - at < LOOK_NBYTES ? stop - at : LOOK_NBYTES;
        if (mincore((void *)(uintptr_t)at, part, flags)) return 0;
        for (uint64_t i = 0; i < (part + page - 1) / page; i++)
            if (!(flags[i] & 1)) return 0;
    }
#else
    (void)start, (void)nbytes;
#endif
    return 1;
}

void will_need(const uint64_t *starts, int64_t n, int64_t nbytes) {
#ifdef MADV_WILLNEED
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), near = 4 * page;
    for (int64_t i = 0, next; i < n; i = next) {
        uint64_t start = starts[i] / page * page, stop = starts[i] + nbytes;
        for (next = i + 1; next < n && starts[next] <= stop + near; next++) stop = starts[next] + nbytes;
        for (uint64_t at = start; at < stop; at += REQUEST_NBYTES) {
            uint64_t part = stop - at < REQUEST_NBYTES ? stop - at : REQUEST_NBYTES;
            madvise((void *)(uintptr_t)at, part, MADV_WILLNEED);
        }
    }
#else
    (void)starts, (void)n, (void)nbytes;
#endif
}
