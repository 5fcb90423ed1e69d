// Squares of deviations and fourth powers of their one-sided growth, summed with weights; see powers.py.

#pragma once

#include <cmath>

#include "vectors.h"

// f_k(x), k = 0, 1, 2: x^2, t^4 and t^-4 with t = r + x, r = sqrt(1 + x^2); of t and 1 / t = r - x the larger is no difference
template <typename T>
struct Powers {
  T root, squared, up, down;

  MEMBER explicit Powers(T x) : squared(x * x) {
    root = std::sqrt(1 + squared);
    T large = root + (x < 0 ? -x : x), small = 1 / large;
    large *= large, small *= small;
    large *= large, small *= small;
    up = x < 0 ? small : large, down = x < 0 ? large : small;
  }
};

// A sum's three rows of channels, each stride numbers after the other
template <typename T>
struct ThreeRows {
  T *first, *second, *third;

  MEMBER ThreeRows(T* begin, Int stride) : first(begin), second(begin + stride), third(begin + 2 * stride) {}
};

// rows[k, c] += w f_k(x[c])
template <typename T>
INLINE void add_powers(T* __restrict squares, T* __restrict up, T* __restrict down, const T* __restrict x, T w,
                       Int count) {
  for (Int c = 0; c < count; ++c) {
    const Powers<T> f(x[c]);
    squares[c] += w * f.squared;
    up[c] += w * f.up;
    down[c] += w * f.down;
  }
}

// out[k, receivers[e], c] = sum of w[e] f_k(x[e, c]) over the edges e
template <typename T>
INLINE void power_sums_of(const T* x, const T* w, const Int* receivers, T* out, Int edges, Int rows, Int channels) {
  clear(out, 3 * rows * channels);
  for (Int e = 0; e < edges; ++e) {
    const ThreeRows<T> sums(out + receivers[e] * channels, rows * channels);
    add_powers(sums.first, sums.second, sums.third, x + e * channels, w[e], channels);
  }
}

// value[c] = sum over k of g_k[c] f_k(x[c]), and out[c] = w times its slope: f' = 2 x, 4 t^4 / r, -4 t^-4 / r
template <typename T>
INLINE void powers_and_slope(T* __restrict value, T* __restrict out, const T* __restrict x,
                             const T* __restrict squares, const T* __restrict up, const T* __restrict down, T w,
                             Int count) {
  for (Int c = 0; c < count; ++c) {
    const Powers<T> f(x[c]);
    const T rising = up[c] * f.up, falling = down[c] * f.down;
    value[c] = squares[c] * f.squared + rising + falling;
    out[c] = w * (2 * squares[c] * x[c] + 4 * (rising - falling) / f.root);
  }
}

// for_x[e, c] = w[e] sum over k of g_k f_k'(x[e, c]), for_w[e] = sum over c and k of g_k f_k, g_k at the receiver of e
template <typename T>
INLINE void power_gradient_of(const T* x, const T* w, const T* g, const Int* receivers, T* for_x, T* for_w, Int edges,
                              Int rows, Int channels) {
  T value[BLOCK];
  for (Int e = 0; e < edges; ++e) {
    for_w[e] = 0;
    for (Int begin = 0; begin < channels; begin += BLOCK) {
      const Int count = block_at(begin, channels), at = e * channels + begin;
      const ThreeRows<const T> arrived(g + receivers[e] * channels + begin, rows * channels);
      powers_and_slope(value, for_x + at, x + at, arrived.first, arrived.second, arrived.third, w[e], count);
      for_w[e] += total(value, count);
    }
  }
}

// With y that arrived at x and v at w: slope[c] = y sum of g_k f_k', out[c] = sum of g_k (w y f_k'' + v f_k'), and
// rows[k, c] += w y f_k' + v f_k; f'' = 2, 4 t^4 (4 - x / r) / r^2, 4 t^-4 (4 + x / r) / r^2
template <typename T>
INLINE void second_of_powers(T* __restrict slope, T* __restrict out, T* __restrict to_squares, T* __restrict to_up,
                             T* __restrict to_down, const T* __restrict x, const T* __restrict y,
                             const T* __restrict squares, const T* __restrict up, const T* __restrict down, T w, T v,
                             Int count) {
  for (Int c = 0; c < count; ++c) {
    const Powers<T> f(x[c]);
    const T inverse = 1 / f.root, bend = x[c] * inverse, moved = w * y[c];
    const T rising = 4 * f.up * inverse, falling = -4 * f.down * inverse;
    const T first = 2 * squares[c] * x[c] + up[c] * rising + down[c] * falling;
    const T curved = 2 * squares[c] + (up[c] * rising * (4 - bend) - down[c] * falling * (4 + bend)) * inverse;
    slope[c] = y[c] * first;
    out[c] = moved * curved + v * first;
    to_squares[c] += moved * 2 * x[c] + v * f.squared;
    to_up[c] += moved * rising + v * f.up;
    to_down[c] += moved * falling + v * f.down;
  }
}

// What that receives when u arrives at for_x and v at for_w; for_g is summed over the edges of a row
template <typename T>
INLINE void power_second_of(const T* x, const T* w, const T* g, const T* u, const T* v, const Int* receivers, T* for_x,
                            T* for_w, T* for_g, Int edges, Int rows, Int channels) {
  T slope[BLOCK];
  clear(for_g, 3 * rows * channels);
  for (Int e = 0; e < edges; ++e) {
    for_w[e] = 0;
    for (Int begin = 0; begin < channels; begin += BLOCK) {
      const Int count = block_at(begin, channels), at = e * channels + begin, to = receivers[e] * channels + begin;
      const ThreeRows<const T> arrived(g + to, rows * channels);
      const ThreeRows<T> sums(for_g + to, rows * channels);
      second_of_powers(slope, for_x + at, sums.first, sums.second, sums.third, x + at, u + at, arrived.first,
                       arrived.second, arrived.third, w[e], v[e], count);
      for_w[e] += total(slope, count);
    }
  }
}
