/* Functions of the parameters of groups of normal units, each in one pass: the bound of the parameters, a reparameterised
   sample, and the KL of two groups. normal.py has the formulas and the same in torch.

   All arrays are (rows, channels, pixels), and the channels of a pixel lie next to each other: `line` finds them. In an
   array of parameters the first half are means, the second half log standard deviations. Threads share the rows. Some
   rows at a time pass through all pixels, because the rows of a pixel may lie next to each other, too. */

#include "fast_exp.h"
#include <math.h>

#define LANES 16
#define ROWS 64            /* the most rows that pass through all pixels together */
#define MIN_PARALLEL 32768 /* for fewer numbers, waking a second thread costs more than it saves */

typedef struct {
    float *q, *p, *noise, *value, *dq, *dp, *dvalue; /* q: parameters, or what they are made of by the bound */
    float *kl, *dkl;                                 /* by row */
    float bound;
    int64_t rows, pixels, channels; /* of `value`; where there are parameters, they have twice as many channels */
    int64_t q_row, p_row, noise_row, value_row, dq_row, dp_row, dvalue_row;
    int64_t q_pixel, p_pixel, noise_pixel, value_pixel, dq_pixel, dp_pixel, dvalue_pixel;
} job;

#define line(j, array, row, pixel) ((j)->array + (row) * (j)->array##_row + (pixel) * (j)->array##_pixel)

/* tanh without cancellation near zero */
static inline float tanh_of(float x) {
    float e = fast_expm1(-2.0f * fabsf(x));
    return copysignf(-e / (e + 2.0f), x);
}

static void bound_line(const job *j, int64_t r, int64_t p) {
    const float *restrict v = line(j, q, r, p);
    float *restrict y = line(j, value, r, p), bound = j->bound, part = 1.0f / bound;
    for (int64_t c = 0; c < j->channels; c++) y[c] = bound * tanh_of(v[c] * part);
}

static void bound_line_backward(const job *j, int64_t r, int64_t p) {
    const float *restrict y = line(j, value, r, p), *restrict dy = line(j, dvalue, r, p);
    float *restrict dv = line(j, dq, r, p), part = 1.0f / j->bound;
    for (int64_t c = 0; c < j->channels; c++) dv[c] = dy[c] * (1.0f - y[c] * part * (y[c] * part));
}

static void sample_line(const job *j, int64_t r, int64_t p) {
    int64_t n = j->channels;
    const float *restrict mean = line(j, q, r, p), *restrict noise = line(j, noise, r, p);
    float *restrict value = line(j, value, r, p);
    for (int64_t c = 0; c < n; c++) value[c] = mean[c] + fast_exp(mean[n + c]) * noise[c];
}

static inline __attribute__((always_inline)) void sample_slopes(const float *restrict dy, const float *restrict noise,
                                                                const float *restrict log_sd, float *restrict dmean,
                                                                float *restrict dlog_sd, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        dmean[i] = dy[i];
        dlog_sd[i] = dy[i] * noise[i] * fast_exp(log_sd[i]);
    }
}

static void sample_line_backward(const job *j, int64_t r, int64_t p) {
    int64_t n = j->channels;
    float *dq = line(j, dq, r, p);
    sample_slopes(line(j, dvalue, r, p), line(j, noise, r, p), line(j, q, r, p) + n, dq, dq + n, n);
}

/* Add the terms of n <= LANES units to the lanes. */
static inline __attribute__((always_inline)) void add(const float *restrict q, const float *restrict q_sd,
                                                      const float *restrict s, const float *restrict s_sd,
                                                      float *restrict sum, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float apart = q[i] - s[i];
        float gap = fast_exp(-2.0f * s_sd[i]) * (fast_exp(2.0f * q_sd[i]) + apart * apart);
        sum[i] += s_sd[i] - q_sd[i] + 0.5f * (gap - 1.0f);
    }
}

static void kl_rows(const job *j, int64_t first, int64_t last) {
    float sum[ROWS][LANES] = {{0}};
    int64_t n = j->channels;
    for (int64_t p = 0; p < j->pixels; p++)
        for (int64_t r = first; r < last; r++) {
            const float *q = line(j, q, r, p), *s = line(j, p, r, p);
            int64_t c = 0;
            for (; c + LANES <= n; c += LANES) add(q + c, q + n + c, s + c, s + n + c, sum[r - first], LANES);
            add(q + c, q + n + c, s + c, s + n + c, sum[r - first], n - c);
        }
    for (int64_t r = first; r < last; r++) {
        float total = 0;
        for (int i = 0; i < LANES; i++) total += sum[r - first][i];
        j->kl[r] = total;
    }
}

static inline __attribute__((always_inline)) void kl_slopes(const float *restrict q, const float *restrict q_sd,
                                                            const float *restrict s, const float *restrict s_sd,
                                                            float g, float *restrict dq, float *restrict dq_sd,
                                                            float *restrict ds, float *restrict ds_sd, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float weight = fast_exp(-2.0f * s_sd[i]), apart = q[i] - s[i];
        float spread = weight * fast_exp(2.0f * q_sd[i]), slope = weight * apart;
        dq[i] = g * slope;
        dq_sd[i] = g * (spread - 1.0f);
        ds[i] = -g * slope;
        ds_sd[i] = g * (1.0f - spread - slope * apart);
    }
}

static void kl_line_backward(const job *j, int64_t r, int64_t p) {
    int64_t n = j->channels;
    const float *q = line(j, q, r, p), *s = line(j, p, r, p);
    float *dq = line(j, dq, r, p), *ds = line(j, dp, r, p);
    kl_slopes(q, q + n, s, s + n, j->dkl[r], dq, dq + n, ds, ds + n, n);
}

#define OVER_ROWS(name, work)                                                                                          \
    int name(const job *j, int threads) {                                                                              \
        int64_t numbers = j->rows * j->pixels * j->channels, share = (j->rows + threads - 1) / threads;                \
        int64_t step = share < 1 ? 1 : share < ROWS ? share : ROWS;                                                    \
        _Pragma("omp parallel for num_threads(threads) schedule(static) if (threads > 1 && numbers >= MIN_PARALLEL)")  \
        for (int64_t first = 0; first < j->rows; first += step) {                                                      \
            int64_t last = first + step < j->rows ? first + step : j->rows;                                            \
            work;                                                                                                      \
        }                                                                                                              \
        return 1;                                                                                                      \
    }

#define OVER_LINES(name, of)                                                                                           \
    OVER_ROWS(name, for (int64_t p = 0; p < j->pixels; p++) for (int64_t r = first; r < last; r++) of(j, r, p))

OVER_LINES(dvaepp_bound, bound_line)
OVER_LINES(dvaepp_bound_backward, bound_line_backward)
OVER_LINES(dvaepp_sample, sample_line)
OVER_LINES(dvaepp_sample_backward, sample_line_backward)
OVER_LINES(dvaepp_kl_backward, kl_line_backward)
OVER_ROWS(dvaepp_kl, kl_rows(j, first, last))
