/* A chain of residual blocks on pixel-major activations, (pixels, groups, rows, channels), forward and backward; or,
   of one group and one block, on (rows, pixels, channels).

   Each thread takes its share of the rows through all layers; if there are at least as many groups as threads, it takes
   whole groups. Threads wait for each other only once, when gradients of parameters are summed over rows.
   residual_chain.py decides which layers there are and where each of them finds its arrays. */

#include "winograd.h"
#include "excitation.h"

enum { CONV, PROJECT, KEEP, EXCITE };

typedef struct {
    int64_t kind, inputs, outputs, squeezed;
    int64_t parameters;            /* how many parameters the layers before this one have */
    int64_t x, skip, y, kept;      /* places of arrays, which `at` turns into addresses */
    int64_t dy, dx;
} layer;

typedef struct {
    const layer *layers;
    float *const *kept; /* several pieces of memory for what the forward pass leaves for the backward pass */
    float *const *ends; /* arrays that the caller has allocated */
    const float *const *parameters; /* ordered by parameter and then by group, each laid out as in its nn module */
    float *const *slopes;
    int64_t count, pixels, groups, rows;
    int64_t by_rows; /* (rows, pixels, channels) */
} chain;

/* The distance from one row to the next, and from one pixel to the next, in units of one pixel's channels. */
static int64_t row_step(const chain *c) { return c->by_rows ? c->pixels : 1; }
static int64_t pixel_step(const chain *c) { return c->by_rows ? 1 : c->groups * c->rows; }

/* A place names an array. A negative place -1 - i means the i-th of `ends`. Any other place lies in `kept`: its upper
   bits are the number of the piece, its lower bits the position of the first float in that piece. */
#define PIECE_BITS 40

static float *at(const chain *c, int64_t place) {
    if (place < 0) return c->ends[-1 - place];
    return c->kept[place >> PIECE_BITS] + (place & (((int64_t)1 << PIECE_BITS) - 1));
}

static const float *const *parameter(const chain *c, const layer *l, int i) {
    return c->parameters + (l->parameters + i) * c->groups;
}

/* The share of one thread: rows first .. last of group g, which it takes through all layers. */
typedef struct {
    const chain *c;
    int64_t g, first, last;
    float *room;
    float *copy; /* where this thread sums gradients of parameters; if null, it writes them to their final places */
} share;

static int parameters_of(const layer *l) { return l->kind == EXCITE ? 4 : l->kind == KEEP ? 0 : 2; }

/* The number of floats in parameter i of a layer. */
static int64_t floats_of(const layer *l, int i) {
    int64_t squeezed = l->squeezed, taps = l->kind == CONV ? 9 : 1;
    if (l->kind == EXCITE) return i == 1 ? squeezed : i == 3 ? l->outputs : squeezed * l->outputs;
    return i == 0 ? taps * l->inputs * l->outputs : l->outputs;
}

/* The position of parameter i of layer l in a thread's copy of all gradients. For the layer after the last one this is
   the size of the whole copy. */
static int64_t before(const chain *c, const layer *l, int i) {
    int64_t floats = 0;
    for (const layer *k = c->layers; k <= l && k < c->layers + c->count; k++)
        for (int p = 0; p < (k == l ? i : parameters_of(k)); p++) floats += padded(floats_of(k, p));
    return floats;
}

static float *slope(const share *s, const layer *l, int i) {
    const chain *c = s->c;
    return s->copy ? s->copy + before(c, l, i) : c->slopes[(l->parameters + i) * c->groups + s->g];
}

static job convolution(const chain *c, const layer *l) {
    job j = {.x = at(c, l->x), .e = at(c, l->kept), .y = at(c, l->y), .w = parameter(c, l, 0), .bias = parameter(c, l, 1)};
    if (c->slopes) {
        j.dy = at(c, l->dy);
        j.dx = at(c, l->dx);
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
    j.w_output = j.dw_output = 9 * l->inputs;
    return j;
}

static excitation excitation_of(const chain *c, const layer *l) {
    return (excitation){c->pixels, pixel_step(c) * l->outputs, l->outputs, l->squeezed};
}

/* lines (m, columns) = a (m, inner) times b (inner, columns). The lines of a are `apart` floats from each other; the
   number of columns is a multiple of a vector's length. */
static void lines_times(int64_t m, int64_t inner, const float *a, int64_t apart, const float *b, int64_t columns,
                        float *lines) {
    factors f = {.a = a, .a_i = apart, .a_l = 1, .chunk = inner, .chunks = 1, .b_l = columns, .b_vec = LANES};
    for (int64_t i = 0; i < columns; i += STRIP) {
        f.b = b + i;
        product(m, columns - i > LANES ? 2 : 1, &f, lines + i, columns);
    }
}

/* Compute the skip W x + b of a block whose shape changes. */
static void project(const share *s, const layer *l) {
    const chain *c = s->c;
    int64_t outputs = padded(l->outputs), apart = c->groups * c->rows, rows = s->last - s->first;
    float *wt = s->room, *lines = wt + l->inputs * outputs;
    const float *bias = parameter(c, l, 1)[s->g];
    copy_padded(parameter(c, l, 0)[s->g], l->outputs, l->inputs, 1, wt);
    for (int64_t p = 0; p < c->pixels; p++) {
        int64_t row = p * apart + s->g * c->rows + s->first;
        lines_times(rows, l->inputs, at(c, l->x) + row * l->inputs, l->inputs, wt, outputs, lines);
        float *y = at(c, l->y) + row * l->outputs;
        for (int64_t r = 0; r < rows; r++, y += l->outputs)
            for (int64_t o = 0; o < l->outputs; o += LANES) {
                int64_t n = l->outputs - o;
                store(y + o, *(vec *)(lines + r * outputs + o) + load(bias + o, n), n);
            }
    }
}

/* Add W' dskip to dx, and compute dW and db. */
static void project_backward(const share *s, const layer *l) {
    const chain *c = s->c;
    int64_t inputs = padded(l->inputs), outputs = padded(l->outputs), apart = c->groups * c->rows;
    int64_t rows = s->last - s->first, all = c->pixels * rows;
    float *d = s->room, *x = d + all * outputs, *w = x + all * inputs, *lines = w + l->outputs * inputs;
    copy_padded(parameter(c, l, 0)[s->g], l->outputs, l->inputs, 0, w);
    for (int64_t p = 0; p < c->pixels; p++) {
        int64_t row = p * apart + s->g * c->rows + s->first, to = p * rows;
        copy_padded(at(c, l->dy) + row * l->outputs, rows, l->outputs, 0, d + to * outputs);
        copy_padded(at(c, l->x) + row * l->inputs, rows, l->inputs, 0, x + to * inputs);
        lines_times(rows, l->outputs, d + to * outputs, outputs, w, inputs, lines);
        float *dx = at(c, l->dx) + row * l->inputs;
        for (int64_t r = 0; r < rows; r++, dx += l->inputs)
            for (int64_t i = 0; i < l->inputs; i += LANES) {
                int64_t n = l->inputs - i;
                store(dx + i, load(dx + i, n) + *(vec *)(lines + r * inputs + i), n);
            }
    }
    float *dw = slope(s, l, 0), *db = slope(s, l, 1), *made = w; /* W has been used */
    factors f = {.a = d, .a_i = 1, .a_l = outputs, .chunk = all, .chunks = 1, .b_l = inputs, .b_vec = LANES};
    for (int64_t i = 0; i < inputs; i += STRIP) {
        f.b = x + i;
        product(l->outputs, inputs - i > LANES ? 2 : 1, &f, made + i, inputs);
    }
    for (int64_t o = 0; o < l->outputs; o++) memcpy(dw + o * l->inputs, made + o * inputs, 4 * l->inputs);
    for (int64_t o = 0; o < l->outputs; o += LANES) {
        vec sum = {0};
        for (int64_t r = 0; r < all; r++) sum += *(vec *)(d + r * outputs + o);
        store(db + o, sum, l->outputs - o);
    }
}

static void excite(const share *s, const layer *l) {
    const chain *c = s->c;
    excitation x = excitation_of(c, l);
    excitation_weights w = {.w1t = s->room, .w2t = s->room + l->outputs * padded(l->squeezed)};
    copy_padded(parameter(c, l, 0)[s->g], l->squeezed, l->outputs, 1, w.w1t);
    copy_padded(parameter(c, l, 2)[s->g], l->outputs, l->squeezed, 1, w.w2t);
    const float *b1 = parameter(c, l, 1)[s->g], *b2 = parameter(c, l, 3)[s->g], *f = at(c, l->x), *skip = at(c, l->skip);
    float *y = at(c, l->y), *kept = at(c, l->kept);
    for (int64_t row = s->g * c->rows + s->first; row < s->g * c->rows + s->last; row++) {
        int64_t place = row * row_step(c) * l->outputs;
        excite_row(&x, &w, b1, b2, f + place, skip + place, y + place, kept + row * excitation_kept(&x));
    }
}

static void excite_backward(const share *s, const layer *l) {
    const chain *c = s->c;
    excitation x = excitation_of(c, l);
    int64_t wide = padded(l->outputs), sums = excitation_sums(&x);
    excitation_weights w = {.w1 = s->room, .w2 = s->room + l->squeezed * wide, .dw1 = s->room + excitation_weights_size(&x)};
    w.dw2t = w.dw1 + l->squeezed * wide;
    w.db1 = w.dw2t + l->squeezed * wide;
    w.db2 = w.db1 + padded(l->squeezed);
    copy_padded(parameter(c, l, 0)[s->g], l->squeezed, l->outputs, 0, w.w1);
    copy_padded(parameter(c, l, 2)[s->g], l->outputs, l->squeezed, 0, w.w2);
    memset(w.dw1, 0, 4 * sums);
    const float *f = at(c, l->x), *kept = at(c, l->kept), *dout = at(c, l->dy);
    float *df = at(c, l->dx);
    for (int64_t row = s->g * c->rows + s->first; row < s->g * c->rows + s->last; row++) {
        int64_t place = row * row_step(c) * l->outputs;
        excite_row_backward(&x, &w, f + place, kept + row * excitation_kept(&x), dout + place, df + place, w.dw1 + sums);
    }
    float *dw1 = slope(s, l, 0), *dw2 = slope(s, l, 2);
    for (int64_t k = 0; k < l->squeezed; k++)
        for (int64_t i = 0; i < l->outputs; i++) {
            dw1[k * l->outputs + i] = w.dw1[k * wide + i];
            dw2[i * l->squeezed + k] = w.dw2t[k * wide + i];
        }
    memcpy(slope(s, l, 1), w.db1, 4 * l->squeezed);
    memcpy(slope(s, l, 3), w.db2, 4 * l->outputs);
}

/* Set a share's rows to zero, at all pixels. */
static void clear_rows(const share *s, int64_t channels, float *to) {
    const chain *c = s->c;
    int64_t bytes = 4 * (s->last - s->first) * channels;
    if (c->by_rows)
        memset(to + s->first * c->pixels * channels, 0, c->pixels * bytes);
    else
        for (int64_t p = 0; p < c->pixels; p++)
            memset(to + ((p * c->groups + s->g) * c->rows + s->first) * channels, 0, bytes);
}

static void add_rows(const share *s, int64_t channels, const float *a, float *to) {
    const chain *c = s->c;
    for (int64_t p = 0; p < c->pixels; p++) {
        int64_t start = ((p * c->groups + s->g) * c->rows + s->first) * channels;
        add(a + start, (s->last - s->first) * channels, to + start);
    }
}

static share share_of(const chain *c, int64_t g, float *room, int member, int team) {
    return (share){c, g, own_rows(c->rows, member, team), own_rows(c->rows, member + 1, team), room, 0};
}

/* The forward pass of one group; every thread of the team calls it for its own rows. */
static void forward_chain(const void *what, int64_t g, float *shared, float *own, int member, int team) {
    (void)shared;
    const chain *c = what;
    share s = share_of(c, g, own, member, team);
    for (const layer *l = c->layers; l < c->layers + c->count; l++) {
        if (l->kind == CONV) {
            job j = convolution(c, l);
            convolve_rows(&j, g, s.first, s.last, own);
        } else if (l->kind == PROJECT)
            project(&s, l);
        else if (l->kind == EXCITE)
            excite(&s, l);
    }
}

/* The backward pass of one group. In `shared` each thread but the first has a copy of all gradients of parameters. */
static void backward_chain(const void *what, int64_t g, float *shared, float *own, int member, int team) {
    const chain *c = what;
    share s = share_of(c, g, own, member, team);
    int64_t copy = before(c, c->layers + c->count, 0);
    if (member > 0) s.copy = shared + (member - 1) * copy;
    for (const layer *l = c->layers + c->count - 1; l >= c->layers; l--) {
        if (l->kind == CONV) {
            job j = convolution(c, l);
            if (j.side > 1) clear_rows(&s, l->inputs, j.dx); /* overlapping windows of several tiles add to it */
            convolve_rows_backward(&j, g, s.first, s.last, slope(&s, l, 0), slope(&s, l, 1), own);
        } else if (l->kind == PROJECT)
            project_backward(&s, l);
        else if (l->kind == KEEP)
            add_rows(&s, l->inputs, at(c, l->dy), at(c, l->dx));
        else
            excite_backward(&s, l);
    }
    if (team == 1) return;
    wait_for(team);
    s.copy = 0;
    for (const layer *l = c->layers; l < c->layers + c->count; l++)
        for (int i = 0; i < parameters_of(l); i++)
            add_copies(slope(&s, l, i), shared + before(c, l, i), copy, floats_of(l, i), member, team);
    wait_for(team); /* the copies may be overwritten, by the next group, only when all threads have read them */
}

/* How many floats of scratch memory a thread needs for the most demanding of its layers. */
static int64_t room(const chain *c, int backward) {
    int64_t floats = 0;
    for (const layer *l = c->layers; l < c->layers + c->count; l++) {
        int64_t inputs = padded(l->inputs), outputs = padded(l->outputs), needed = 0;
        if (l->kind == CONV) {
            job j = convolution(c, l);
            size s = sizes(&j, backward);
            needed = backward ? backward_room(&s) : forward_room(&s);
        } else if (l->kind == PROJECT) {
            needed = backward ? c->pixels * c->rows * (inputs + outputs) : 0;
            needed += (inputs + c->rows) * outputs + (outputs + c->rows) * inputs;
        } else if (l->kind == EXCITE) {
            excitation x = excitation_of(c, l);
            needed = excitation_weights_size(&x) + excitation_sums(&x) + excitation_kept(&x);
        }
        floats = most(floats, needed);
    }
    return padded(floats);
}

int dvaepp_chain(const chain *c, int threads) {
    return by_groups(c->groups, 0, room(c, 0), threads, forward_chain, c);
}

int dvaepp_chain_backward(const chain *c, int threads) {
    int64_t copies = before(c, c->layers + c->count, 0) * (team_of(c->groups, threads) - 1);
    return by_groups(c->groups, copies, room(c, 1), threads, backward_chain, c);
}
