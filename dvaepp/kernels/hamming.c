/* The k nearest codes by Hamming distance, exactly: popcount of the exclusive or, then a short sorted list per query.

   Rows are taken in tiles, which stay in the cache while all queries are compared with them. Most rows are farther than
   the last one in a query's list. So all distances of a tile are computed first, several at once, and only if the
   smallest of them is small enough are they looked at one by one. Of two rows at the same distance the earlier counts
   as nearer. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TILE 1024 /* rows; 8 KiB of codes of 64 bits */

typedef struct {
    int32_t distance;
    int64_t index;
} Hit;

/* Distances of n rows to a query; returns the smallest. */
static inline __attribute__((always_inline)) int32_t distances(const uint64_t *rows, const uint64_t *query,
                                                               int32_t *restrict out, int64_t n, int64_t words) {
    int32_t least = INT32_MAX;
    for (int64_t r = 0; r < n; r++) {
        uint64_t sum = 0;
        for (int64_t w = 0; w < words; w++) sum += (uint64_t)__builtin_popcountll(rows[r * words + w] ^ query[w]);
        out[r] = (int32_t)sum;
    }
    for (int64_t r = 0; r < n; r++) least = out[r] < least ? out[r] : least;
    return least;
}

static int32_t tile(const uint64_t *rows, const uint64_t *query, int32_t *out, int64_t n, int64_t words) {
    switch (words) { /* the compiler unrolls a constant number of words */
    case 1: return distances(rows, query, out, n, 1);
    case 2: return distances(rows, query, out, n, 2);
    case 4: return distances(rows, query, out, n, 4);
    default: return distances(rows, query, out, n, words);
    }
}

/* Put a hit into a sorted list of k; it comes after those at the same distance, which have smaller indices. */
static void insert(Hit *list, int64_t k, Hit hit) {
    int64_t low = 0, high = k - 1;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (list[middle].distance <= hit.distance) low = middle + 1;
        else high = middle;
    }
    memmove(list + low + 1, list + low, (size_t)(k - 1 - low) * sizeof(Hit));
    list[low] = hit;
}

/* Find the k nearest of the codes (n, words) for each of m queries, and write their distances and rows, both (m, k).
   Returns 0 if memory is short. */
int dvaepp_hamming(const uint64_t *codes, int64_t n, int64_t words, const uint64_t *queries, int64_t m, int64_t k,
                   int64_t *out_distances, int64_t *out_indices) {
    Hit *lists = malloc((size_t)(m * k) * sizeof(Hit));
    if (!lists) return 0;
    for (int64_t i = 0; i < m * k; i++) lists[i] = (Hit){INT32_MAX, -1};
    int32_t found[TILE];
    for (int64_t start = 0; start < n; start += TILE) {
        int64_t rows = n - start < TILE ? n - start : TILE;
        for (int64_t q = 0; q < m; q++) {
            Hit *list = lists + q * k;
            if (tile(codes + start * words, queries + q * words, found, rows, words) >= list[k - 1].distance) continue;
            for (int64_t r = 0; r < rows; r++)
                if (found[r] < list[k - 1].distance) insert(list, k, (Hit){found[r], start + r});
        }
    }
    for (int64_t i = 0; i < m * k; i++) out_distances[i] = lists[i].distance, out_indices[i] = lists[i].index;
    free(lists);
    return 1;
}
