/* A chain of residual blocks on pixel-major activations, (pixels, groups, rows, channels), forward and backward; or,
   of one group and one block, on (rows, pixels, channels).

   A thread takes its rows through all layers, or its groups where there are as many as threads; threads meet where one
   layer's weights have been transformed by all, and where gradients of weights are summed over rows. grouped.py says
   which layers there are and where each finds its arrays. */

#include "winograd.h"
#include "excitation.h"

enum { CONV, PROJECT, KEEP, EXCITE };

typedef struct {
    int64_t kind, inputs, outputs, squeezed;
    int64_t parameters;            /* how many parameters come before its own */
    int64_t x, skip, y, kept;      /* places: see `at` */
    int64_t dy, dx;
} layer;

typedef struct {
    const layer *layers;
    float *const *kept; /* what backward needs of forward, in several pieces */
    float *const *ends; /* arrays of the caller's */
    const float *const *parameters; /* by parameter, then by group, as nn modules have them */
    float *const *slopes;
    int64_t count, pixels, groups, rows;
    int64_t by_rows; /* (rows, pixels, channels) */
} chain;

/* From row to row and from pixel to pixel, in channels. */
static int64_t row_step(const chain *c) { return c->by_rows ? c->pixels : 1; }
static int64_t pixel_step(const chain *c) { return c->by_rows ? 1 : c->groups * c->rows; }

/* A place is -1 - i for the i-th of `ends`, or in `kept` the piece's number in the upper bits and the float's below. */
#define PIECE_BITS 40

static float *at(const chain *c, int64_t place) {
    if (place < 0) return c->ends[-1 - place];
    return c->kept[place >> PIECE_BITS] + (place & (((int64_t)1 << PIECE_BITS) - 1));
}

static const float *const *parameter(const chain *c, const layer *l, int i) {
    return c->parameters + (l->parameters + i) * c->groups;
}

static float *slope(const chain *c, const layer *l, int i, int64_t g) {
    return c->slopes[(l->parameters + i) * c->groups + g];
}

static job convolution(const chain *c, const layer *l) {
    job j = {.x = at(c, l->x), .e = at(c, l->kept), .y = at(c, l->y), .w = parameter(c, l, 0), .bias = parameter(c, l, 1)};
    if (c->slopes) {
        j.dy = at(c, l->dy);
        j.dx = at(c, l->dx);
        j.dw = c->slopes + l->parameters * c->groups;
        j.dbias = j.dw + c->groups;
    }
    j.groups = c->groups;
    j.rows = c->rows;
    j.inputs = l->inputs;
    j.outputs = l->outputs;
    while (j.side * j.side * TILE * TILE < c->pixels) j.side++;
    j.x_row = j.e_row = row_step(c) * l->inputs;
    j.x_group = j.e_group = c->rows * l->inputs;
    j.x_pixel = j.e_pixel = pixel_step(c) * l->inputs;
    j.y_row = row_step(c) * l->outputs;
    j.y_group = c->rows * l->outputs;
    j.y_pixel = pixel_step(c) * l->outputs;
    j.w_output = 9 * l->inputs;
    return j;
}

static excitation excitation_of(const chain *c, const layer *l) {
    return (excitation){c->pixels, pixel_step(c) * l->outputs, l->outputs, l->squeezed};
}

/* lines (m, columns) = a (m, inner), whose lines are `apart`, times b (inner, columns); whole vectors of columns */
static void lines_times(int64_t m, int64_t inner, const float *a, int64_t apart, const float *b, int64_t columns,
                        float *lines) {
    factors f = {.a = a, .a_i = apart, .a_l = 1, .chunk = inner, .chunks = 1, .b_l = columns, .b_vec = LANES};
    for (int64_t i = 0; i < columns; i += STRIP) {
        f.b = b + i;
        product(m, columns - i > LANES ? 2 : 1, &f, lines + i, columns);
    }
}

/* skip = W x + b */
static void project(const chain *c, const layer *l, int64_t g, int64_t first, int64_t last, float *own) {
    int64_t outputs = padded(l->outputs), apart = c->groups * c->rows;
    float *wt = own, *lines = wt + l->inputs * outputs;
    const float *bias = parameter(c, l, 1)[g];
    copy_padded(parameter(c, l, 0)[g], l->outputs, l->inputs, 1, wt);
    for (int64_t p = 0; p < c->pixels; p++) {
        int64_t row = p * apart + g * c->rows + first;
        lines_times(last - first, l->inputs, at(c, l->x) + row * l->inputs, l->inputs, wt, outputs, lines);
        float *y = at(c, l->y) + row * l->outputs;
        for (int64_t r = 0; r < last - first; r++, y += l->outputs)
            for (int64_t o = 0; o < l->outputs; o += LANES) {
                int64_t n = l->outputs - o;
                store(y + o, *(vec *)(lines + r * outputs + o) + load(bias + o, n), n);
            }
    }
}

/* dx += W' dskip, dW, db; shared: both factors of dW, all rows together */
static void project_backward(const chain *c, const layer *l, int64_t g, int64_t first, int64_t last, float *shared,
                             float *own, int member, int team) {
    int64_t inputs = padded(l->inputs), outputs = padded(l->outputs), apart = c->groups * c->rows, all = c->pixels * c->rows;
    float *d = shared, *x = d + all * outputs, *w = own, *lines = w + l->outputs * inputs;
    copy_padded(parameter(c, l, 0)[g], l->outputs, l->inputs, 0, w);
    for (int64_t p = 0; p < c->pixels; p++) {
        int64_t row = p * apart + g * c->rows + first, to = p * c->rows + first;
        copy_padded(at(c, l->dy) + row * l->outputs, last - first, l->outputs, 0, d + to * outputs);
        copy_padded(at(c, l->x) + row * l->inputs, last - first, l->inputs, 0, x + to * inputs);
        lines_times(last - first, l->outputs, d + to * outputs, outputs, w, inputs, lines);
        float *dx = at(c, l->dx) + row * l->inputs;
        for (int64_t r = 0; r < last - first; r++, dx += l->inputs)
            for (int64_t i = 0; i < l->inputs; i += LANES) {
                int64_t n = l->inputs - i;
                store(dx + i, load(dx + i, n) + *(vec *)(lines + r * inputs + i), n);
            }
    }
    wait_for(team);
    int64_t begin = cut(l->outputs, LANES, member, team), end = cut(l->outputs, LANES, member + 1, team);
    float *dw = slope(c, l, 0, g), *db = slope(c, l, 1, g), *made = own;
    factors f = {.a = d + begin, .a_i = 1, .a_l = outputs, .chunk = all, .chunks = 1, .b_l = inputs, .b_vec = LANES};
    for (int64_t i = 0; i < inputs; i += STRIP) {
        f.b = x + i;
        product(end - begin, inputs - i > LANES ? 2 : 1, &f, made + i, inputs);
    }
    for (int64_t o = begin; o < end; o++) memcpy(dw + o * l->inputs, made + (o - begin) * inputs, 4 * l->inputs);
    for (int64_t o = begin; o < end; o += LANES) {
        vec sum = {0};
        for (int64_t r = 0; r < all; r++) sum += *(vec *)(d + r * outputs + o);
        store(db + o, sum, end - o);
    }
    wait_for(team);
}

static void excite(const chain *c, const layer *l, int64_t g, int64_t first, int64_t last, float *own) {
    excitation x = excitation_of(c, l);
    excitation_weights w = {.w1t = own, .w2t = own + l->outputs * padded(l->squeezed)};
    copy_padded(parameter(c, l, 0)[g], l->squeezed, l->outputs, 1, w.w1t);
    copy_padded(parameter(c, l, 2)[g], l->outputs, l->squeezed, 1, w.w2t);
    const float *b1 = parameter(c, l, 1)[g], *b2 = parameter(c, l, 3)[g], *f = at(c, l->x), *skip = at(c, l->skip);
    float *y = at(c, l->y), *kept = at(c, l->kept);
    for (int64_t row = g * c->rows + first; row < g * c->rows + last; row++) {
        int64_t place = row * row_step(c) * l->outputs;
        excite_row(&x, &w, b1, b2, f + place, skip + place, y + place, kept + row * excitation_kept(&x));
    }
}

/* shared: the sums of every thread */
static void excite_backward(const chain *c, const layer *l, int64_t g, int64_t first, int64_t last, float *shared,
                            float *own, int member, int team) {
    excitation x = excitation_of(c, l);
    int64_t wide = padded(l->outputs), sums = excitation_sums(&x);
    excitation_weights w = {.w1 = own, .w2 = own + l->squeezed * wide, .dw1 = shared + member * sums};
    w.dw2t = w.dw1 + l->squeezed * wide;
    w.db1 = w.dw2t + l->squeezed * wide;
    w.db2 = w.db1 + padded(l->squeezed);
    float *room = own + excitation_weights_size(&x);
    copy_padded(parameter(c, l, 0)[g], l->squeezed, l->outputs, 0, w.w1);
    copy_padded(parameter(c, l, 2)[g], l->outputs, l->squeezed, 0, w.w2);
    memset(w.dw1, 0, 4 * sums);
    const float *f = at(c, l->x), *kept = at(c, l->kept), *dout = at(c, l->dy);
    float *df = at(c, l->dx);
    for (int64_t row = g * c->rows + first; row < g * c->rows + last; row++) {
        int64_t place = row * row_step(c) * l->outputs;
        excite_row_backward(&x, &w, f + place, kept + row * excitation_kept(&x), dout + place, df + place, room);
    }
    wait_for(team);
    if (member == 0) {
        for (int other = 1; other < team; other++) add(shared + other * sums, sums, shared);
        float *dw1 = slope(c, l, 0, g), *dw2 = slope(c, l, 2, g);
        for (int64_t k = 0; k < l->squeezed; k++)
            for (int64_t i = 0; i < l->outputs; i++) {
                dw1[k * l->outputs + i] = w.dw1[k * wide + i];
                dw2[i * l->squeezed + k] = w.dw2t[k * wide + i];
            }
        memcpy(slope(c, l, 1, g), w.db1, 4 * l->squeezed);
        memcpy(slope(c, l, 3, g), w.db2, 4 * l->outputs);
    }
    wait_for(team);
}

/* A thread's rows of a group, at all pixels. */
static void clear_rows(const chain *c, int64_t g, int64_t first, int64_t last, int64_t channels, float *to) {
    if (c->by_rows) {
        memset(to + first * c->pixels * channels, 0, 4 * (last - first) * c->pixels * channels);
        return;
    }
    for (int64_t p = 0; p < c->pixels; p++)
        memset(to + ((p * c->groups + g) * c->rows + first) * channels, 0, 4 * (last - first) * channels);
}

static void add_rows(const chain *c, int64_t g, int64_t first, int64_t last, int64_t channels, const float *a, float *to) {
    for (int64_t p = 0; p < c->pixels; p++) {
        int64_t start = ((p * c->groups + g) * c->rows + first) * channels;
        add(a + start, (last - first) * channels, to + start);
    }
}

/* One group by a team of threads, which all call it. */
static void forward_chain(const void *what, int64_t g, float *shared, float *own, int member, int team) {
    const chain *c = what;
    int64_t first = own_rows(c->rows, member, team), last = own_rows(c->rows, member + 1, team);
    for (const layer *l = c->layers; l < c->layers + c->count; l++) {
        if (l->kind == CONV) {
            job j = convolution(c, l);
            forward_group(&j, g, shared, own, member, team);
        } else if (l->kind == PROJECT)
            project(c, l, g, first, last, own);
        else if (l->kind == EXCITE)
            excite(c, l, g, first, last, own);
    }
}

static void backward_chain(const void *what, int64_t g, float *shared, float *own, int member, int team) {
    const chain *c = what;
    int64_t first = own_rows(c->rows, member, team), last = own_rows(c->rows, member + 1, team);
    for (const layer *l = c->layers + c->count - 1; l >= c->layers; l--) {
        if (l->kind == CONV) {
            job j = convolution(c, l);
            if (j.side > 1) clear_rows(c, g, first, last, l->inputs, j.dx); /* what windows give is added up */
            backward_group(&j, g, shared, own, member, team);
        } else if (l->kind == PROJECT)
            project_backward(c, l, g, first, last, shared, own, member, team);
        else if (l->kind == KEEP)
            add_rows(c, g, first, last, l->inputs, at(c, l->dy), at(c, l->dx));
        else
            excite_backward(c, l, g, first, last, shared, own, member, team);
    }
}

/* Floats that layers need at most: `shared` by a team, `own` by a thread. */
static void needs(const chain *c, int backward, int team, int64_t *shared, int64_t *own) {
    *shared = *own = 0;
    for (const layer *l = c->layers; l < c->layers + c->count; l++) {
        int64_t inputs = padded(l->inputs), outputs = padded(l->outputs), together = 0, alone = 0;
        if (l->kind == CONV) {
            job j = convolution(c, l);
            size s = sizes(&j, backward);
            together = backward ? backward_shared(&s, team) : forward_shared(&s);
            alone = backward ? backward_own(&s) : forward_own(&s);
        } else if (l->kind == PROJECT) {
            together = backward ? c->pixels * c->rows * (inputs + outputs) : 0;
            alone = (inputs + c->rows) * outputs + (outputs + c->rows) * inputs;
        } else if (l->kind == EXCITE) {
            excitation x = excitation_of(c, l);
            together = backward ? excitation_sums(&x) * team : 0;
            alone = excitation_weights_size(&x) + excitation_kept(&x);
        }
        *shared = most(*shared, together);
        *own = most(*own, alone);
    }
}

int dvaepp_chain(const chain *c, int threads) {
    int64_t shared, own;
    needs(c, 0, team_of(c->groups, threads), &shared, &own);
    return by_groups(c->groups, shared, own, threads, forward_chain, c);
}

int dvaepp_chain_backward(const chain *c, int threads) {
    int64_t shared, own;
    needs(c, 1, team_of(c->groups, threads), &shared, &own);
    return by_groups(c->groups, shared, own, threads, backward_chain, c);
}
