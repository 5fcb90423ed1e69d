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
#include "table.h"
#include "trilinear.h"
#include "vectors.h"

// The edge behind the last that row i receives, from the first on; receivers ascend.
INLINE Int end_of(const Int* receivers, Int begin, Int edges, Int i) {
  Int end = begin;
  while (end < edges && receivers[end] == i) ++end;
  return end;
}

// out[e] = sum over c of x[senders[e], c] * g[receivers[e], c]
template <typename T>
INLINE void edge_dot_of(const T* x, const T* g, const Int* senders, const Int* receivers, T* out, Int edges, Int width) {
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

// An array of a call, as the type that its loop says.
struct Array {
  void* begin;

  template <typename T>
  MEMBER operator T*() const {
    return static_cast<T*>(begin);
  }
};

#define ARRAYS1 void* a
#define ARRAYS2 ARRAYS1, void* b
#define ARRAYS3 ARRAYS2, void* c
#define ARRAYS4 ARRAYS3, void* d
#define ARRAYS5 ARRAYS4, void* e
#define ARRAYS6 ARRAYS5, void* f
#define ARRAYS7 ARRAYS6, void* g
#define ARRAYS8 ARRAYS7, void* h
#define ARRAYS9 ARRAYS8, void* i
#define ARRAYS10 ARRAYS9, void* j
#define ARRAYS11 ARRAYS10, void* k
#define PASSED1 Array{a}
#define PASSED2 PASSED1, Array{b}
#define PASSED3 PASSED2, Array{c}
#define PASSED4 PASSED3, Array{d}
#define PASSED5 PASSED4, Array{e}
#define PASSED6 PASSED5, Array{f}
#define PASSED7 PASSED6, Array{g}
#define PASSED8 PASSED7, Array{h}
#define PASSED9 PASSED8, Array{i}
#define PASSED10 PASSED9, Array{j}
#define PASSED11 PASSED10, Array{k}
#define SIZES1 Int p
#define SIZES2 SIZES1, Int q
#define SIZES3 SIZES2, Int r
#define SIZES4 SIZES3, Int s
#define SIZES5 SIZES4, Int t
#define SIZES6 SIZES5, Int u
#define COUNTS1 p
#define COUNTS2 COUNTS1, q
#define COUNTS3 COUNTS2, r
#define COUNTS4 COUNTS3, s
#define COUNTS5 COUNTS4, t
#define COUNTS6 COUNTS5, u

// NAME takes so many arrays and sizes, then the bytes of one number; a CHECKED loop returns 1 where it does not serve its input.
#define LOOP(NAME, A, S)                              \
  EXPORT Int NAME(ARRAYS##A, SIZES##S, Int bytes) {   \
    WITH_TYPE(NAME##_of<T>(PASSED##A, COUNTS##S))     \
    return 0;                                         \
  }
#define CHECKED_LOOP(NAME, A, S)                      \
  EXPORT Int NAME(ARRAYS##A, SIZES##S, Int bytes) {   \
    WITH_TYPE(return NAME##_of<T>(PASSED##A, COUNTS##S)) \
  }

LOOP(weighted_sum, 6, 5)
LOOP(edge_product, 6, 5)
LOOP(sum_and_product, 8, 6)
LOOP(both_sums, 8, 6)
LOOP(edge_dot, 5, 2)
LOOP(outer_sum, 4, 3)
LOOP(along_directions, 4, 3)
LOOP(along_channels, 4, 3)
LOOP(sum_along, 7, 3)
LOOP(collect_along, 7, 4)
LOOP(multiply_along, 7, 4)
LOOP(contract_along, 7, 3)
LOOP(along_gradient, 10, 5)
LOOP(gather_add, 7, 2)
CHECKED_LOOP(scatter_sum, 3, 3)
LOOP(statistics, 6, 3)
LOOP(statistics_gradient, 11, 3)
LOOP(holders, 4, 3)
CHECKED_LOOP(pair_edges, 6, 2)
LOOP(silu_slope_gradient, 5, 1)
LOOP(activated_sum, 4, 3)
LOOP(activated_gradient, 6, 2)
LOOP(activated_second, 9, 3)
LOOP(power_sums, 4, 3)
LOOP(power_gradient, 6, 3)
LOOP(power_second, 9, 3)
LOOP(table_value, 4, 3)
LOOP(table_slope, 5, 3)

// 0 where receivers ascend and are nodes, as loops over the rows of messages trust
EXPORT Int ascends(const Int* receivers, Int edges, Int nodes, Int) {
  Int wrong = 0;
  for (Int e = 0; e + 1 < edges; ++e) wrong |= receivers[e] > receivers[e + 1];
  return wrong || (edges && (receivers[0] < 0 || receivers[edges - 1] >= nodes));
}

// Raised with every change of a signature or a meaning: a library built from another version is not used.
extern "C" Int version() { return 13; }
