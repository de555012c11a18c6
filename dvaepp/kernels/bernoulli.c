/* Log-probability of independent Bernoulli variables: out[r] = sum_i x_i l_i - log(1 + e^l_i), in one pass.

   log(1 + e^l) = max(l, 0) + log(1 + e^-|l|), and the factors 1 + e^-|l| lie in [1, 2]. The product of 96 of them does
   not overflow, so one logarithm is enough for 96 variables. The rounding of a factor, and of a product, changes the
   result by at most 6e-8 nat. Row r of the logits belongs to row r % x_rows of x, because the logits hold one sample of
   all images after the other. */

#include "fast_exp.h"
#include <math.h>

#define LANES 64
#define BLOCKS 12 /* a lane multiplies this many factors before a logarithm is taken */
#define JOINED 8  /* this many lanes are multiplied together before a logarithm is taken */
#define MIN_PARALLEL 32768 /* for fewer variables, waking a second thread costs more than it saves */

/* Add n <= LANES variables to the lanes. If slope is not null, it receives the derivative x - sigmoid(l). */
static inline __attribute__((always_inline)) void add(const float *restrict x, const float *restrict l,
                                                      float *restrict slope, float *restrict linear,
                                                      float *restrict product, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float e = fast_exp(l[i] < 0.0f ? l[i] : -l[i]), factor = 1.0f + e;
        linear[i] += x[i] * l[i] - (l[i] < 0.0f ? 0.0f : l[i]);
        product[i] *= factor;
        if (slope) slope[i] = x[i] - (l[i] < 0.0f ? e : 1.0f) / factor;
    }
}

static inline __attribute__((always_inline)) double row(const float *x, const float *l, float *slope, int64_t width) {
    double total = 0;
    for (int64_t start = 0; start < width; start += LANES * BLOCKS) {
        int64_t stop = start + LANES * BLOCKS < width ? start + LANES * BLOCKS : width, i = start;
        float linear[LANES], product[LANES];
        for (int j = 0; j < LANES; j++) linear[j] = 0.0f, product[j] = 1.0f;
        for (; i + LANES <= stop; i += LANES) add(x + i, l + i, slope ? slope + i : 0, linear, product, LANES);
        add(x + i, l + i, slope ? slope + i : 0, linear, product, stop - i);
        for (int width = LANES / 2; width >= LANES / JOINED; width /= 2)
            for (int j = 0; j < width; j++) linear[j] += linear[j + width], product[j] *= product[j + width];
        for (int j = 0; j < LANES / JOINED; j++) total += linear[j] - logf(product[j]);
    }
    return total;
}

void dvaepp_log_prob(const float *x, int64_t x_rows, const float *logits, float *out, float *slope, int64_t rows,
                     int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && rows * width >= MIN_PARALLEL)
    for (int64_t r = 0; r < rows; r++) {
        const float *y = x + r % x_rows * width, *l = logits + r * width;
        out[r] = slope ? row(y, l, slope + r * width, width) : row(y, l, 0, width);
    }
}
