// Operations on the channels of one node or edge, for the loops of csr.cpp; each compiler vectorises them for every clone.

#pragma once

#include <cstdint>

#if defined(__x86_64__) && defined(__GLIBC__)  // the loader chooses the instructions that the machine has
#define EXPORT extern "C" __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EXPORT extern "C"
#endif
#define MEMBER inline __attribute__((always_inline))  // into every clone
#define INLINE static MEMBER

// Do CALL with T = float or T = double.
#define WITH_TYPE(CALL)            \
  if (bytes == sizeof(float)) {    \
    using T = float;               \
    CALL;                          \
  } else {                         \
    using T = double;              \
    CALL;                          \
  }

using Int = int64_t;

template <typename T>
INLINE void clear(T* out, Int count) {
  for (Int c = 0; c < count; ++c) out[c] = 0;
}

template <typename T>
INLINE void add(T* __restrict out, const T* __restrict x, Int count) {
  for (Int c = 0; c < count; ++c) out[c] += x[c];
}

// out[c] = 0 + x[c], the bits of adding to zero: -0 becomes 0
template <typename T>
INLINE void begin_with(T* __restrict out, const T* __restrict x, Int count) {
  for (Int c = 0; c < count; ++c) out[c] = 0 + x[c];
}

template <typename T>
INLINE void add_scaled(T* __restrict out, const T* __restrict x, T factor, Int count) {
  for (Int c = 0; c < count; ++c) out[c] += factor * x[c];
}

template <typename T>
INLINE void add_product(T* __restrict out, const T* __restrict x, const T* __restrict y, Int count) {
  for (Int c = 0; c < count; ++c) out[c] += x[c] * y[c];
}

template <typename T>
INLINE T dot(const T* __restrict x, const T* __restrict y, Int count) {
  constexpr Int LANES = 16;
  T strands[LANES] = {};
  Int c = 0;
  for (; c + LANES <= count; c += LANES)
    for (Int lane = 0; lane < LANES; ++lane) strands[lane] += x[c + lane] * y[c + lane];
  for (Int lane = 0; c < count; ++c, ++lane) strands[lane] += x[c] * y[c];
  for (Int half = LANES / 2; half; half /= 2)
    for (Int lane = 0; lane < half; ++lane) strands[lane] += strands[lane + half];
  return strands[0];
}

// sum of x[c], in the strands of a dot product
template <typename T>
INLINE T total(const T* __restrict x, Int count) {
  constexpr Int LANES = 16;
  T strands[LANES] = {};
  Int c = 0;
  for (; c + LANES <= count; c += LANES)
    for (Int lane = 0; lane < LANES; ++lane) strands[lane] += x[c + lane];
  for (Int lane = 0; c < count; ++c, ++lane) strands[lane] += x[c];
  for (Int half = LANES / 2; half; half /= 2)
    for (Int lane = 0; lane < half; ++lane) strands[lane] += strands[lane + half];
  return strands[0];
}

constexpr Int BLOCK = 64;  // channels whose products are kept beside the sums

// product[c] = x[c] * y[c]
template <typename T>
INLINE void multiply(T* __restrict product, const T* __restrict x, const T* __restrict y, Int count) {
  for (Int c = 0; c < count; ++c) product[c] = x[c] * y[c];
}

// product[c] = 0 + x[c] * y[c], the bits of adding to zero: -0 becomes 0
template <typename T>
INLINE void begin_with_product(T* __restrict product, const T* __restrict x, const T* __restrict y, Int count) {
  for (Int c = 0; c < count; ++c) product[c] = 0 + x[c] * y[c];
}

// along[c] = sum over a of direction[a] * vector[a, c], in which rows of channels are stride apart
template <typename T>
INLINE void project(T* __restrict along, const T* __restrict direction, const T* __restrict vector, Int dim, Int stride,
                    Int count) {
  for (Int c = 0; c < count; ++c) along[c] = direction[0] * vector[c];
  for (Int a = 1; a < dim; ++a) add_scaled(along, vector + a * stride, direction[a], count);
}

INLINE Int block_at(Int begin, Int channels) { return channels - begin < BLOCK ? channels - begin : BLOCK; }

// out[c] = the message that comes before all others, of those from begin to end; zero without any, NaN where one is NaN
template <typename T, typename Before>
INLINE void extreme(const T* messages, T* __restrict out, Int begin, Int end, Int width, Before before) {
  for (Int c = 0; c < width; ++c) out[c] = begin < end ? messages[begin * width + c] : 0;
  for (Int e = begin + 1; e < end; ++e) {
    const T* __restrict message = messages + e * width;
    for (Int c = 0; c < width; ++c) {
      const T x = message[c];
      out[c] = before(x, out[c]) || x != x ? x : out[c];
    }
  }
}

// Adds gradient[c] to the first message that equals value[c], of those from begin to end.
template <typename T>
INLINE void add_to_first(const T* messages, const T* __restrict value, const T* gradient, T* __restrict left, T* out,
                         Int begin, Int end, Int width) {
  for (Int c = 0; c < width; ++c) left[c] = gradient[c];
  for (Int e = begin; e < end; ++e) {
    const T* __restrict message = messages + e * width;
    T* __restrict mine = out + e * width;
    for (Int c = 0; c < width; ++c) {
      const bool holds = message[c] == value[c];
      mine[c] += holds ? left[c] : 0;
      left[c] = holds ? 0 : left[c];
    }
  }
}

// The weight of edge e: its own, or that of its pair where edges have one together.
INLINE Int weight_of(const Int* pair, Int e) { return pair ? pair[e] : e; }

// Sums of edges into the weight of their pair. Pairs are mostly numbered as edges meet them: then the first edge of a pair
// writes what the others add to, and nothing is cleared.
struct PairSums {
  const Int* pair;
  Int met;  // pairs that have been written; -1 where all are cleared

  // Adds x * y to the weight of edge e, which is at mine. An edge that is no pair's writes it.
  template <typename T>
  MEMBER void add(T* mine, const T* x, const T* y, Int e, Int count) {
    if (!pair)
      multiply(mine, x, y, count);
    else if (pair[e] == met)
      begin_with_product(mine, x, y, count);
    else
      add_product(mine, x, y, count);
  }

  // Whether edge e writes its weight, which others may add to.
  MEMBER bool writes(Int e) const { return !pair || pair[e] == met; }

  // Called when all channels of edge e are done.
  MEMBER void pass(Int e) { met += pair && pair[e] == met; }
};

INLINE bool numbered_as_met(const Int* pair, Int edges, Int weights) {
  Int met = 0;
  for (Int e = 0; e < edges; ++e) {
    if (pair[e] > met || pair[e] < 0) return false;
    met += pair[e] == met;
  }
  return met == weights;
}

template <typename T>
INLINE PairSums begin_pair_sums(const Int* pair, T* out, Int edges, Int weights, Int channels) {
  const bool cleared = edges ? pair && !numbered_as_met(pair, edges, weights) : true;  // an empty array is null
  if (cleared) clear(out, weights * channels);
  return {pair, cleared ? -1 : 0};
}
