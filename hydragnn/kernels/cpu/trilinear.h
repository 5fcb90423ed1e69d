// Gather-multiply-sum, the edge-wise product, and two of them at once in one pass over the edges, for csr.cpp.
// A weight belongs to one channel, or to a head of so many channels as its width says.

#pragma once

#include "vectors.h"

// out[c] += x[c] * weight[c / width]
template <typename T>
INLINE void add_weighed(T* out, const T* x, const T* weight, Int channels, Int width) {
  if (width == 1) return add_product(out, x, weight, channels);
  for (Int c = 0; c < channels; c += width) add_scaled(out + c, x + c, weight[c / width], width);
}

// Adds x * y to the weights of an edge, which are at mine: over all axes, and over the channels of each weight.
template <typename T>
INLINE void add_products(PairSums& sums, T* mine, const T* x, const T* y, Int e, Int dim, Int channels, Int width) {
  if (width == 1) {
    sums.add(mine, x, y, e, channels);
    for (Int a = 1; a < dim; ++a) add_product(mine, x + a * channels, y + a * channels, channels);
    return;
  }
  if (sums.writes(e)) clear(mine, channels / width);
  for (Int c = 0; c < dim * channels; c += width) mine[c % channels / width] += dot(x + c, y + c, width);
}

// out[receivers[e], a, c] = sum of weight[e, c / width] * x[senders[e], a, c] over the edges e; the two kinds of ends may change places
template <typename T>
INLINE void weighted_sum_of(const T* x, const T* weight, const Int* senders, const Int* receivers, const Int* pair,
                            T* out, Int edges, Int rows, Int dim, Int channels, Int width) {
  const Int weights = channels / width;
  clear(out, rows * dim * channels);
  for (Int e = 0; e < edges; ++e)
    for (Int a = 0; a < dim; ++a)
      add_weighed(out + (receivers[e] * dim + a) * channels, x + (senders[e] * dim + a) * channels,
                  weight + weight_of(pair, e) * weights, channels, width);
}

// out[e, h] = sum over a and the channels c of h of x[senders[e], a, c] * g[receivers[e], a, c], added up for the edges of a pair
template <typename T>
INLINE void edge_product_of(const T* x, const T* g, const Int* senders, const Int* receivers, const Int* pair, T* out,
                       Int edges, Int items, Int dim, Int channels, Int width) {
  const Int weights = channels / width;
  PairSums sums = begin_pair_sums(pair, out, edges, items, weights);
  for (Int e = 0; e < edges; ++e) {
    add_products(sums, out + weight_of(pair, e) * weights, x + senders[e] * dim * channels,
                 g + receivers[e] * dim * channels, e, dim, channels, width);
    sums.pass(e);
  }
}

// What a weighted sum of other (from into to index) receives when given arrives for it: out for other, products for weights.
// out[into[e], a, c] = sum of weight[e, c / width] * given[index[e], a, c]
// products[e, h] = sum over a and the channels c of h of given[index[e], a, c] * other[into[e], a, c], added up for the edges of a pair
template <typename T>
INLINE void sum_and_product_of(const T* given, const T* other, const T* weight, const Int* index, const Int* into,
                               const Int* pair, T* products, T* out, Int edges, Int rows, Int items, Int dim,
                               Int channels, Int width) {
  const Int weights = channels / width;
  PairSums sums = begin_pair_sums(pair, products, edges, items, weights);
  clear(out, rows * dim * channels);
  for (Int e = 0; e < edges; ++e) {
    const T* arrived = given + index[e] * dim * channels;
    const T* held = other + into[e] * dim * channels;
    const T* scale = weight + weight_of(pair, e) * weights;
    T* sum = out + into[e] * dim * channels;
    for (Int a = 0; a < dim; ++a) add_weighed(sum + a * channels, arrived + a * channels, scale, channels, width);
    add_products(sums, products + weight_of(pair, e) * weights, arrived, held, e, dim, channels, width);
    sums.pass(e);
  }
}

// What an edge-wise product of x and g receives when weight arrives for it.
// sent[senders[e], a, c] = sum of weight[e, c / width] * g[receivers[e], a, c], received[receivers[e], a, c] = sum of weight[e, c / width] * x[senders[e], a, c]
template <typename T>
INLINE void both_sums_of(const T* x, const T* g, const T* weight, const Int* senders, const Int* receivers,
                         const Int* pair, T* sent, T* received, Int edges, Int columns, Int rows, Int dim,
                         Int channels, Int width) {
  clear(sent, columns * dim * channels);
  clear(received, rows * dim * channels);
  for (Int e = 0; e < edges; ++e)
    for (Int a = 0; a < dim; ++a) {
      const Int from = (senders[e] * dim + a) * channels, to = (receivers[e] * dim + a) * channels;
      const T* scale = weight + weight_of(pair, e) * (channels / width);
      add_weighed(sent + from, g + to, scale, channels, width);
      add_weighed(received + to, x + from, scale, channels, width);
    }
}
