// Messages of senders along the directions of edges, and their derivatives, for csr.cpp.

#pragma once

#include "vectors.h"

// out[i, a, c] = sum over the edges e of row i of x[senders[e], c] * weight[e, c] * directions[e, a]
template <typename T>
INLINE void sum_along_of(const T* x, const T* weight, const T* directions, const Int* senders, const Int* offsets,
                         const Int* pair, T* out, Int rows, Int dim, Int channels) {
  T product[BLOCK];
  for (Int i = 0; i < rows; ++i) {
    T* mine = out + i * dim * channels;
    clear(mine, dim * channels);
    for (Int e = offsets[i]; e < offsets[i + 1]; ++e)
      for (Int begin = 0; begin < channels; begin += BLOCK) {
        const Int count = block_at(begin, channels);
        multiply(product, x + senders[e] * channels + begin, weight + weight_of(pair, e) * channels + begin, count);
        for (Int a = 0; a < dim; ++a)
          add_scaled(mine + a * channels + begin, product, directions[e * dim + a], count);
      }
  }
}

// out[senders[e], c] = sum of weight[e, c] * sum over a of directions[e, a] * vectors[receivers[e], a, c] over the edges e
template <typename T>
INLINE void collect_along_of(const T* weight, const T* directions, const T* vectors, const Int* senders,
                             const Int* receivers, const Int* pair, T* out, Int edges, Int columns, Int dim, Int channels) {
  T along[BLOCK];
  clear(out, columns * channels);
  for (Int e = 0; e < edges; ++e)
    for (Int begin = 0; begin < channels; begin += BLOCK) {
      const Int count = block_at(begin, channels);
      project(along, directions + e * dim, vectors + receivers[e] * dim * channels + begin, dim, channels, count);
      add_product(out + senders[e] * channels + begin, along, weight + weight_of(pair, e) * channels + begin, count);
    }
}

// out[e, c] = x[senders[e], c] * sum over a of directions[e, a] * vectors[receivers[e], a, c], added up for the edges of a pair
template <typename T>
INLINE void multiply_along_of(const T* x, const T* directions, const T* vectors, const Int* senders,
                              const Int* receivers, const Int* pair, T* out, Int edges, Int weights, Int dim,
                              Int channels) {
  T along[BLOCK];
  PairSums sums = begin_pair_sums(pair, out, edges, weights, channels);
  for (Int e = 0; e < edges; ++e) {
    for (Int begin = 0; begin < channels; begin += BLOCK) {
      const Int count = block_at(begin, channels);
      project(along, directions + e * dim, vectors + receivers[e] * dim * channels + begin, dim, channels, count);
      T* mine = out + weight_of(pair, e) * channels + begin;
      sums.add(mine, x + senders[e] * channels + begin, along, e, count);
    }
    sums.pass(e);
  }
}

// out[e, a] = sum over c of x[senders[e], c] * weight[e, c] * vectors[receivers[e], a, c]
template <typename T>
INLINE void contract_along_of(const T* x, const T* weight, const T* vectors, const Int* senders, const Int* receivers,
                              const Int* pair, T* out, Int edges, Int dim, Int channels) {
  T product[BLOCK];
  for (Int e = 0; e < edges; ++e) {
    clear(out + e * dim, dim);
    for (Int begin = 0; begin < channels; begin += BLOCK) {
      const Int count = block_at(begin, channels);
      multiply(product, x + senders[e] * channels + begin, weight + weight_of(pair, e) * channels + begin, count);
      for (Int a = 0; a < dim; ++a)
        out[e * dim + a] += dot(product, vectors + (receivers[e] * dim + a) * channels + begin, count);
    }
  }
}

// What sum_along receives when vectors arrive for it, in one pass:
// for_x[senders[e], c] = sum of weight[e, c] * along[e, c], along[e, c] = sum over a of directions[e, a] * vectors[receivers[e], a, c]
// for_weight[e, c] = x[senders[e], c] * along[e, c], added up for the edges of a pair
// for_directions[e, a] = sum over c of x[senders[e], c] * weight[e, c] * vectors[receivers[e], a, c]
template <typename T>
INLINE void along_gradient_of(const T* x, const T* weight, const T* directions, const T* vectors, const Int* senders,
                              const Int* receivers, const Int* pair, T* for_x, T* for_weight, T* for_directions,
                              Int edges, Int columns, Int weights, Int dim, Int channels) {
  T along[BLOCK], product[BLOCK];
  PairSums sums = begin_pair_sums(pair, for_weight, edges, weights, channels);
  clear(for_x, columns * channels);
  clear(for_directions, edges * dim);
  for (Int e = 0; e < edges; ++e) {
    for (Int begin = 0; begin < channels; begin += BLOCK) {
      const Int count = block_at(begin, channels), from = senders[e] * channels + begin;
      const Int at = weight_of(pair, e) * channels + begin;
      const T* arrived = vectors + receivers[e] * dim * channels + begin;
      project(along, directions + e * dim, arrived, dim, channels, count);
      add_product(for_x + from, along, weight + at, count);
      sums.add(for_weight + at, x + from, along, e, count);
      multiply(product, x + from, weight + at, count);
      for (Int a = 0; a < dim; ++a) for_directions[e * dim + a] += dot(product, arrived + a * channels, count);
    }
    sums.pass(e);
  }
}
