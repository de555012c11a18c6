/* Squeeze and excitation (App. G) on pixel-major activations, with the sum around it:

       out = skip + f s,   s = sigmoid(W2 ELU(W1 mean(f) + b1) + b2)

   A row is one example of one group. Arrays that the forward pass keeps for the backward pass, and the copies of
   weights that are made for a pass, have their channels padded with zeros to whole vectors. */

typedef struct {
    int64_t pixels, apart;      /* pixel p of a row begins p * apart floats after pixel 0 */
    int64_t channels, squeezed; /* C and Q; the functions below call their padded sizes c and q */
} excitation;

typedef struct {
    float *w1t, *w2t; /* forward: (C, q), (Q, c) */
    float *w1, *w2;   /* backward: (Q, c), (C, q) */
    float *dw1, *dw2t, *db1, *db2; /* sums over a thread's rows: (Q, c), (Q, c), q, c */
} excitation_weights;

static int64_t excitation_weights_size(const excitation *x) {
    return x->channels * padded(x->squeezed) + x->squeezed * padded(x->channels);
}

static int64_t excitation_sums(const excitation *x) {
    int64_t c = padded(x->channels);
    return 2 * x->squeezed * c + padded(x->squeezed) + c;
}

static int64_t excitation_kept(const excitation *x) { return 2 * padded(x->channels) + padded(x->squeezed); }

/* Copy a matrix (rows, columns), or its transpose, and pad every line of the copy with zeros to whole vectors. */
static void copy_padded(const float *from, int64_t rows, int64_t columns, int transposed, float *to) {
    int64_t lines = transposed ? columns : rows, length = transposed ? rows : columns, step = padded(length);
    for (int64_t l = 0; l < lines; l++, to += step) {
        for (int64_t i = 0; i < length; i++) to[i] = transposed ? from[i * columns + l] : from[l * columns + i];
        memset(to + length, 0, 4 * (step - length));
    }
}

/* Add the product of the vector a (m) and the matrix w (m, n) to the vector `to` (n); n is a multiple of LANES. */
static inline void add_times(const float *a, int64_t m, const float *w, int64_t n, float *to) {
    for (int64_t c = 0; c < n; c += LANES) {
        vec sum = *(vec *)(to + c);
        for (int64_t i = 0; i < m; i++) sum += a[i] * *(const vec *)(w + i * n + c);
        *(vec *)(to + c) = sum;
    }
}

static inline void load_line(const float *from, int64_t n, float *to) {
    for (int64_t i = 0; i < n; i += LANES) *(vec *)(to + i) = load(from + i, n - i);
}

/* The forward pass of one row. `kept` receives mean (c), s (c) and ELU(W1 mean + b1) (q) for the backward pass. */
static void excite_row(const excitation *x, const excitation_weights *w, const float *b1, const float *b2, const float *f,
                       const float *skip, float *out, float *kept) {
    int64_t c = padded(x->channels), q = padded(x->squeezed);
    float *mean = kept, *s = kept + c, *hidden = s + c;
    for (int64_t i = 0; i < x->channels; i += LANES) {
        vec sum = {0};
        for (int64_t p = 0; p < x->pixels; p++) sum += load(f + p * x->apart + i, x->channels - i);
        *(vec *)(mean + i) = sum * (1.0f / x->pixels);
    }
    load_line(b1, x->squeezed, hidden);
    add_times(mean, x->channels, w->w1t, q, hidden);
    for (int64_t i = 0; i < q; i++) hidden[i] = hidden[i] > 0 ? hidden[i] : fast_expm1(hidden[i]);
    load_line(b2, x->channels, s);
    add_times(hidden, x->squeezed, w->w2t, c, s);
    for (int64_t i = 0; i < c; i++) s[i] = s[i] == s[i] ? 1.0f / (1.0f + fast_exp(-s[i])) : s[i];
    for (int64_t p = 0; p < x->pixels; p++)
        for (int64_t i = 0; i < x->channels; i += LANES) {
            int64_t at = p * x->apart + i, n = x->channels - i;
            store(out + at, load(skip + at, n) + load(f + at, n) * *(vec *)(s + i), n);
        }
}

/* The backward pass of one row: compute df, and add to the gradients dw1, dw2t, db1 and db2 in w. `room` has 2 c + q
   floats of scratch memory. */
static void excite_row_backward(const excitation *x, const excitation_weights *w, const float *f, const float *kept,
                                const float *dout, float *df, float *room) {
    int64_t c = padded(x->channels), q = padded(x->squeezed);
    const float *mean = kept, *s = kept + c, *hidden = s + c;
    float *g2 = room, *dmean = g2 + c, *g1 = dmean + c;
    for (int64_t i = 0; i < x->channels; i += LANES) {
        vec sum = {0}, at = *(const vec *)(s + i);
        for (int64_t p = 0; p < x->pixels; p++) {
            int64_t n = x->channels - i, place = p * x->apart + i;
            sum += load(dout + place, n) * load(f + place, n);
        }
        *(vec *)(g2 + i) = sum * at * (1 - at);
    }
    memset(dmean, 0, 4 * (c + q));
    add_times(g2, x->channels, w->w2, q, g1);
    for (int64_t i = 0; i < q; i++) g1[i] *= hidden[i] > 0 ? 1 : hidden[i] + 1;
    add_times(g1, x->squeezed, w->w1, c, dmean);
    for (int64_t k = 0; k < x->squeezed; k++)
        for (int64_t i = 0; i < c; i += LANES) {
            *(vec *)(w->dw1 + k * c + i) += g1[k] * *(const vec *)(mean + i);
            *(vec *)(w->dw2t + k * c + i) += hidden[k] * *(const vec *)(g2 + i);
        }
    for (int64_t i = 0; i < q; i++) w->db1[i] += g1[i];
    for (int64_t i = 0; i < c; i++) w->db2[i] += g2[i];
    for (int64_t p = 0; p < x->pixels; p++)
        for (int64_t i = 0; i < x->channels; i += LANES) {
            int64_t at = p * x->apart + i, n = x->channels - i;
            vec slope = load(dout + at, n) * *(const vec *)(s + i) + *(const vec *)(dmean + i) * (1.0f / x->pixels);
            store(df + at, slope, n);
        }
}
