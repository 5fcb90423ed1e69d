// Loops over the edges of every node, for kernels on a CPU: no [edges, channels] array is made on the way.
//
// Every function takes pointers to dense row-major arrays, then sizes, then the bytes of one number (4: float, 8: double);
// indices are int64 and trusted unless a function says otherwise. It returns 0, or 1 where it does not serve its input.
// Sums run in the order of the edges, one after the other, and products are rounded before they are added
// (-ffp-contract=off), so that every machine, vectorised or not, gives the bits of torch's index_add.
// Sums over channels run in LANES strands, whatever the machine.

#include <cstdint>

#if defined(__x86_64__) && defined(__GLIBC__)  // the loader chooses the instructions that the machine has
#define EXPORT extern "C" __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EXPORT extern "C"
#endif
#define INLINE static inline __attribute__((always_inline))  // into every clone

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

// out[i, a, c] = sum over k of row i of weight[order[k], c] * x[index[k], a, c]; order[k] = k where there is none
template <typename T>
INLINE void sum_rows_of(const T* x, const T* weight, const Int* index, const Int* offsets, const Int* order, T* out,
                        Int rows, Int dim, Int channels) {
  for (Int i = 0; i < rows; ++i) {
    T* mine = out + i * dim * channels;
    clear(mine, dim * channels);
    for (Int k = offsets[i]; k < offsets[i + 1]; ++k) {
      const T* other = x + index[k] * dim * channels;
      const T* factors = weight + (order ? order[k] : k) * channels;
      for (Int a = 0; a < dim; ++a) add_product(mine + a * channels, other + a * channels, factors, channels);
    }
  }
}

// out[e, c] = sum over a of x[senders[e], a, c] * g[receivers[e], a, c]
template <typename T>
INLINE void product_of(const T* x, const T* g, const Int* senders, const Int* receivers, T* out, Int edges, Int dim,
                       Int channels) {
  for (Int e = 0; e < edges; ++e) {
    const T* sent = x + senders[e] * dim * channels;
    const T* received = g + receivers[e] * dim * channels;
    T* __restrict mine = out + e * channels;
    for (Int c = 0; c < channels; ++c) mine[c] = sent[c] * received[c];
    for (Int a = 1; a < dim; ++a) add_product(mine, sent + a * channels, received + a * channels, channels);
  }
}

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

// out[receivers[e], c] = sum of messages[e, c], receivers in any order; returns 1 where one is not below nodes
template <typename T>
INLINE Int scatter_sum_of(const T* messages, const Int* receivers, T* out, Int edges, Int nodes, Int width) {
  clear(out, nodes * width);
  for (Int e = 0; e < edges; ++e) {
    if (receivers[e] < 0 || receivers[e] >= nodes) return 1;
    add(out + receivers[e] * width, messages + e * width, width);
  }
  return 0;
}

#define IN(array) static_cast<const T*>(array)
#define OUT(array) static_cast<T*>(array)

EXPORT Int sum_rows(const void* x, const void* weight, const Int* index, const Int* offsets, const Int* order,
                    void* out, Int rows, Int dim, Int channels, Int bytes) {
  WITH_TYPE(sum_rows_of(IN(x), IN(weight), index, offsets, order, OUT(out), rows, dim, channels))
  return 0;
}

EXPORT Int edge_product(const void* x, const void* g, const Int* senders, const Int* receivers, void* out, Int edges,
                        Int dim, Int channels, Int bytes) {
  WITH_TYPE(product_of(IN(x), IN(g), senders, receivers, OUT(out), edges, dim, channels))
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

EXPORT Int scatter_sum(const void* messages, const Int* receivers, void* out, Int edges, Int nodes, Int width,
                       Int bytes) {
  WITH_TYPE(return scatter_sum_of(IN(messages), receivers, OUT(out), edges, nodes, width))
}

// Raised with every change of a signature or a meaning: a library built from another version is not used.
extern "C" Int version() { return 1; }
