// Functions from a table of values and slopes, for csr.cpp.

#pragma once

#include "vectors.h"

// How far x lies between two knots, from 0 to 1, and which; false where x is outside the table or no number.
template <typename T>
INLINE bool place_of(T x, T per_step, Int intervals, Int* number, T* t) {
  const T place = x * per_step;
  const bool within = place >= 0 && place <= static_cast<T>(intervals);
  const T kept = within ? place : (place > 0 ? static_cast<T>(intervals) : 0);
  const Int whole = static_cast<Int>(kept);
  *number = whole < intervals ? whole : intervals - 1;
  *t = place != place ? place : kept - static_cast<T>(*number);  // NaN stays NaN
  return within;
}

// out[i, c] = F_c(x[i]), with knots[k, :, c] the value at knot k, what it rises by to the next one, and its slope times their
// distance. Sums of small numbers are added to a value last, so that little is lost.
template <typename T>
INLINE void table_value_of(const T* x, const T* knots, const T* per_step, T* out, Int items, Int intervals,
                           Int channels) {
  for (Int i = 0; i < items; ++i) {
    Int number;
    T t;
    place_of(x[i], *per_step, intervals, &number, &t);
    const T u = 1 - t;
    const T rise = t * t * (3 - 2 * t), low = u * u * t, high = -t * t * u;
    const T* __restrict row = knots + number * 3 * channels;
    T* __restrict mine = out + i * channels;
    for (Int c = 0; c < channels; ++c)
      mine[c] = row[c] + (rise * row[channels + c] + (low * row[2 * channels + c] + high * row[5 * channels + c]));
  }
}

// out[i] = sum over c of g[i, c] F_c'(x[i]); zero outside the table
template <typename T>
INLINE void table_slope_of(const T* x, const T* g, const T* knots, const T* per_step, T* out, Int items, Int intervals,
                           Int channels) {
  for (Int i = 0; i < items; ++i) {
    Int number;
    T t;
    const bool within = place_of(x[i], *per_step, intervals, &number, &t);
    const T u = 1 - t;
    const T* row = knots + number * 3 * channels;
    const T* mine = g + i * channels;
    const T rise = 6 * t * u * dot(mine, row + channels, channels);
    const T low = u * (1 - 3 * t) * dot(mine, row + 2 * channels, channels);
    const T high = t * (3 * t - 2) * dot(mine, row + 5 * channels, channels);
    out[i] = within || t != t ? (rise + (low + high)) * *per_step : 0;
  }
}
