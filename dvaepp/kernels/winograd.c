/* Convolutions that stand alone, for winograd.py.

   The threads of a team share the rows of a group, or its channels. With shared rows each of them transforms all kernels;
   with shared channels it transforms the maps of all rows, which is less work where channels are many and rows are few.
   Channels are also taken in parts if all kernels together, transformed, are larger than a part of the cache. */

#include "winograd.h"

/* A part of the channels of a group, as a job of one group. */
typedef struct {
    job j;
    const float *w, *bias;
} part;

static void take_part(const job *j, int64_t g, int64_t input, int64_t inputs, int64_t output, int64_t outputs, part *p) {
    int64_t e = g * j->e_group + input, y = g * j->y_group + output;
    p->j = *j;
    p->j.groups = 1;
    p->j.inputs = inputs;
    p->j.outputs = outputs;
    p->j.x = j->x ? j->x + g * j->x_group + input : 0;
    p->j.e = j->e + e;
    p->j.dx = j->dx ? j->dx + e : 0;
    p->j.y = j->y ? j->y + y : 0;
    p->j.dy = j->dy ? j->dy + y : 0;
    p->w = j->w[g] + output * j->w_output + input * 9;
    p->j.w = &p->w;
    p->bias = j->bias ? j->bias[g] + output : 0;
    p->j.bias = j->bias ? &p->bias : 0;
}

#define PART_BYTES (4 << 20) /* of transformed kernels that are worked with at a time: the quickest of 1, 2, 4, 8 MB */

/* How many of n channels are taken at a time, each with kernels for `others` in this number of arrays; 0 if threads share
   rows and all channels are taken at once. */
static int64_t width_of_part(const job *j, int64_t n, int64_t others, int64_t arrays, int team) {
    if (j->rows == 0 || j->rows * j->side * j->side >= arrays * n || n < STRIP * team) return 0;
    int64_t fit = most(1, PART_BYTES / (4 * POINTS * arrays * others * STRIP)) * STRIP;
    int64_t own = (n + team - 1) / team, parts = (own + fit - 1) / fit;
    return team * parts > 1 ? padded((own + parts - 1) / parts) : 0;
}

static void forward_group(const void *what, int64_t g, float *shared, float *own, int member, int team) {
    (void)shared;
    const job *j = what;
    int64_t first = own_rows(j->rows, member, team), last = own_rows(j->rows, member + 1, team);
    int64_t width = width_of_part(j, j->outputs, j->inputs, 1, team);
    if (!width) {
        convolve_rows(j, g, first, last, own);
        return;
    }
    activate(j, g, first, last);
    wait_for(team);
    int64_t from = cut(j->outputs, LANES, member, team), to = cut(j->outputs, LANES, member + 1, team);
    for (int64_t at = from; at < to; at += width) {
        part p;
        take_part(j, g, 0, j->inputs, at, least(width, to - at), &p);
        p.j.x = 0;
        convolve_rows(&p.j, 0, 0, j->rows, own);
    }
}

int dvaepp_convolve(const job *j, int threads) {
    size s = sizes(j, 0); /* a part of the outputs takes no more room */
    return by_groups(j->groups, 0, forward_room(&s), threads, forward_group, j);
}

static int64_t copy_of(const job *j) { return padded(9 * j->inputs * j->outputs) + padded(j->outputs); }

/* In `shared` each thread but the first has room for its own gradients of the parameters. A team that shares the inputs
   needs none: every thread has all rows of its own gradients, and the first one has those of the bias. */
static void backward_group(const void *what, int64_t g, float *shared, float *own, int member, int team) {
    const job *j = what;
    int64_t weights = 9 * j->inputs * j->outputs, copy = copy_of(j);
    int64_t width = width_of_part(j, j->inputs, j->outputs, 2, team); /* two arrays, U and dU */
    float *dw = j->dw ? j->dw[g] : 0, *dbias = j->dbias ? j->dbias[g] : 0;
    if (width) {
        int64_t from = cut(j->inputs, LANES, member, team), to = cut(j->inputs, LANES, member + 1, team);
        for (int64_t at = from; at < to; at += width) {
            part p;
            take_part(j, g, at, least(width, to - at), 0, j->outputs, &p);
            convolve_rows_backward(&p.j, 0, 0, j->rows, dw ? dw + 9 * at : 0, at ? 0 : dbias, own);
        }
        return;
    }
    float *mine = shared + most(member - 1, 0) * copy, *biases = mine + padded(weights);
    convolve_rows_backward(j, g, own_rows(j->rows, member, team), own_rows(j->rows, member + 1, team),
                           dw && member ? mine : dw, dbias && member ? biases : dbias, own);
    wait_for(team);
    add_copies(dw, shared, copy, weights, member, team);
    add_copies(dbias, shared + padded(weights), copy, j->outputs, member, team);
    wait_for(team); /* the copies may be overwritten, by the next group, only when all threads have read them */
}

/* The room of a thread for inputs in parts of any width, because with fewer of them more rows pass together. */
static int64_t room_backward(const job *j) {
    size s = sizes(j, 1);
    int64_t room = backward_room(&s);
    for (int64_t width = LANES; width < j->inputs; width += LANES) {
        job share = *j;
        share.inputs = width;
        s = sizes(&share, 1);
        room = most(room, backward_room(&s));
    }
    return padded(room);
}

int dvaepp_convolve_backward(const job *j, int threads) {
    int64_t copies = copy_of(j) * (team_of(j->groups, threads) - 1);
    return by_groups(j->groups, copies, room_backward(j), threads, backward_group, j);
}
