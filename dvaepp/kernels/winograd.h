/* 3x3 convolutions of stride 1 by minimal filtering, F(4x4, 3x3), with the ELU before and the bias after them.

       V = B e B',  M = V U,  y = A M A' + b,  U = G w G',  e = ELU(x)      (Lavin and Gray 2016)

   In torch, small convolutions of this kind spend more time between their products than in them. Here a block of rows
   passes through all stages while it is in a core's cache. Vectors run along channels, 16 at a time, and scratch arrays
   pad the channels with zeros to full vectors. A "row" of a product is a tile of 4x4 pixels of one example.

   If there is one group of weights, threads share its rows; if there are several groups, threads share the groups.
   Which thread computes a number never changes the number. Every thread transforms the kernels for itself, because
   reading what another core has just written is slower than computing it again; where that is much work, threads share
   the channels instead (winograd.c). Gradients of parameters are sums over rows; their order, and with it their
   rounding, depends on the number of threads and on nothing else. */

#include "fast_exp.h"
#include <omp.h>
#include <stdlib.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#define LANES 16
#define TILE 4
#define WINDOW 6
#define POINTS 36
#define STRIP (2 * LANES)   /* columns of a product at once */
#define COLUMNS (2 * STRIP)   /* columns of M that are computed at once */
#define BLOCK_BYTES (1 << 20) /* size of V or dV for a block of rows: about that of a core's own cache */
#define FEWEST 56             /* rows in a block, at least, so that a strip of U is used often once it is in the cache */
#define HUGE_PAGE (2 << 20)

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
    const float *x; /* x[pixel * x_pixel + row * x_row + group * x_group + channel]; null if e holds ELU(x) already */
    float *e, *dx;  /* ELU(x), which forward writes and backward reads, and the gradient of x; both have the e strides */
    const float *dy; /* the gradient of y; both have the y strides */
    float *y;
    const float *const *w; /* by group: w[output * w_output + input * 9 + tap] */
    const float *const *bias;
    float *const *dw; /* dw[output * dw_output + input * 9 + tap] */
    float *const *dbias;
    int64_t groups, rows, inputs, outputs, side; /* side: tiles along a side of the map */
    int64_t x_pixel, x_row, x_group, e_pixel, e_row, e_group, y_pixel, y_row, y_group, w_output, dw_output;
} job;

/* An array over points, channels and rows: at[p * point + channel / 16 * vector + row * row + channel % 16] */
typedef struct {
    float *at;
    int64_t point, vector, row;
} field;

typedef struct {
    int64_t inputs, outputs; /* whole vectors' worth */
    int64_t tiles;           /* of an example */
    int64_t block;           /* examples that pass the stages together */
    int64_t u, v, dm, m;     /* floats from point to point in U and dU, in a block's V and dM, and in its M or dV */
} size;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

static size sizes(const job *j, int backward) {
    size s = {.inputs = padded(j->inputs), .outputs = padded(j->outputs), .tiles = j->side * j->side};
    int64_t rows = most(FEWEST, BLOCK_BYTES / (4 * POINTS * (s.inputs + (backward ? s.outputs : 0))));
    int64_t limit = most(1, rows / s.tiles), blocks = (j->rows + limit - 1) / limit;
    s.block = most(1, (j->rows + blocks - 1) / most(1, blocks)); /* no block is left with a few rows only */
    /* The arrays of two points are one vector further apart than they need to be. Without that gap and with a power of
       two of channels, all 36 points would compete for the same lines of the cache. */
    int64_t block_rows = s.block * s.tiles;
    s.u = s.inputs * s.outputs + LANES;
    s.v = block_rows * s.inputs + LANES;
    s.dm = block_rows * s.outputs + LANES;
    s.m = block_rows * least(COLUMNS, backward ? s.inputs : s.outputs) + LANES;
    return s;
}

/* Read or write the first n numbers of a vector. A copy of so few bytes that a compiler does not know their number is a
   call of a function, which took a third of a step of nets with 8 channels; a mask is a part of the instruction. */
#ifdef __AVX512F__
static inline __mmask16 first_of(int64_t n) { return (__mmask16)((1u << n) - 1); }
#endif

static inline vec load(const float *p, int64_t n) {
    if (n >= LANES) return *(const vec *)p;
#ifdef __AVX512F__
    return (vec)_mm512_maskz_loadu_ps(first_of(n), p);
#else
    vec v = {0};
    memcpy(&v, p, 4 * n);
    return v;
#endif
}

static inline void store(float *p, vec v, int64_t n) {
    if (n >= LANES)
        *(vec *)p = v;
    else
#ifdef __AVX512F__
        _mm512_mask_storeu_ps(p, first_of(n), (__m512)v);
#else
        memcpy(p, &v, 4 * n);
#endif
}

/* to += from */
static inline void add(const float *restrict from, int64_t n, float *restrict to) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

static inline vec choose(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }

/* The six transforms of a line of points; gradients pass through the transposes B', A' and G'. */
#define LINE static inline __attribute__((always_inline)) void

LINE times_B(const vec *a, vec *v) {
    v[0] = 4 * a[0] - 5 * a[2] + a[4];
    vec even = a[4] - 4 * a[2], odd = a[3] - 4 * a[1];
    v[1] = even + odd;
    v[2] = even - odd;
    even = a[4] - a[2];
    odd = 2 * (a[3] - a[1]);
    v[3] = even + odd;
    v[4] = even - odd;
    v[5] = 4 * a[1] - 5 * a[3] + a[5];
}

LINE times_Bt(const vec *v, vec *a) {
    vec s12 = v[1] + v[2], d12 = v[1] - v[2], s34 = v[3] + v[4], d34 = v[3] - v[4];
    a[0] = 4 * v[0];
    a[1] = 4 * (v[5] - d12) - 2 * d34;
    a[2] = -5 * v[0] - 4 * s12 - s34;
    a[3] = d12 + 2 * d34 - 5 * v[5];
    a[4] = v[0] + s12 + s34;
    a[5] = v[5];
}

LINE times_A(const vec *m, vec *y) {
    vec s12 = m[1] + m[2], d12 = m[1] - m[2], s34 = m[3] + m[4], d34 = m[3] - m[4];
    y[0] = m[0] + s12 + s34;
    y[1] = d12 + 2 * d34;
    y[2] = s12 + 4 * s34;
    y[3] = d12 + 8 * d34 + m[5];
}

LINE times_At(const vec *y, vec *m) {
    vec even = y[0] + y[2], odd = y[1] + y[3];
    m[0] = y[0];
    m[1] = even + odd;
    m[2] = even - odd;
    even = y[0] + 4 * y[2];
    odd = 2 * y[1] + 8 * y[3];
    m[3] = even + odd;
    m[4] = even - odd;
    m[5] = y[3];
}

LINE times_G(const vec *w, vec *u) {
    vec even = (w[0] + w[2]) * (-1 / 6.0f), odd = w[1] * (1 / 6.0f);
    u[0] = w[0] * 0.25f;
    u[1] = even - odd;
    u[2] = even + odd;
    even = w[0] * (1 / 24.0f) + w[2] * (1 / 6.0f);
    odd = w[1] * (1 / 12.0f);
    u[3] = even + odd;
    u[4] = even - odd;
    u[5] = w[2];
}

LINE times_Gt(const vec *u, vec *w) {
    vec s12 = (u[1] + u[2]) * (1 / 6.0f), d12 = (u[1] - u[2]) * (1 / 6.0f), s34 = u[3] + u[4], d34 = u[3] - u[4];
    w[0] = u[0] * 0.25f - s12 + s34 * (1 / 24.0f);
    w[1] = d34 * (1 / 12.0f) - d12;
    w[2] = s34 * (1 / 6.0f) - s12 + u[5];
}

/* T x T' of a square of `from` x `from` vectors into `to` x `to`, by a line transform T. */
#define SQUARE(name, line, from, to)                                                                                   \
    static inline __attribute__((always_inline)) void name(const vec *x, vec *y) {                                     \
        vec half[(to) * (from)], in[from], out[to];                                                                    \
        _Pragma("GCC unroll 6") for (int c = 0; c < (from); c++) {                                                     \
            _Pragma("GCC unroll 6") for (int r = 0; r < (from); r++) in[r] = x[r * (from) + c];                        \
            line(in, out);                                                                                             \
            _Pragma("GCC unroll 6") for (int r = 0; r < (to); r++) half[r * (from) + c] = out[r];                      \
        }                                                                                                              \
        _Pragma("GCC unroll 6") for (int r = 0; r < (to); r++) line(half + r * (from), y + r * (to));                                          \
    }

SQUARE(square_Bt, times_Bt, WINDOW, WINDOW)
SQUARE(square_A, times_A, WINDOW, TILE)
SQUARE(square_At, times_At, TILE, WINDOW)
SQUARE(square_G, times_G, 3, WINDOW)
SQUARE(square_Gt, times_Gt, WINDOW, 3)

/* The factors of a matrix product, which sums over l < chunks * chunk. The element (i, l) of the first factor is a[i *
   a_i + (l % chunk) * a_l + (l / chunk) * a_chunk]; vector v of line l of the second begins at b + l * b_l + v * b_vec.
   */
typedef struct {
    const float *a, *b;
    int64_t chunks, chunk, a_i, a_l, a_chunk, b_l, b_vec;
    int more; /* add to what is there */
} factors;

/* c (m x n vectors) = a b, or c + a b */
LINE piece(int m, int n, const factors *f, const float *a, float *c, int64_t c_i) {
    vec sum[8][2];
    for (int i = 0; i < m; i++)
        for (int v = 0; v < n; v++) sum[i][v] = f->more ? *(vec *)(c + i * c_i + v * LANES) : (vec){0};
    int64_t a_i = f->a_i, a_l = f->a_l, b_l = f->b_l, b_vec = f->b_vec, chunk = f->chunk;
    const float *b = f->b;
    for (int64_t part = 0; part < f->chunks; part++, a += f->a_chunk - chunk * a_l)
        for (int64_t l = 0; l < chunk; l++, a += a_l, b += b_l) {
            vec b0 = *(const vec *)b, b1 = n > 1 ? *(const vec *)(b + b_vec) : b0;
#pragma GCC unroll 8
            for (int i = 0; i < m; i++) {
                float s = a[i * a_i];
                sum[i][0] += s * b0;
                if (n > 1) sum[i][1] += s * b1;
            }
        }
    for (int i = 0; i < m; i++)
        for (int v = 0; v < n; v++) *(vec *)(c + i * c_i + v * LANES) = sum[i][v];
}

/* The same for any m; n is 1 or 2. */
static void product(int64_t m, int n, const factors *f, float *c, int64_t c_i) {
    const float *a = f->a;
#define PIECES(rows)                                                                                                   \
    for (; m >= rows; m -= rows, a += rows * f->a_i, c += rows * c_i) {                                                \
        if (n == 2)                                                                                                    \
            piece(rows, 2, f, a, c, c_i);                                                                              \
        else                                                                                                           \
            piece(rows, 1, f, a, c, c_i);                                                                              \
    }
    PIECES(8) PIECES(4) PIECES(2) PIECES(1)
}

/* The 9 taps of LANES kernels, one vector for each tap. In memory the kernels lie `apart` floats from each other. Only
   the first n of them exist; zeros stand for the others. */
typedef float taps[9][LANES];
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t order __attribute__((vector_size(32)));
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (order){__VA_ARGS__})
#endif

LINE transpose(eight *a) {
    eight b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = SHUFFLE(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] = SHUFFLE(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    eight c[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        int from = i / 2 * 4 + i % 2, to = i / 2 * 4 + i % 2 * 2;
        c[to] = SHUFFLE(b[from], b[from + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        c[to + 1] = SHUFFLE(b[from], b[from + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[i] = SHUFFLE(c[i], c[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        a[i + 4] = SHUFFLE(c[i], c[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

static inline void read_taps(const float *kernels, int64_t apart, int64_t n, float (*to)[LANES]) {
    if (n < LANES) {
        memset(to, 0, sizeof(taps));
        for (int64_t l = 0; l < n; l++)
            for (int t = 0; t < 9; t++) to[t][l] = kernels[l * apart + t];
        return;
    }
    for (int half = 0; half < LANES; half += 8, kernels += 8 * apart) {
        eight square[8];
        for (int l = 0; l < 8; l++) square[l] = *(const eight *)(kernels + l * apart);
        transpose(square);
        for (int t = 0; t < 8; t++) *(eight *)(to[t] + half) = square[t];
        for (int l = 0; l < 8; l++) to[8][half + l] = kernels[l * apart + 8];
    }
}

static inline void write_taps(float (*from)[LANES], float *kernels, int64_t apart, int64_t n) {
    if (n < LANES) {
        for (int64_t l = 0; l < n; l++)
            for (int t = 0; t < 9; t++) kernels[l * apart + t] = from[t][l];
        return;
    }
    for (int half = 0; half < LANES; half += 8, kernels += 8 * apart) {
        eight square[8];
        for (int t = 0; t < 8; t++) square[t] = *(const eight *)(from[t] + half);
        transpose(square);
        for (int l = 0; l < 8; l++) {
            *(eight *)(kernels + l * apart) = square[l];
            kernels[l * apart + 8] = from[8][half + l];
        }
    }
}

/* Compute U for the kernels of group g, with inputs first .. last as its rows; if `transposed` is set, compute the
   transpose, with outputs as rows. It works on a few rows at a time, so that neither side of the transposition touches
   more memory pages than the processor keeps addresses of. */
static void into_U(const job *j, int64_t g, int transposed, int64_t first, int64_t last, field u) {
    int64_t rows = transposed ? j->outputs : j->inputs, columns = transposed ? j->inputs : j->outputs;
    int64_t row_step = transposed ? j->w_output : 9, step = transposed ? 9 : j->w_output;
    for (int64_t row = first; row < last; row += LANES)
        for (int64_t c = 0; c < columns; c += LANES) {
            int64_t count = least(LANES, last - row);
            taps found[LANES];
            for (int64_t r = 0; r < count; r++)
                read_taps(j->w[g] + (row + r) * row_step + c * step, step, row + r < rows ? columns - c : 0, found[r]);
            for (int64_t r = 0; r < count; r++) {
                vec made[POINTS];
                square_G((const vec *)found[r], made);
                float *to = u.at + c / LANES * u.vector + (row + r) * u.row;
                for (int p = 0; p < POINTS; p++) *(vec *)(to + p * u.point) = made[p];
            }
        }
}

/* Compute dw for inputs first .. last from dU, whose row 0 belongs to input `first`. Like `into_U` it works on a few
   rows at a time. */
static void out_of_dU(const job *j, int64_t first, int64_t last, field du, float *dw) {
    last = least(last, j->inputs);
    for (int64_t row = first; row < last; row += LANES)
        for (int64_t c = 0; c < j->outputs; c += LANES) {
            int64_t count = least(LANES, last - row);
            taps found[LANES];
            for (int64_t r = 0; r < count; r++) {
                vec point[POINTS];
                const float *from = du.at + c / LANES * du.vector + (row + r - first) * du.row;
                for (int p = 0; p < POINTS; p++) point[p] = *(const vec *)(from + p * du.point);
                square_Gt(point, (vec *)found[r]);
            }
            for (int64_t r = 0; r < count; r++)
                write_taps(found[r], dw + c * j->dw_output + (row + r) * 9, j->dw_output, j->outputs - c);
        }
}

/* Compute e = ELU(x) for examples first .. last. Where their channels follow each other in memory they are one line, so
   that few channels fill vectors, too. */
static void activate(const job *j, int64_t g, int64_t first, int64_t last) {
    int64_t pixels = j->side * j->side * TILE * TILE, joined = j->x_row == j->inputs && j->e_row == j->inputs;
    int64_t lines = joined ? 1 : last - first, length = joined ? (last - first) * j->inputs : j->inputs;
    for (int64_t p = 0; p < pixels; p++)
        for (int64_t l = 0; l < lines; l++) {
            const float *x = j->x + p * j->x_pixel + g * j->x_group + (first + l) * j->x_row;
            float *restrict e = j->e + p * j->e_pixel + g * j->e_group + (first + l) * j->e_row;
            for (int64_t c = 0; c < length; c++) e[c] = x[c] > 0 ? x[c] : fast_expm1(x[c]);
        }
}

/* Compute V for one tile and one vector of channels. `alone` says that the map consists of this tile only, so that
   everything around it is zero and need not be looked up. */
LINE window(int alone, const float *e, int64_t apart, int64_t map, int64_t top, int64_t left, int64_t n, float *v,
            int64_t v_apart) {
    vec half[WINDOW][WINDOW];
#pragma GCC unroll 6
    for (int b = 0; b < WINDOW; b++) {
        vec in[WINDOW], out[WINDOW];
#pragma GCC unroll 6
        for (int a = 0; a < WINDOW; a++) {
            int inside = alone ? a > 0 && a <= TILE && b > 0 && b <= TILE
                               : top + a >= 0 && top + a < map && left + b >= 0 && left + b < map;
            in[a] = (vec){0};
            if (inside) in[a] = load(e + (alone ? (a - 1) * TILE + b - 1 : (top + a) * map + left + b) * apart, n);
        }
        times_B(in, out);
#pragma GCC unroll 6
        for (int r = 0; r < WINDOW; r++) half[r][b] = out[r];
    }
#pragma GCC unroll 6
    for (int r = 0; r < WINDOW; r++) {
        vec out[WINDOW];
        times_B(half[r], out);
#pragma GCC unroll 6
        for (int k = 0; k < WINDOW; k++) *(vec *)(v + (r * WINDOW + k) * v_apart) = out[k];
    }
}

/* Compute V for examples first .. last; row 0 of v is the first tile of example `first`. */
static void into_V(const job *j, int64_t g, int64_t first, int64_t last, field v) {
    int64_t map = TILE * j->side, tiles = j->side * j->side;
    for (int64_t r = first; r < last; r++) {
        const float *e = j->e + g * j->e_group + r * j->e_row;
        for (int64_t tile = 0; tile < tiles; tile++, v.at += v.row) {
            int64_t top = tile / j->side * TILE - 1, left = tile % j->side * TILE - 1;
            for (int64_t c = 0; c < j->inputs; c += LANES) {
                int64_t n = j->inputs - c;
                float *to = v.at + c / LANES * v.vector;
                if (tiles > 1)
                    window(0, e + c, j->e_pixel, map, top, left, n, to, v.point);
                else if (n >= LANES)
                    window(1, e + c, j->e_pixel, map, top, left, LANES, to, v.point);
                else
                    window(1, e + c, j->e_pixel, map, top, left, n, to, v.point);
            }
        }
    }
}

/* Compute dx = (B' dV B) ELU'(x) for examples first .. last and inputs from .. to. Row 0 and vector 0 of dv belong to
   the first of these examples and inputs. */
static void out_of_dV(const job *j, int64_t g, int64_t first, int64_t last, int64_t from, int64_t to, field dv) {
    int64_t map = TILE * j->side, tiles = j->side * j->side;
    for (int64_t r = first; r < last; r++)
        for (int64_t tile = 0; tile < tiles; tile++, dv.at += dv.row) {
            int64_t top = tile / j->side * TILE - 1, left = tile % j->side * TILE - 1;
            for (int64_t c = from; c < to && c < j->inputs; c += LANES) {
                vec point[POINTS], out[POINTS];
                const float *source = dv.at + (c - from) / LANES * dv.vector;
                for (int p = 0; p < POINTS; p++) point[p] = *(const vec *)(source + p * dv.point);
                square_Bt(point, out);
                int64_t n = j->inputs - c, place = g * j->e_group + r * j->e_row + c;
                for (int64_t a = 0; a < WINDOW; a++)
                    for (int64_t b = 0; b < WINDOW; b++) {
                        int64_t row = top + a, column = left + b;
                        if (row < 0 || row >= map || column < 0 || column >= map) continue;
                        int64_t pixel = place + (row * map + column) * j->e_pixel;
                        vec e = load(j->e + pixel, n), value = out[a * WINDOW + b];
                        value *= choose(e < 0, e + 1, (vec){0} + 1);
                        if (tiles > 1) value += load(j->dx + pixel, n); /* windows overlap; dx starts at zero */
                        store(j->dx + pixel, value, n);
                    }
            }
        }
}

/* Compute y for examples first .. last and outputs from .. to. Row 0 and vector 0 of m belong to the first of these
   examples and outputs. */
static void out_of_M(const job *j, int64_t g, int64_t first, int64_t last, int64_t from, int64_t to, field m) {
    int64_t map = TILE * j->side, tiles = j->side * j->side;
    for (int64_t r = first; r < last; r++)
        for (int64_t tile = 0; tile < tiles; tile++, m.at += m.row)
            for (int64_t c = from; c < to && c < j->outputs; c += LANES) {
                vec point[POINTS], out[TILE * TILE];
                const float *source = m.at + (c - from) / LANES * m.vector;
                for (int p = 0; p < POINTS; p++) point[p] = *(const vec *)(source + p * m.point);
                square_A(point, out);
                int64_t n = j->outputs - c;
                vec b = {0};
                if (j->bias) b = load(j->bias[g] + c, n);
                float *y = j->y + g * j->y_group + r * j->y_row + c;
                y += (tile / j->side * map + tile % j->side) * TILE * j->y_pixel;
#pragma GCC unroll 4
                for (int row = 0; row < TILE; row++)
#pragma GCC unroll 4
                    for (int column = 0; column < TILE; column++)
                        store(y + (row * map + column) * j->y_pixel, out[row * TILE + column] + b, n);
            }
}

/* Compute dM for examples first .. last, where row 0 is the first tile. If `sum` is given, the sums of dy, which are
   the gradient of the bias, are added to it. */
static void into_dM(const job *j, int64_t g, int64_t first, int64_t last, field dm, float *sum) {
    int64_t map = TILE * j->side, tiles = j->side * j->side;
    for (int64_t r = first; r < last; r++)
        for (int64_t tile = 0; tile < tiles; tile++, dm.at += dm.row)
            for (int64_t c = 0; c < j->outputs; c += LANES) {
                vec in[TILE * TILE], made[POINTS], total = {0};
                int64_t n = j->outputs - c;
                const float *dy = j->dy + g * j->y_group + r * j->y_row + c;
                dy += (tile / j->side * map + tile % j->side) * TILE * j->y_pixel;
#pragma GCC unroll 4
                for (int row = 0; row < TILE; row++)
#pragma GCC unroll 4
                    for (int column = 0; column < TILE; column++) {
                        in[row * TILE + column] = load(dy + (row * map + column) * j->y_pixel, n);
                        total += in[row * TILE + column];
                    }
                if (sum) *(vec *)(sum + c) += total;
                square_At(in, made);
                float *to = dm.at + c / LANES * dm.vector;
                for (int p = 0; p < POINTS; p++) *(vec *)(to + p * dm.point) = made[p];
            }
}

/* Where the part of thread `member` begins if n things are shared out evenly and cut only at multiples of `unit`. */
static int64_t cut(int64_t n, int64_t unit, int member, int team) {
    int64_t units = (n + unit - 1) / unit;
    return least(n, units * member / team * unit);
}

/* The first row of a thread's share; the share ends where that of the next thread begins. Shares are cut at even rows,
   so that two threads split a batch of 100 into 50 and 50. */
static int64_t own_rows(int64_t rows, int member, int team) { return cut(rows, 2, member, team); }

static void wait_for(int team) {
    if (team > 1) {
#pragma omp barrier
    }
}

/* Multiply V by U, at every point, for the rows of a block and the columns at .. at + width of the result M. The same
   function multiplies dM by the transpose of U, which gives dV. */
static void products(int64_t rows, int64_t inner, int64_t at, int64_t width, field v, field u, field m) {
    for (int p = 0; p < POINTS; p++)
        for (int64_t c = 0; c < width; c += STRIP) {
            factors f = {.a = v.at + p * v.point, .a_i = v.row, .a_l = 1, .chunk = least(LANES, inner)};
            f.chunks = (inner + LANES - 1) / LANES; /* those beyond `inner` are zero */
            f.a_chunk = v.vector;
            f.b = u.at + p * u.point + (at + c) / LANES * u.vector;
            f.b_l = u.row;
            f.b_vec = u.vector;
            product(rows, width - c > LANES ? 2 : 1, &f, m.at + p * m.point + c, m.row);
        }
}

/* How many floats of scratch memory a thread needs for the rows of a group. */
static int64_t forward_room(const size *s) { return POINTS * (s->u + s->v + s->m); }
static int64_t backward_room(const size *s) { return POINTS * (2 * s->u + s->v + s->dm + s->m) + s->outputs; }

/* The forward pass: compute y for examples first .. last of group g. */
static void convolve_rows(const job *j, int64_t g, int64_t first, int64_t last, float *room) {
    size sized = sizes(j, 0), *s = &sized;
    field u = {room, s->u, s->inputs * LANES, LANES};
    field v = {u.at + POINTS * s->u, s->v, s->block * s->tiles * LANES, LANES};
    if (first < last) into_U(j, g, 0, 0, s->inputs, u);
    for (int64_t begin = first; begin < last; begin += s->block) {
        int64_t end = least(begin + s->block, last);
        if (j->x) activate(j, g, begin, end);
        into_V(j, g, begin, end, v);
        for (int64_t at = 0; at < s->outputs; at += COLUMNS) {
            int64_t width = least(COLUMNS, s->outputs - at);
            field m = {v.at + POINTS * s->v, s->m, LANES, width};
            products((end - begin) * s->tiles, j->inputs, at, width, v, u, m);
            out_of_M(j, g, begin, end, at, at + width, m);
        }
    }
}

/* Compute dU = V' dM from the rows of a block; if `more` is set, add it to the dU that is there already. */
static void add_dU(const size *s, int64_t inputs, int64_t rows, field v, field dm, int more, field du) {
    for (int p = 0; p < POINTS; p++)
        for (int64_t i = 0; i < inputs; i += LANES)
            for (int64_t c = 0; c < s->outputs; c += STRIP) {
                factors f = {.a = v.at + p * v.point + i / LANES * v.vector, .a_i = 1, .a_l = LANES, .chunk = rows};
                f.chunks = 1;
                f.b = dm.at + p * dm.point + c / LANES * dm.vector;
                f.b_l = LANES;
                f.b_vec = dm.vector;
                f.more = more;
                product(least(LANES, inputs - i), s->outputs - c > LANES ? 2 : 1, &f, du.at + p * du.point + i * du.row + c, du.row);
            }
}

/* The backward pass: compute dx for examples first .. last of group g, and their contribution to dw and dbias. */
static void convolve_rows_backward(const job *j, int64_t g, int64_t first, int64_t last, float *dw, float *dbias,
                                   float *room) {
    size sized = sizes(j, 1), *s = &sized;
    field du = {room, s->u, LANES, s->outputs}, ut = {du.at + POINTS * s->u, s->u, s->outputs * LANES, LANES};
    field v = {ut.at + POINTS * s->u, s->v, s->block * s->tiles * LANES, LANES};
    field dm = {v.at + POINTS * s->v, s->dm, s->block * s->tiles * LANES, LANES};
    float *product_room = dm.at + POINTS * s->dm, *sum = product_room + POINTS * s->m;
    memset(sum, 0, 4 * s->outputs);
    if (j->dx && first < last) into_U(j, g, 1, 0, s->outputs, ut);
    for (int64_t begin = first; begin < last; begin += s->block) {
        int64_t end = least(begin + s->block, last), rows = (end - begin) * s->tiles;
        into_dM(j, g, begin, end, dm, sum);
        if (dw) {
            into_V(j, g, begin, end, v);
            add_dU(s, j->inputs, rows, v, dm, begin > first, du);
        }
        for (int64_t at = 0; j->dx && at < s->inputs; at += COLUMNS) {
            int64_t width = least(COLUMNS, s->inputs - at);
            field dv = {product_room, s->m, LANES, width};
            products(rows, j->outputs, at, width, dm, ut, dv);
            out_of_dV(j, g, begin, end, at, at + width, dv);
        }
    }
    if (dw && first == last) memset(dw, 0, 36 * j->inputs * j->outputs);
    if (dw && first < last) out_of_dU(j, 0, s->inputs, du, dw);
    if (dbias) memcpy(dbias, sum, 4 * j->outputs);
}

/* The gradient of a parameter is a sum over rows, and each thread has summed over its own rows. The first thread of the
   team has written its sum to the final place, every other thread to a copy. Once all have finished, this function adds
   the copies to the final place; each thread does so for a part of the numbers. */
static void add_copies(float *place, const float *copies, int64_t apart, int64_t n, int member, int team) {
    int64_t from = cut(n, LANES, member, team), to = cut(n, LANES, member + 1, team);
    for (int other = 1; place && other < team; other++) add(copies + (other - 1) * apart + from, to - from, place + from);
}

/* Scratch memory, which each thread keeps for its next call. If it were allocated anew in every call, the system would
   have to map fresh pages each time, and that takes longer than a small convolution. */
static float *scratch(int64_t bytes) {
    static __thread float *kept;
    static __thread int64_t size;
    if (bytes > size) {
        free(kept);
        size = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        kept = aligned_alloc(HUGE_PAGE, size);
        if (!kept) size = 0;
#ifdef MADV_HUGEPAGE
        if (kept) madvise(kept, size, MADV_HUGEPAGE);
#endif
    }
    return kept;
}

/* The work that one thread, `member` of a team of `team`, does on group g of the job `what`. The memory `shared`
   belongs to the whole team, the memory `own` to this thread. */
typedef void work(const void *what, int64_t g, float *shared, float *own, int member, int team);

static int team_of(int64_t groups, int threads) { return groups < threads ? threads : 1; }

/* Run the work for all groups. If there are fewer groups than threads, all threads work together on one group after the
   other. Otherwise each thread takes a group for itself and then the next one that is free, because cores that other
   programs use as well are not equally fast. Returns 0 if memory is short. */
static int by_groups(int64_t groups, int64_t shared, int64_t own, int threads, work *of, const void *what) {
    int together = team_of(groups, threads) > 1;
    int64_t copies = together ? 1 : threads;
    float *memory = scratch(4 * (copies * shared + threads * own));
    if (!memory) return 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int member = omp_get_thread_num(), team = omp_get_num_threads();
        float *mine = memory + copies * shared + member * own, *ours = memory + (together ? 0 : member * shared);
        if (together)
            for (int64_t g = 0; g < groups; g++) of(what, g, ours, mine, member, team);
        else
#pragma omp for schedule(dynamic)
            for (int64_t g = 0; g < groups; g++) of(what, g, ours, mine, 0, 1);
    }
    return 1;
}
