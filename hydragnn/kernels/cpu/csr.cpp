// Loops over the edges of every node, for kernels on a CPU: no [edges, channels] array is made on the way.
//
// Every function takes pointers to dense row-major arrays, then sizes, then the bytes of one number (4: float, 8: double);
// indices are int64 and trusted unless a function says otherwise. It returns 0, or 1 where it does not serve its input.
// Sums run in the order of the edges, one after the other, and products are rounded before they are added
// (-ffp-contract=off), so that every machine, vectorised or not, gives the bits of torch's index_add.
// Sums over channels run in LANES strands, whatever the machine.

#include "along.h"
#include "elementwise.h"
#include "powers.h"
#include "softmax.h"
#include "table.h"
#include "trilinear.h"
#include "vectors.h"

// out[e] = sum over c of x[senders[e], c] * g[receivers[e], c]
template <typename T>
INLINE void dot_of(const T* x, const T* g, const Int* senders, const Int* receivers, T* out, Int edges, Int width) {
  for (Int e = 0; e < edges; ++e) out[e] = dot(x + senders[e] * width, g + receivers[e] * width, width);
}

// out[i, a, c] = sum over the edges e of row i of messages[e, c] * directions[e, a]
template <typename T>
INLINE void outer_sum_of(const T* messages, const T* directions, const Int* offsets, T* out, Int rows, Int dim,
                         Int channels) {
  for (Int i = 0; i < rows; ++i) {
    T* mine = out + i * dim * channels;
    clear(mine, dim * channels);
    for (Int e = offsets[i]; e < offsets[i + 1]; ++e)
      for (Int a = 0; a < dim; ++a)
        add_scaled(mine + a * channels, messages + e * channels, directions[e * dim + a], channels);
  }
}

// out[e, c] = sum over a of directions[e, a] * vectors[receivers[e], a, c]
template <typename T>
INLINE void along_directions_of(const T* directions, const T* vectors, const Int* receivers, T* out, Int edges, Int dim,
                                Int channels) {
  for (Int e = 0; e < edges; ++e) {
    const T* received = vectors + receivers[e] * dim * channels;
    const T* __restrict along = directions + e * dim;
    T* __restrict mine = out + e * channels;
    for (Int c = 0; c < channels; ++c) mine[c] = along[0] * received[c];
    for (Int a = 1; a < dim; ++a) add_scaled(mine, received + a * channels, along[a], channels);
  }
}

// out[e, a] = sum over c of messages[e, c] * vectors[receivers[e], a, c]
template <typename T>
INLINE void along_channels_of(const T* messages, const T* vectors, const Int* receivers, T* out, Int edges, Int dim,
                              Int channels) {
  for (Int e = 0; e < edges; ++e)
    for (Int a = 0; a < dim; ++a)
      out[e * dim + a] = dot(messages + e * channels, vectors + (receivers[e] * dim + a) * channels, channels);
}

// out[e, c] = received[receivers[e], c] + sent[senders[e], c] + given[weight of e, c], without those that are null
template <typename T>
INLINE void gather_add_of(const T* received, const T* sent, const T* given, const Int* senders, const Int* receivers,
                          const Int* pair, T* out, Int edges, Int width) {
  for (Int e = 0; e < edges; ++e) {
    const T* __restrict from = sent + senders[e] * width;
    T* __restrict mine = out + e * width;
    if (received) {
      const T* __restrict to = received + receivers[e] * width;
      for (Int c = 0; c < width; ++c) mine[c] = to[c] + from[c];
    } else {
      for (Int c = 0; c < width; ++c) mine[c] = from[c];
    }
    if (given) add(mine, given + weight_of(pair, e) * width, width);
  }
}

// out[receivers[e], c] = sum of messages[e, c], receivers in any order; returns 1 where one is not below nodes
template <typename T>
INLINE Int scatter_sum_of(const T* messages, const Int* receivers, T* out, Int edges, Int nodes, Int width) {
  Int met = numbered_as_met(receivers, edges, nodes) ? 0 : -1;  // then the first message writes, and nothing is cleared
  if (met < 0) clear(out, nodes * width);
  for (Int e = 0; e < edges; ++e) {
    if (receivers[e] < 0 || receivers[e] >= nodes) return 1;
    T* mine = out + receivers[e] * width;
    if (receivers[e] == met) {
      begin_with(mine, messages + e * width, width);
      ++met;
    } else {
      add(mine, messages + e * width, width);
    }
  }
  return 0;
}

// mean, population variance, smallest and largest of the messages of every row, each where its array is given; NaN stays NaN.
// The variance is that of centred values: a second pass over a row whose messages are still near.
template <typename T>
INLINE void statistics_of(const T* messages, const Int* receivers, T* mean, T* variance, T* low, T* high, Int edges,
                          Int nodes, Int width) {
  for (Int i = 0, begin = 0; i < nodes; ++i) {
    const Int end = end_of(receivers, begin, edges, i);
    const T count = static_cast<T>(end > begin ? end - begin : 1);
    if (mean) {
      T* __restrict middle = mean + i * width;
      T* __restrict spread = variance + i * width;
      clear(middle, width);
      clear(spread, width);
      for (Int e = begin; e < end; ++e) add(middle, messages + e * width, width);
      for (Int c = 0; c < width; ++c) middle[c] /= count;
      for (Int e = begin; e < end; ++e) {
        const T* __restrict message = messages + e * width;
        for (Int c = 0; c < width; ++c) {
          const T centred = message[c] - middle[c];
          spread[c] += centred * centred;
        }
      }
      for (Int c = 0; c < width; ++c) spread[c] /= count;
    }
    if (low) extreme(messages, low + i * width, begin, end, width, [](T x, T y) { return x < y; });
    if (high) extreme(messages, high + i * width, begin, end, width, [](T x, T y) { return x > y; });
    begin = end;
  }
}

// out[e, c], the derivative of the statistics with respect to the messages, times what arrived for each (null: nothing did).
// The gradient of an extreme goes to the first message that equals it.
template <typename T>
INLINE void statistics_gradient_of(const T* messages, const Int* receivers, const T* mean, const T* low, const T* high,
                                   const T* for_mean, const T* for_variance, const T* for_low, const T* for_high,
                                   T* spare, T* out, Int edges, Int nodes, Int width) {
  for (Int i = 0, begin = 0; i < nodes; ++i) {
    const Int end = end_of(receivers, begin, edges, i);
    const T count = static_cast<T>(end > begin ? end - begin : 1);
    T* __restrict constant = spare;
    T* __restrict slope = spare + width;
    for (Int c = 0; c < width; ++c) {
      constant[c] = for_mean ? for_mean[i * width + c] / count : 0;
      slope[c] = for_variance ? 2 * for_variance[i * width + c] / count : 0;
    }
    for (Int e = begin; e < end; ++e) {
      const T* __restrict message = messages + e * width;
      T* __restrict mine = out + e * width;
      if (for_variance) {
        const T* __restrict middle = mean + i * width;
        for (Int c = 0; c < width; ++c) mine[c] = constant[c] + slope[c] * (message[c] - middle[c]);
      } else {
        for (Int c = 0; c < width; ++c) mine[c] = constant[c];
      }
    }
    if (for_low) add_to_first(messages, low + i * width, for_low + i * width, slope, out, begin, end, width);
    if (for_high) add_to_first(messages, high + i * width, for_high + i * width, slope, out, begin, end, width);
    begin = end;
  }
}

// out[i, c] = the first edge of row i whose message is value[i, c], or edges where there is none
template <typename T>
INLINE void holders_of(const T* messages, const Int* receivers, const T* value, Int* out, Int edges, Int nodes,
                       Int width) {
  for (Int i = 0, begin = 0; i < nodes; ++i) {
    const Int end = end_of(receivers, begin, edges, i);
    Int* __restrict mine = out + i * width;
    for (Int c = 0; c < width; ++c) mine[c] = edges;
    for (Int e = end - 1; e >= begin; --e)
      for (Int c = 0; c < width; ++c) mine[c] = messages[e * width + c] == value[i * width + c] ? e : mine[c];
    begin = end;
  }
}

// pair[e], the number of e and its reverse, whose vector is opposite but for rounding; first[p], the first edge of pair p,
// and first[edges], how many there are. Returns 1 where an edge has no reverse.
template <typename T>
INLINE Int pair_edges_of(const T* vectors, const Int* senders, const Int* receivers, const Int* offsets, Int* first,
                         Int* pair, Int edges, Int dim) {
  constexpr T CLOSE = static_cast<T>(1e-6);  // of squares; images are whole cells apart
  for (Int e = 0; e < edges; ++e) pair[e] = -1;
  Int count = 0;
  for (Int e = 0; e < edges; ++e) {
    if (pair[e] >= 0) continue;
    Int reverse = -1;
    for (Int k = offsets[senders[e]]; k < offsets[senders[e] + 1] && reverse < 0; ++k) {
      if (senders[k] != receivers[e] || pair[k] >= 0) continue;
      T square = 0, difference = 0;
      for (Int a = 0; a < dim; ++a) {
        const T sum = vectors[k * dim + a] + vectors[e * dim + a];
        square += vectors[e * dim + a] * vectors[e * dim + a];
        difference += sum * sum;
      }
      if (difference <= CLOSE * square) reverse = k;
    }
    if (reverse < 0) return 1;
    pair[e] = pair[reverse] = count;
    first[count++] = e;
  }
  first[edges] = count;
  return 0;
}

#define IN(array) static_cast<const T*>(array)
#define OUT(array) static_cast<T*>(array)

EXPORT Int weighted_sum(const void* x, const void* weight, const Int* senders, const Int* receivers, const Int* pair,
                        void* out, Int edges, Int rows, Int dim, Int channels, Int width, Int bytes) {
  WITH_TYPE(weighted_sum_of(IN(x), IN(weight), senders, receivers, pair, OUT(out), edges, rows, dim, channels, width))
  return 0;
}

EXPORT Int edge_product(const void* x, const void* g, const Int* senders, const Int* receivers, const Int* pair,
                        void* out, Int edges, Int items, Int dim, Int channels, Int width, Int bytes) {
  WITH_TYPE(product_of(IN(x), IN(g), senders, receivers, pair, OUT(out), edges, items, dim, channels, width))
  return 0;
}

EXPORT Int sum_and_product(const void* given, const void* other, const void* weight, const Int* index, const Int* into,
                           const Int* pair, void* products, void* out, Int edges, Int rows, Int items, Int dim,
                           Int channels, Int width, Int bytes) {
  WITH_TYPE(sum_and_product_of(IN(given), IN(other), IN(weight), index, into, pair, OUT(products), OUT(out), edges,
                               rows, items, dim, channels, width))
  return 0;
}

EXPORT Int both_sums(const void* x, const void* g, const void* weight, const Int* senders, const Int* receivers,
                     const Int* pair, void* sent, void* received, Int edges, Int columns, Int rows, Int dim,
                     Int channels, Int width, Int bytes) {
  WITH_TYPE(both_sums_of(IN(x), IN(g), IN(weight), senders, receivers, pair, OUT(sent), OUT(received), edges, columns,
                         rows, dim, channels, width))
  return 0;
}

EXPORT Int edge_dot(const void* x, const void* g, const Int* senders, const Int* receivers, void* out, Int edges,
                    Int width, Int bytes) {
  WITH_TYPE(dot_of(IN(x), IN(g), senders, receivers, OUT(out), edges, width))
  return 0;
}

EXPORT Int outer_sum(const void* messages, const void* directions, const Int* offsets, void* out, Int rows, Int dim,
                     Int channels, Int bytes) {
  WITH_TYPE(outer_sum_of(IN(messages), IN(directions), offsets, OUT(out), rows, dim, channels))
  return 0;
}

EXPORT Int along_directions(const void* directions, const void* vectors, const Int* receivers, void* out, Int edges,
                            Int dim, Int channels, Int bytes) {
  WITH_TYPE(along_directions_of(IN(directions), IN(vectors), receivers, OUT(out), edges, dim, channels))
  return 0;
}

EXPORT Int along_channels(const void* messages, const void* vectors, const Int* receivers, void* out, Int edges,
                          Int dim, Int channels, Int bytes) {
  WITH_TYPE(along_channels_of(IN(messages), IN(vectors), receivers, OUT(out), edges, dim, channels))
  return 0;
}

EXPORT Int sum_along(const void* x, const void* weight, const void* directions, const Int* senders, const Int* offsets,
                     const Int* pair, void* out, Int rows, Int dim, Int channels, Int bytes) {
  WITH_TYPE(sum_along_of(IN(x), IN(weight), IN(directions), senders, offsets, pair, OUT(out), rows, dim, channels))
  return 0;
}

EXPORT Int collect_along(const void* weight, const void* directions, const void* vectors, const Int* senders,
                         const Int* receivers, const Int* pair, void* out, Int edges, Int columns, Int dim,
                         Int channels, Int bytes) {
  WITH_TYPE(collect_along_of(IN(weight), IN(directions), IN(vectors), senders, receivers, pair, OUT(out), edges,
                             columns, dim, channels))
  return 0;
}

EXPORT Int multiply_along(const void* x, const void* directions, const void* vectors, const Int* senders,
                          const Int* receivers, const Int* pair, void* out, Int edges, Int weights, Int dim,
                          Int channels, Int bytes) {
  WITH_TYPE(multiply_along_of(IN(x), IN(directions), IN(vectors), senders, receivers, pair, OUT(out), edges, weights,
                              dim, channels))
  return 0;
}

EXPORT Int contract_along(const void* x, const void* weight, const void* vectors, const Int* senders,
                          const Int* receivers, const Int* pair, void* out, Int edges, Int dim, Int channels,
                          Int bytes) {
  WITH_TYPE(contract_along_of(IN(x), IN(weight), IN(vectors), senders, receivers, pair, OUT(out), edges, dim,
                              channels))
  return 0;
}

EXPORT Int along_gradient(const void* x, const void* weight, const void* directions, const void* vectors,
                          const Int* senders, const Int* receivers, const Int* pair, void* for_x, void* for_weight,
                          void* for_directions, Int edges, Int columns, Int weights, Int dim, Int channels, Int bytes) {
  WITH_TYPE(along_gradient_of(IN(x), IN(weight), IN(directions), IN(vectors), senders, receivers, pair, OUT(for_x),
                              OUT(for_weight), OUT(for_directions), edges, columns, weights, dim, channels))
  return 0;
}

EXPORT Int gather_add(const void* received, const void* sent, const void* given, const Int* senders,
                      const Int* receivers, const Int* pair, void* out, Int edges, Int width, Int bytes) {
  WITH_TYPE(gather_add_of(IN(received), IN(sent), IN(given), senders, receivers, pair, OUT(out), edges, width))
  return 0;
}

EXPORT Int scatter_sum(const void* messages, const Int* receivers, void* out, Int edges, Int nodes, Int width,
                       Int bytes) {
  WITH_TYPE(return scatter_sum_of(IN(messages), receivers, OUT(out), edges, nodes, width))
}

// 0 where receivers ascend and are nodes, as the next six trust
EXPORT Int ascends(const Int* receivers, Int edges, Int nodes, Int) {
  Int wrong = 0;
  for (Int e = 0; e + 1 < edges; ++e) wrong |= receivers[e] > receivers[e + 1];
  return wrong || (edges && (receivers[0] < 0 || receivers[edges - 1] >= nodes));
}

EXPORT Int statistics(const void* messages, const Int* receivers, void* mean, void* variance, void* low, void* high,
                      Int edges, Int nodes, Int width, Int bytes) {
  WITH_TYPE(statistics_of(IN(messages), receivers, OUT(mean), OUT(variance), OUT(low), OUT(high), edges, nodes, width))
  return 0;
}

EXPORT Int statistics_gradient(const void* messages, const Int* receivers, const void* mean, const void* low,
                               const void* high, const void* for_mean, const void* for_variance, const void* for_low,
                               const void* for_high, void* spare, void* out, Int edges, Int nodes, Int width,
                               Int bytes) {
  WITH_TYPE(statistics_gradient_of(IN(messages), receivers, IN(mean), IN(low), IN(high), IN(for_mean),
                                   IN(for_variance), IN(for_low), IN(for_high), OUT(spare), OUT(out), edges, nodes,
                                   width))
  return 0;
}

EXPORT Int holders(const void* messages, const Int* receivers, const void* value, Int* out, Int edges, Int nodes,
                   Int width, Int bytes) {
  WITH_TYPE(holders_of(IN(messages), receivers, IN(value), out, edges, nodes, width))
  return 0;
}

EXPORT Int softmax(const void* scores, const Int* receivers, void* spare, void* out, Int edges, Int width, Int bytes) {
  WITH_TYPE(softmax_of(IN(scores), receivers, OUT(spare), OUT(out), edges, width))
  return 0;
}

EXPORT Int softmax_gradient(const void* y, const void* u, const Int* receivers, void* spare, void* out, Int edges,
                            Int width, Int bytes) {
  WITH_TYPE(softmax_gradient_of(IN(y), IN(u), receivers, OUT(spare), OUT(out), edges, width))
  return 0;
}

EXPORT Int softmax_curvature(const void* y, const void* u, const void* v, const Int* receivers, void* spare, void* out,
                             Int edges, Int width, Int bytes) {
  WITH_TYPE(softmax_curvature_of(IN(y), IN(u), IN(v), receivers, OUT(spare), OUT(out), edges, width))
  return 0;
}

EXPORT Int pair_edges(const void* vectors, const Int* senders, const Int* receivers, const Int* offsets, Int* first,
                      Int* pair, Int edges, Int dim, Int bytes) {
  WITH_TYPE(return pair_edges_of(IN(vectors), senders, receivers, offsets, first, pair, edges, dim))
}

EXPORT Int silu_curvature(const void* x, const void* g, const void* u, void* out, Int count, Int bytes) {
  WITH_TYPE(silu_curvature_of(IN(x), IN(g), IN(u), OUT(out), count))
  return 0;
}

EXPORT Int silu_slope_gradient(const void* x, const void* g, const void* u, void* for_x, void* for_g, Int count,
                               Int bytes) {
  WITH_TYPE(silu_slope_gradient_of(IN(x), IN(g), IN(u), OUT(for_x), OUT(for_g), count))
  return 0;
}

EXPORT Int activated_sum(const void* a, const void* w, const Int* receivers, void* out, Int edges, Int rows,
                         Int channels, Int bytes) {
  WITH_TYPE(activated_sum_of(IN(a), IN(w), receivers, OUT(out), edges, rows, channels))
  return 0;
}

EXPORT Int activated_gradient(const void* a, const void* w, const void* g, const Int* receivers, void* for_a,
                              void* for_w, Int edges, Int channels, Int bytes) {
  WITH_TYPE(activated_gradient_of(IN(a), IN(w), IN(g), receivers, OUT(for_a), OUT(for_w), edges, channels))
  return 0;
}

EXPORT Int activated_second(const void* a, const void* w, const void* g, const void* u, const void* v,
                            const Int* receivers, void* for_a, void* for_w, void* for_g, Int edges, Int rows,
                            Int channels, Int bytes) {
  WITH_TYPE(activated_second_of(IN(a), IN(w), IN(g), IN(u), IN(v), receivers, OUT(for_a), OUT(for_w), OUT(for_g), edges,
                                rows, channels))
  return 0;
}

EXPORT Int power_sums(const void* x, const void* w, const Int* receivers, void* out, Int edges, Int rows, Int channels,
                      Int bytes) {
  WITH_TYPE(power_sums_of(IN(x), IN(w), receivers, OUT(out), edges, rows, channels))
  return 0;
}

EXPORT Int power_gradient(const void* x, const void* w, const void* g, const Int* receivers, void* for_x, void* for_w,
                          Int edges, Int rows, Int channels, Int bytes) {
  WITH_TYPE(power_gradient_of(IN(x), IN(w), IN(g), receivers, OUT(for_x), OUT(for_w), edges, rows, channels))
  return 0;
}

EXPORT Int power_second(const void* x, const void* w, const void* g, const void* u, const void* v, const Int* receivers,
                        void* for_x, void* for_w, void* for_g, Int edges, Int rows, Int channels, Int bytes) {
  WITH_TYPE(power_second_of(IN(x), IN(w), IN(g), IN(u), IN(v), receivers, OUT(for_x), OUT(for_w), OUT(for_g), edges,
                            rows, channels))
  return 0;
}

EXPORT Int table_value(const void* x, const void* knots, const void* per_step, void* out, Int items, Int intervals,
                       Int channels, Int bytes) {
  WITH_TYPE(table_value_of(IN(x), IN(knots), IN(per_step), OUT(out), items, intervals, channels))
  return 0;
}

EXPORT Int table_slope(const void* x, const void* g, const void* knots, const void* per_step, void* out, Int items,
                       Int intervals, Int channels, Int bytes) {
  WITH_TYPE(table_slope_of(IN(x), IN(g), IN(knots), IN(per_step), OUT(out), items, intervals, channels))
  return 0;
}

// Raised with every change of a signature or a meaning: a library built from another version is not used.
extern "C" Int version() { return 13; }
