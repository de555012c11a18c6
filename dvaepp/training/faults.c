/* Whether no number of some arrays is infinite or NaN: the exponent of such a number has all bits set. */

#include <stdint.h>
#include <string.h>

int dvaepp_all_finite(const float *const *arrays, const int64_t *sizes, int64_t count, int threads) {
    int64_t bad = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 8) reduction(+ : bad) if (threads > 1)
    for (int64_t a = 0; a < count; a++) {
        uint32_t found = 0;
        for (int64_t i = 0; i < sizes[a]; i++) {
            uint32_t bits;
            memcpy(&bits, arrays[a] + i, 4);
            found |= (bits & 0x7F800000u) == 0x7F800000u;
        }
        bad += found;
    }
    return bad == 0;
}
