// Exponentials and SiLU with its derivatives, element by element, in arithmetic that every compiler vectorises: no call of a library's exp.

#pragma once

#include <cstring>

#include "vectors.h"

template <typename T>
struct Bits;
template <>
struct Bits<float> {
  using Whole = int32_t;
  static constexpr float LIMIT = 87, SHIFT = 12582912;  // 1.5 x 2^23: adding it rounds to a whole number
  static constexpr float LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
  static constexpr int MANTISSA = 23, TERMS = 7;
};
template <>
struct Bits<double> {
  using Whole = int64_t;
  static constexpr double LIMIT = 708, SHIFT = 6755399441055744;  // 1.5 x 2^52
  static constexpr double LN2_HIGH = 6.93145751953125e-1, LN2_LOW = 1.42860682030941723212e-6;
  static constexpr int MANTISSA = 52, TERMS = 13;
};

template <typename T>
constexpr T INVERSE_FACTORIAL[] = {1,
                                   1,
                                   static_cast<T>(1.0 / 2),
                                   static_cast<T>(1.0 / 6),
                                   static_cast<T>(1.0 / 24),
                                   static_cast<T>(1.0 / 120),
                                   static_cast<T>(1.0 / 720),
                                   static_cast<T>(1.0 / 5040),
                                   static_cast<T>(1.0 / 40320),
                                   static_cast<T>(1.0 / 362880),
                                   static_cast<T>(1.0 / 3628800),
                                   static_cast<T>(1.0 / 39916800),
                                   static_cast<T>(1.0 / 479001600),
                                   static_cast<T>(1.0 / 6227020800)};

// exp(y) for |y| <= LIMIT: 2^n exp(r) with n the whole number nearest to y / ln 2, and exp(r) by its Taylor series
template <typename T>
INLINE T exponential(T y) {
  using B = Bits<T>;
  const T shifted = y * static_cast<T>(1.4426950408889634) + B::SHIFT;
  const T n = shifted - B::SHIFT;
  const T r = (y - n * B::LN2_HIGH) - n * B::LN2_LOW;
  T series = INVERSE_FACTORIAL<T>[B::TERMS];
  for (int k = B::TERMS - 1; k >= 0; --k) series = series * r + INVERSE_FACTORIAL<T>[k];
  typename B::Whole power;
  std::memcpy(&power, &shifted, sizeof(T));
  power <<= B::MANTISSA;  // what SHIFT itself leaves in the lower bits is zero
  typename B::Whole bits;
  std::memcpy(&bits, &series, sizeof(T));
  bits += power;
  std::memcpy(&series, &bits, sizeof(T));
  return series;
}

// 1 / (1 + exp(-x))
template <typename T>
INLINE T sigmoid(T x) {
  using B = Bits<T>;
  T y = x > B::LIMIT ? -B::LIMIT : -x;  // NaN stays NaN
  y = y > B::LIMIT ? B::LIMIT : y;
  return 1 / (1 + exponential(y));
}

// What g silu'(x) receives when u arrives, silu' = s (1 + x (1 - s)), silu'' = s (1 - s) (2 + x (1 - 2 s)):
// for_x = g u silu''(x) and for_g = u silu'(x)
template <typename T>
INLINE void silu_slope_gradient_of(const T* __restrict x, const T* __restrict g, const T* __restrict u,
                                   T* __restrict for_x, T* __restrict for_g, Int count) {
  for (Int c = 0; c < count; ++c) {
    const T s = sigmoid(x[c]);
    for_x[c] = g[c] * u[c] * (s * (1 - s) * (2 + x[c] * (1 - 2 * s)));
    for_g[c] = u[c] * (s * (1 + x[c] * (1 - s)));
  }
}

// x times its sigmoid s, 0 where that has no normal number: NaN at minus infinity, as in torch
template <typename T>
INLINE T silu_of(T x, T s) {
  return x * (x < -Bits<T>::LIMIT ? 0 : s);
}

// out[c] += w silu(x[c])
template <typename T>
INLINE void add_silu(T* __restrict out, const T* __restrict x, T w, Int count) {
  for (Int c = 0; c < count; ++c) out[c] += w * silu_of(x[c], sigmoid(x[c]));
}

// out[receivers[e], c] = sum of w[e] silu(a[e, c]) over the edges e
template <typename T>
INLINE void activated_sum_of(const T* a, const T* w, const Int* receivers, T* out, Int edges, Int rows, Int channels) {
  clear(out, rows * channels);
  for (Int e = 0; e < edges; ++e) add_silu(out + receivers[e] * channels, a + e * channels, w[e], channels);
}

// value[c] = silu(x[c]) and out[c] = w g[c] silu'(x[c])
template <typename T>
INLINE void silu_and_slope(T* __restrict value, T* __restrict out, const T* __restrict x, const T* __restrict g, T w,
                           Int count) {
  for (Int c = 0; c < count; ++c) {
    const T s = sigmoid(x[c]);
    value[c] = silu_of(x[c], s);
    out[c] = w * g[c] * (s * (1 + x[c] * (1 - s)));
  }
}

// for_a[e, c] = w[e] g[i, c] silu'(a[e, c]) and for_w[e] = sum over c of g[i, c] silu(a[e, c]), with i the receiver of e
template <typename T>
INLINE void activated_gradient_of(const T* a, const T* w, const T* g, const Int* receivers, T* for_a, T* for_w,
                                  Int edges, Int channels) {
  T value[BLOCK];
  for (Int e = 0; e < edges; ++e) {
    for_w[e] = 0;
    for (Int begin = 0; begin < channels; begin += BLOCK) {
      const Int count = block_at(begin, channels), at = e * channels + begin;
      const T* arrived = g + receivers[e] * channels + begin;
      silu_and_slope(value, for_a + at, a + at, arrived, w[e], count);
      for_w[e] += dot(value, arrived, count);
    }
  }
}

// slope[c] = y[c] silu'(x[c]), out[c] = g[c] (w y[c] silu''(x[c]) + v silu'(x[c])) and row[c] += w slope[c] + v silu(x[c])
template <typename T>
INLINE void second_of_silu(T* __restrict slope, T* __restrict out, T* __restrict row, const T* __restrict x,
                           const T* __restrict y, const T* __restrict g, T w, T v, Int count) {
  for (Int c = 0; c < count; ++c) {
    const T s = sigmoid(x[c]), first = s * (1 + x[c] * (1 - s));
    slope[c] = y[c] * first;
    out[c] = g[c] * (w * y[c] * (s * (1 - s) * (2 + x[c] * (1 - 2 * s))) + v * first);
    row[c] += w * (y[c] * first) + v * silu_of(x[c], s);
  }
}

// What that receives when u arrives at for_a and v at for_w; for_g is summed over the edges of a row
template <typename T>
INLINE void activated_second_of(const T* a, const T* w, const T* g, const T* u, const T* v, const Int* receivers,
                                T* for_a, T* for_w, T* for_g, Int edges, Int rows, Int channels) {
  T slope[BLOCK];
  clear(for_g, rows * channels);
  for (Int e = 0; e < edges; ++e) {
    for_w[e] = 0;
    for (Int begin = 0; begin < channels; begin += BLOCK) {
      const Int count = block_at(begin, channels), at = e * channels + begin, to = receivers[e] * channels + begin;
      second_of_silu(slope, for_a + at, for_g + to, a + at, u + at, g + to, w[e], v[e], count);
      for_w[e] += dot(slope, g + to, count);
    }
  }
}
