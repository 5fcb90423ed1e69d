// Exponentials and SiLU's derivatives, element by element, in arithmetic that every compiler vectorises: no call of a library's exp.

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

// x = exp(x) of numbers that are not positive; 0 below -LIMIT, NaN where x is
template <typename T>
INLINE void exponentials(T* __restrict x, Int count) {
  using B = Bits<T>;
  for (Int c = 0; c < count; ++c) {
    const T value = exponential(x[c] < -B::LIMIT ? -B::LIMIT : x[c]);
    x[c] = x[c] < -B::LIMIT ? 0 : value;
  }
}

// out = g u silu''(x), silu'' = s (1 - s) (2 + x (1 - 2 s))
template <typename T>
INLINE void silu_curvature_of(const T* __restrict x, const T* __restrict g, const T* __restrict u, T* __restrict out,
                              Int count) {
  for (Int c = 0; c < count; ++c) {
    const T s = sigmoid(x[c]);
    out[c] = g[c] * u[c] * (s * (1 - s) * (2 + x[c] * (1 - 2 * s)));
  }
}

// What g silu'(x) receives when u arrives, silu' = s (1 + x (1 - s)): for_x = g u silu''(x) and for_g = u silu'(x)
template <typename T>
INLINE void silu_slope_gradient_of(const T* __restrict x, const T* __restrict g, const T* __restrict u,
                                   T* __restrict for_x, T* __restrict for_g, Int count) {
  for (Int c = 0; c < count; ++c) {
    const T s = sigmoid(x[c]);
    for_x[c] = g[c] * u[c] * (s * (1 - s) * (2 + x[c] * (1 - 2 * s)));
    for_g[c] = u[c] * (s * (1 + x[c] * (1 - s)));
  }
}
