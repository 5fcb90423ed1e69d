// Gather-multiply-sum, the edge-wise product, and two of them at once in one pass over the edges, for csr.cpp.

#pragma once

#include "vectors.h"

// out[receivers[e], a, c] = sum of weight[e, c] * x[senders[e], a, c] over the edges e; the two kinds of ends may change places
template <typename T>
INLINE void weighted_sum_of(const T* x, const T* weight, const Int* senders, const Int* receivers, const Int* pair,
                            T* out, Int edges, Int rows, Int dim, Int channels) {
  clear(out, rows * dim * channels);
  for (Int e = 0; e < edges; ++e)
    for (Int a = 0; a < dim; ++a)
      add_product(out + (receivers[e] * dim + a) * channels, x + (senders[e] * dim + a) * channels,
                  weight + weight_of(pair, e) * channels, channels);
}

// out[e, c] = sum over a of x[senders[e], a, c] * g[receivers[e], a, c], added up for the edges of a pair
template <typename T>
INLINE void product_of(const T* x, const T* g, const Int* senders, const Int* receivers, const Int* pair, T* out,
                       Int edges, Int weights, Int dim, Int channels) {
  PairSums sums = begin_pair_sums(pair, out, edges, weights, channels);
  for (Int e = 0; e < edges; ++e) {
    const T* sent = x + senders[e] * dim * channels;
    const T* received = g + receivers[e] * dim * channels;
    T* mine = out + weight_of(pair, e) * channels;
    sums.add(mine, sent, received, e, channels);
    for (Int a = 1; a < dim; ++a) add_product(mine, sent + a * channels, received + a * channels, channels);
    sums.pass(e);
  }
}

// What a weighted sum of other (from into to index) receives when given arrives for it: out for other, products for weights.
// out[into[e], a, c] = sum of weight[e, c] * given[index[e], a, c]
// products[e, c] = sum over a of given[index[e], a, c] * other[into[e], a, c], added up for the edges of a pair
template <typename T>
INLINE void sum_and_product_of(const T* given, const T* other, const T* weight, const Int* index, const Int* into,
                               const Int* pair, T* products, T* out, Int edges, Int rows, Int weights, Int dim,
                               Int channels) {
  PairSums sums = begin_pair_sums(pair, products, edges, weights, channels);
  clear(out, rows * dim * channels);
  for (Int e = 0; e < edges; ++e) {
    const T* arrived = given + index[e] * dim * channels;
    const T* held = other + into[e] * dim * channels;
    const T* scale = weight + weight_of(pair, e) * channels;
    T* sum = out + into[e] * dim * channels;
    T* product = products + weight_of(pair, e) * channels;
    add_product(sum, arrived, scale, channels);
    sums.add(product, arrived, held, e, channels);
    for (Int a = 1; a < dim; ++a) {
      add_product(sum + a * channels, arrived + a * channels, scale, channels);
      add_product(product, arrived + a * channels, held + a * channels, channels);
    }
    sums.pass(e);
  }
}

// What an edge-wise product of x and g receives when weight arrives for it.
// sent[senders[e], a, c] = sum of weight[e, c] * g[receivers[e], a, c], received[receivers[e], a, c] = sum of weight[e, c] * x[senders[e], a, c]
template <typename T>
INLINE void both_sums_of(const T* x, const T* g, const T* weight, const Int* senders, const Int* receivers,
                         const Int* pair, T* sent, T* received, Int edges, Int columns, Int rows, Int dim,
                         Int channels) {
  clear(sent, columns * dim * channels);
  clear(received, rows * dim * channels);
  for (Int e = 0; e < edges; ++e)
    for (Int a = 0; a < dim; ++a) {
      const Int from = (senders[e] * dim + a) * channels, to = (receivers[e] * dim + a) * channels;
      const T* scale = weight + weight_of(pair, e) * channels;
      add_product(sent + from, g + to, scale, channels);
      add_product(received + to, x + from, scale, channels);
    }
}
