/* Groups of normal units whose channels are means and log standard deviations, bounded as v = 5 tanh(a / 5).

   A sample and a KL are chains of some ten elementwise operations, each of which would read and write memory in torch.
   Here both come out of one pass, the KL with its derivatives: a caller scales them by what follows. Arrays are seen as
   (pixels, rows, channels) with steps of their own; channels lie together, first the means, then the log deviations. */

#include "fast_exp.h"

#define BOUND 5.0f

typedef struct {
    const float *q, *p, *noise, *dvalue;
    float *value, *kl, *dq, *dp; /* value, dq and dp are contiguous */
    int64_t pixels, rows, units;
    int64_t q_pixel, q_row, p_pixel, p_row, noise_pixel, noise_row, dvalue_pixel, dvalue_row;
} job;

/* v = 5 tanh(a / 5); dv/da = 1 - (v / 5)^2 */
static inline float bounded(float a) {
    float e = fast_expm1(-2.0f / BOUND * (a < 0 ? -a : a)), t = BOUND * e / (e + 2.0f);
    return a < 0 ? t : -t;
}

static inline float slope(float v) { return 1.0f - v * v * (1.0f / (BOUND * BOUND)); }

/* value = mean + sd noise */
int dvaepp_normal_sample(const job *j, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t pixel = 0; pixel < j->pixels; pixel++)
        for (int64_t r = 0; r < j->rows; r++) {
            const float *a = j->q + pixel * j->q_pixel + r * j->q_row, *b = a + j->units;
            const float *n = j->noise + pixel * j->noise_pixel + r * j->noise_row;
            float *restrict out = j->value + (pixel * j->rows + r) * j->units;
            for (int64_t i = 0; i < j->units; i++) out[i] = bounded(a[i]) + fast_exp(bounded(b[i])) * n[i];
        }
    return 1;
}

int dvaepp_normal_sample_backward(const job *j, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t pixel = 0; pixel < j->pixels; pixel++)
        for (int64_t r = 0; r < j->rows; r++) {
            const float *a = j->q + pixel * j->q_pixel + r * j->q_row, *b = a + j->units;
            const float *n = j->noise + pixel * j->noise_pixel + r * j->noise_row;
            const float *d = j->dvalue + pixel * j->dvalue_pixel + r * j->dvalue_row;
            float *restrict da = j->dq + (pixel * j->rows + r) * 2 * j->units, *restrict db = da + j->units;
            for (int64_t i = 0; i < j->units; i++) {
                float log_sd = bounded(b[i]);
                da[i] = d[i] * slope(bounded(a[i]));
                db[i] = d[i] * n[i] * fast_exp(log_sd) * slope(log_sd);
            }
        }
    return 1;
}

/* kl (rows) = sum log sd_p - log sd_q + ((sd_q^2 + (mean_q - mean_p)^2) / sd_p^2 - 1) / 2; dq and dp where given */
int dvaepp_normal_kl(const job *j, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t r = 0; r < j->rows; r++) {
        double total = 0;
        for (int64_t pixel = 0; pixel < j->pixels; pixel++) {
            const float *q = j->q + pixel * j->q_pixel + r * j->q_row, *p = j->p + pixel * j->p_pixel + r * j->p_row;
            float sums[16] = {0};
            int64_t units = j->units, at = (pixel * j->rows + r) * 2 * units;
            for (int64_t start = 0; start < units; start += 16) {
                int64_t n = units - start < 16 ? units - start : 16;
                float each[16], mean_q[16], mean_p[16], log_q[16], log_p[16], gap[16], ratio[16], inverse[16];
                for (int64_t i = 0; i < n; i++) {
                    mean_q[i] = bounded(q[start + i]);
                    mean_p[i] = bounded(p[start + i]);
                    log_q[i] = bounded(q[units + start + i]);
                    log_p[i] = bounded(p[units + start + i]);
                    inverse[i] = fast_exp(-2 * log_p[i]);
                    ratio[i] = fast_exp(2 * (log_q[i] - log_p[i]));
                    gap[i] = mean_q[i] - mean_p[i];
                    each[i] = log_p[i] - log_q[i] + 0.5f * (ratio[i] + gap[i] * gap[i] * inverse[i] - 1.0f);
                    sums[i] += each[i];
                }
                if (!j->dq) continue;
                float *dq = j->dq + at + start, *dp = j->dp + at + start;
                for (int64_t i = 0; i < n; i++) {
                    float pull = gap[i] * inverse[i];
                    dq[i] = pull * slope(mean_q[i]);
                    dp[i] = -pull * slope(mean_p[i]);
                    dq[units + i] = (ratio[i] - 1.0f) * slope(log_q[i]);
                    dp[units + i] = (1.0f - ratio[i] - gap[i] * pull) * slope(log_p[i]);
                }
            }
            for (int i = 0; i < 16; i++) total += sums[i];
        }
        j->kl[r] = (float)total;
    }
    return 1;
}
