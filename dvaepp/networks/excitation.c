/* Squeeze and excitation on pixel-major activations, (pixels, groups, rows, channels), with the sum around it:

       out = skip + f s,   s = sigmoid(W2 ELU(W1 mean(f) + b1) + b2)

   Rows are shared by threads; sums over rows are made per thread and added in the threads' order. */

#include "fast_exp.h"
#include <omp.h>
#include <stdlib.h>

typedef struct {
    const float *f, *skip, *dout;
    float *out, *df;
    float *mean, *hidden, *s; /* (groups, rows, channels or squeezed): made forward, read backward */
    const float *const *w1, *const *b1, *const *w2, *const *b2; /* by group: (squeezed, channels), ... as nn.Linear's */
    float *const *dw1, *const *db1, *const *dw2, *const *db2;
    int64_t pixels, groups, rows, channels, squeezed;
} job;

static int64_t cut(int64_t n, int member, int team) { return n * member / team; }

static void transpose(const float *a, int64_t rows, int64_t columns, float *out) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) out[c * rows + r] = a[r * columns + c];
}

/* y += a x */
static inline void add(float *restrict y, float a, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

static void forward_row(const job *j, int64_t g, int64_t row, const float *w1t, const float *w2t) {
    int64_t c = j->channels, q = j->squeezed, apart = j->groups * j->rows * c, at = g * j->rows + row;
    float *restrict mean = j->mean + at * c, *restrict hidden = j->hidden + at * q, *restrict s = j->s + at * c;
    const float *f = j->f + at * c, *skip = j->skip + at * c;
    float *out = j->out + at * c, share = 1.0f / j->pixels;
    memset(mean, 0, 4 * c);
    for (int64_t p = 0; p < j->pixels; p++) add(mean, share, f + p * apart, c);
    memcpy(hidden, j->b1[g], 4 * q);
    for (int64_t i = 0; i < c; i++) add(hidden, mean[i], w1t + i * q, q);
    for (int64_t i = 0; i < q; i++) hidden[i] = hidden[i] > 0 ? hidden[i] : fast_expm1(hidden[i]);
    memcpy(s, j->b2[g], 4 * c);
    for (int64_t i = 0; i < q; i++) add(s, hidden[i], w2t + i * c, c);
    for (int64_t i = 0; i < c; i++) s[i] = s[i] == s[i] ? 1.0f / (1.0f + fast_exp(-s[i])) : s[i];
    for (int64_t p = 0; p < j->pixels; p++)
        for (int64_t i = 0; i < c; i++) out[p * apart + i] = skip[p * apart + i] + f[p * apart + i] * s[i];
}

typedef struct {
    float *dw1, *db1, *dw2t, *db2; /* dw2t: (squeezed, channels) */
} sums;

static void backward_row(const job *j, int64_t g, int64_t row, sums t, float *restrict g2, float *restrict dmean,
                         float *restrict g1) {
    int64_t c = j->channels, q = j->squeezed, apart = j->groups * j->rows * c, at = g * j->rows + row;
    const float *mean = j->mean + at * c, *hidden = j->hidden + at * q, *s = j->s + at * c;
    const float *f = j->f + at * c, *dout = j->dout + at * c;
    float *df = j->df + at * c, share = 1.0f / j->pixels;
    memset(g2, 0, 4 * c);
    for (int64_t p = 0; p < j->pixels; p++)
        for (int64_t i = 0; i < c; i++) g2[i] += dout[p * apart + i] * f[p * apart + i];
    for (int64_t i = 0; i < c; i++) g2[i] *= s[i] * (1 - s[i]);
    memset(g1, 0, 4 * q);
    for (int64_t i = 0; i < c; i++) add(g1, g2[i], j->w2[g] + i * q, q);
    for (int64_t i = 0; i < q; i++) g1[i] *= hidden[i] > 0 ? 1 : hidden[i] + 1;
    memset(dmean, 0, 4 * c);
    for (int64_t i = 0; i < q; i++) {
        add(dmean, g1[i], j->w1[g] + i * c, c);
        add(t.dw1 + i * c, g1[i], mean, c);
        add(t.dw2t + i * c, hidden[i], g2, c);
    }
    add(t.db1, 1, g1, q);
    add(t.db2, 1, g2, c);
    for (int64_t i = 0; i < c; i++) dmean[i] *= share;
    for (int64_t p = 0; p < j->pixels; p++)
        for (int64_t i = 0; i < c; i++) df[p * apart + i] = dout[p * apart + i] * s[i] + dmean[i];
}

int dvaepp_excite(const job *j, int threads) {
    int64_t size = j->channels * j->squeezed;
    float *memory = malloc(4 * 2 * size * j->groups);
    if (!memory) return 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int member = omp_get_thread_num(), team = omp_get_num_threads();
        for (int64_t g = member; g < j->groups; g += team) {
            transpose(j->w1[g], j->squeezed, j->channels, memory + 2 * g * size);
            transpose(j->w2[g], j->channels, j->squeezed, memory + (2 * g + 1) * size);
        }
#pragma omp barrier
        int64_t all = j->groups * j->rows;
        for (int64_t r = cut(all, member, team); r < cut(all, member + 1, team); r++) {
            int64_t g = r / j->rows;
            forward_row(j, g, r % j->rows, memory + 2 * g * size, memory + (2 * g + 1) * size);
        }
    }
    free(memory);
    return 1;
}

int dvaepp_excite_backward(const job *j, int threads) {
    int64_t c = j->channels, q = j->squeezed, apart = 2 * c * q + c + q, own = apart * j->groups + 2 * c + q;
    float *memory = calloc(threads * own, 4);
    if (!memory) return 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int member = omp_get_thread_num(), team = omp_get_num_threads();
        int64_t all = j->groups * j->rows;
        float *mine = memory + member * own, *rest = mine + apart * j->groups;
        for (int64_t r = cut(all, member, team); r < cut(all, member + 1, team); r++) {
            int64_t g = r / j->rows;
            float *at = mine + g * apart;
            sums t = {at, at + 2 * c * q + c, at + c * q, at + 2 * c * q};
            backward_row(j, g, r % j->rows, t, rest, rest + c, rest + 2 * c);
        }
#pragma omp barrier
        for (int64_t g = member; g < j->groups; g += team) {
            float *total = memory + g * apart;
            for (int other = 1; other < team; other++) add(total, 1, memory + other * own + g * apart, apart);
            memcpy(j->dw1[g], total, 4 * c * q);
            transpose(total + c * q, q, c, j->dw2[g]);
            memcpy(j->db2[g], total + 2 * c * q, 4 * c);
            memcpy(j->db1[g], total + 2 * c * q + c, 4 * q);
        }
    }
    free(memory);
    return 1;
}
