/* A step of AdaMax over flat buffers in one pass, and a check that all gradients are finite, which comes before the step.
   adamax.py has the formulas and the same in torch. */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    float *theta, *m, *u;
    const float *const *g; /* the gradient of each tensor; a null pointer stands for zeros */
    const int64_t *first;  /* where in the buffers each tensor begins, and at last where the buffers end */
    int64_t *wrong; /* set if a gradient is not finite */
    int64_t tensors;
    float rate, beta1, beta2, epsilon, weight_decay;
} job;

static void update(const job *j, const float *restrict g, int64_t begin, int64_t end) {
    float *restrict theta = j->theta, *restrict m = j->m, *restrict u = j->u;
    float rate = j->rate, keep = 1 - j->beta1, fade = j->beta2, epsilon = j->epsilon, decay = j->weight_decay;
    for (int64_t i = begin; i < end; i++) {
        float slope = (g ? g[i - begin] : 0.0f) + decay * theta[i];
        float size = fabsf(slope) + epsilon, old = fade * u[i];
        m[i] += keep * (slope - m[i]);
        u[i] = old > size ? old : size;
        theta[i] += rate * m[i] / u[i];
    }
}

/* Whether all numbers are finite. The exponent of an infinite number, and of what is no number, has all bits set. */
static int all_finite(const float *g, int64_t count) {
    int32_t wrong = 0, exponent = 0x7f800000;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, g + i, 4);
        wrong |= (bits & exponent) == exponent;
    }
    return !wrong;
}

/* Each thread takes the next piece that no other has taken. Pieces fixed beforehand would let all threads wait for the
   slowest core, and cores that other programs use as well are not equally fast. */
#define PIECES 32
#define MIN_PARALLEL 65536 /* for fewer numbers, waking a second thread costs more than it saves */

/* Call `of(g, from, to)` for the parts of all gradients; g is null where there is none. */
#define OVER_PIECES(of)                                                                                                \
    int64_t all = j->first[j->tensors];                                                                                \
    _Pragma("omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1 && all >= MIN_PARALLEL)")         \
    for (int64_t piece = 0; piece < PIECES; piece++) {                                                                 \
        int64_t begin = all * piece / PIECES, end = all * (piece + 1) / PIECES;                                        \
        for (int64_t t = 0; t < j->tensors; t++) {                                                                     \
            int64_t first = j->first[t], from = first > begin ? first : begin;                                         \
            int64_t to = j->first[t + 1] < end ? j->first[t + 1] : end;                                                \
            const float *g = j->g[t] ? j->g[t] + (from - first) : 0;                                                   \
            if (from < to) of;                                                                                         \
        }                                                                                                              \
    }

int dvaepp_adamax(const job *j, int threads) {
    OVER_PIECES(update(j, g, from, to))
    return 1;
}

int dvaepp_finite(const job *j, int threads) {
    int wrong[PIECES] = {0};
    OVER_PIECES(wrong[piece] |= g && !all_finite(g, to - from))
    for (int piece = 0; piece < PIECES; piece++) *j->wrong |= wrong[piece];
    return 1;
}
