#pragma once

#include "bench/stream_table.hpp"

// The loops, compiled by one file per instruction set. V::Vector is a vector of floats; the loops
// work on four vectors at a time. The namespace is unnamed because no two files may share an
// instantiation.
namespace mpips {
namespace {

constexpr std::size_t n_unrolled = 4;

// Call body(i, Vector()) for whole vectors, four at a time, and body(i, float()) for each float of
// the rest.
template <class V, class Body>
inline void for_each(std::size_t n, Body body) noexcept {
  using Vector = typename V::Vector;
  constexpr std::size_t width = sizeof(Vector) / sizeof(float);
  std::size_t i = 0;
  for (; i + n_unrolled * width <= n; i += n_unrolled * width) {
#pragma GCC unroll 4
    for (std::size_t k = 0; k < n_unrolled; ++k) body(i + k * width, Vector());
  }
  for (; i < n; ++i) body(i, 0.0F);
}

template <class T>
inline T load(const float* p) noexcept {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

template <class T>
inline void store(float* p, T value) noexcept {
  __builtin_memcpy(p, &value, sizeof value);
}

template <class V>
void in_place(float* x, float a, std::size_t n) noexcept {
  for_each<V>(n, [=](std::size_t i, auto kind) { store(x + i, load<decltype(kind)>(x + i) * a); });
}

template <class V>
void sum(float* dst, const float* src, std::size_t n) noexcept {
  for_each<V>(n, [=](std::size_t i, auto kind) {
    using T = decltype(kind);
    store(dst + i, load<T>(dst + i) + load<T>(src + i));
  });
}

template <class V>
void triad(float* a, const float* b, const float* c, float s, std::size_t n) noexcept {
  for_each<V>(n, [=](std::size_t i, auto kind) {
    using T = decltype(kind);
    store(a + i, load<T>(b + i) + s * load<T>(c + i));
  });
}

template <class V>
void triad_past_cache(float* a, const float* b, const float* c, float s, std::size_t n) noexcept {
  for_each<V>(n, [=](std::size_t i, auto kind) {
    using T = decltype(kind);
    V::store_past_cache(a + i, load<T>(b + i) + s * load<T>(c + i));
  });
  V::fence();
}

template <class V, std::size_t n_state>
void touch(float* w, float* s0, float* s1, const float* g, std::size_t n) noexcept {
  for_each<V>(n, [=](std::size_t i, auto kind) {
    using T = decltype(kind);
    const T gradient = load<T>(g + i);
    store(w + i, load<T>(w + i) + gradient);
    if (n_state > 0) store(s0 + i, load<T>(s0 + i) + gradient);
    if (n_state > 1) store(s1 + i, load<T>(s1 + i) + gradient);
  });
}

template <class V>
constexpr StreamTable stream_table_of(const char* name,
                                      decltype(StreamTable::triad_past_cache) past_cache) {
  return {name, in_place<V>, sum<V>, triad<V>, past_cache, {touch<V, 0>, touch<V, 1>, touch<V, 2>}};
}

}  // namespace
}  // namespace mpips
