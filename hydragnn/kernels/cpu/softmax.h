// Shares of exponentials among the edges of a row, and their derivatives, for csr.cpp. Receivers ascend, so that a row's
// numbers lie side by side: exponentials are taken of all of them at once, however few channels there are.

#pragma once

#include "elementwise.h"

// The edge behind the last that row i receives, from the first on; receivers ascend.
INLINE Int end_of(const Int* receivers, Int begin, Int edges, Int i) {
  Int end = begin;
  while (end < edges && receivers[end] == i) ++end;
  return end;
}

// out[c] = sum of x[e, c] * y[e, c] over the edges from begin to end
template <typename T>
INLINE void dot_of_rows(const T* x, const T* y, T* out, Int begin, Int end, Int width) {
  clear(out, width);
  for (Int e = begin; e < end; ++e) add_product(out, x + e * width, y + e * width, width);
}

// out[e, c] = exp(scores[e, c] - largest) / sum of the same over the edges of a row
template <typename T>
INLINE void softmax_of(const T* scores, const Int* receivers, T* spare, T* out, Int edges, Int width) {
  for (Int begin = 0, end; begin < edges; begin = end) {
    end = end_of(receivers, begin, edges, receivers[begin]);
    extreme(scores, spare, begin, end, width, [](T x, T y) { return x > y; });
    for (Int e = begin; e < end; ++e) {
      const T* __restrict score = scores + e * width;
      T* __restrict mine = out + e * width;
      for (Int c = 0; c < width; ++c) mine[c] = score[c] - spare[c];
    }
    exponentials(out + begin * width, (end - begin) * width);
    clear(spare, width);
    for (Int e = begin; e < end; ++e) add(spare, out + e * width, width);
    for (Int e = begin; e < end; ++e) {
      T* __restrict mine = out + e * width;
      for (Int c = 0; c < width; ++c) mine[c] /= spare[c];
    }
  }
}

// out[e, c] = y[e, c] * (u[e, c] - sum of y u over the edges of the row): what scores receive when u arrives for their shares y
template <typename T>
INLINE void softmax_gradient_of(const T* y, const T* u, const Int* receivers, T* spare, T* out, Int edges, Int width) {
  for (Int begin = 0, end; begin < edges; begin = end) {
    end = end_of(receivers, begin, edges, receivers[begin]);
    dot_of_rows(y, u, spare, begin, end, width);
    for (Int e = begin; e < end; ++e) {
      const T* __restrict share = y + e * width;
      const T* __restrict arrived = u + e * width;
      T* __restrict mine = out + e * width;
      for (Int c = 0; c < width; ++c) mine[c] = share[c] * (arrived[c] - spare[c]);
    }
  }
}

// out[e, c] = u v - v * (sum of y u) - u * (sum of y v): what shares y receive when v arrives for the gradient above
template <typename T>
INLINE void softmax_curvature_of(const T* y, const T* u, const T* v, const Int* receivers, T* spare, T* out, Int edges,
                                 Int width) {
  T* of_u = spare;
  T* of_v = spare + width;
  for (Int begin = 0, end; begin < edges; begin = end) {
    end = end_of(receivers, begin, edges, receivers[begin]);
    dot_of_rows(y, u, of_u, begin, end, width);
    dot_of_rows(y, v, of_v, begin, end, width);
    for (Int e = begin; e < end; ++e) {
      const T* __restrict left = u + e * width;
      const T* __restrict right = v + e * width;
      T* __restrict mine = out + e * width;
      for (Int c = 0; c < width; ++c) mine[c] = left[c] * right[c] - right[c] * of_u[c] - left[c] * of_v[c];
    }
  }
}
