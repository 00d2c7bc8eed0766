#pragma once

#include "kernels/kernel_types.hpp"
#include "kernels/rules.hpp"

// The loops, written once over a vector type V and compiled by scalar.cpp, avx2.cpp and avx512.cpp.
// V has `width` floats and the operations of IEEE 754, without fused multiply-add. The last,
// incomplete vector is loaded and stored under a mask, so that each element sees the same
// operations wherever a tensor is cut. Unnamed namespace: no two files may share an instantiation.
namespace mpips {
namespace {

template <class V, class Rule>
inline void update_vector(const Rule& rule, const Gradient<V>& gradient, float* w, float* s0,
                          float* s1, const float* g) noexcept {
  V weight = V::load(w);
  V a = Rule::n_state > 0 ? V::load(s0) : V::zero();
  V b = Rule::n_state > 1 ? V::load(s1) : V::zero();
  rule(gradient(V::load(g), weight), weight, a, b);
  weight.store(w);
  if (Rule::n_state > 0) a.store(s0);
  if (Rule::n_state > 1) b.store(s1);
}

template <class V, class Rule>
inline void update_tail(const Rule& rule, const Gradient<V>& gradient, float* w, float* s0,
                        float* s1, const float* g, std::size_t n) noexcept {
  V weight = V::load_first(w, n);
  V a = Rule::n_state > 0 ? V::load_first(s0, n) : V::zero();
  V b = Rule::n_state > 1 ? V::load_first(s1, n) : V::zero();
  rule(gradient(V::load_first(g, n), weight), weight, a, b);
  weight.store_first(w, n);
  if (Rule::n_state > 0) a.store_first(s0, n);
  if (Rule::n_state > 1) b.store_first(s1, n);
}

template <class V, template <class> class Rule>
void update(float* w, float* s0, float* s1, const float* g, std::size_t n,
            const UpdateArgs& args) noexcept {
  const Rule<V> rule(args);
  const Gradient<V> gradient(args);
  std::size_t i = 0;
  for (; i + V::width <= n; i += V::width)
    update_vector<V>(rule, gradient, w + i, Rule<V>::n_state > 0 ? s0 + i : nullptr,
                     Rule<V>::n_state > 1 ? s1 + i : nullptr, g + i);
  if (i < n)
    update_tail<V>(rule, gradient, w + i, Rule<V>::n_state > 0 ? s0 + i : nullptr,
                   Rule<V>::n_state > 1 ? s1 + i : nullptr, g + i, n - i);
}

template <class V>
void add(float* dst, const float* src, std::size_t n) noexcept {
  std::size_t i = 0;
  for (; i + V::width <= n; i += V::width) (V::load(dst + i) + V::load(src + i)).store(dst + i);
  const std::size_t rest = n - i;
  if (rest > 0)
    (V::load_first(dst + i, rest) + V::load_first(src + i, rest)).store_first(dst + i, rest);
}

template <class V>
void scale(float* dst, float a, std::size_t n) noexcept {
  const V factor = V::set(a);
  std::size_t i = 0;
  for (; i + V::width <= n; i += V::width) (V::load(dst + i) * factor).store(dst + i);
  if (i < n) (V::load_first(dst + i, n - i) * factor).store_first(dst + i, n - i);
}

template <class V>
bool all_finite(const float* src, std::size_t n) noexcept {
  const V greatest = V::set(__FLT_MAX__);
  std::size_t i = 0;
  for (; i + V::width <= n; i += V::width)
    if (!V::all(less_equal(abs(V::load(src + i)), greatest))) return false;
  return i == n || V::all(less_equal(abs(V::load_first(src + i, n - i)), greatest));
}

template <class V>
bool copy_finite(float* dst, const float* src, std::size_t n) noexcept {
  const V greatest = V::set(__FLT_MAX__);
  bool finite = true;
  std::size_t i = 0;
  for (; i + V::width <= n; i += V::width) {
    const V v = V::load(src + i);
    finite &= V::all(less_equal(abs(v), greatest));
    v.store(dst + i);
  }
  if (i == n) return finite;
  const V v = V::load_first(src + i, n - i);
  v.store_first(dst + i, n - i);
  return finite && V::all(less_equal(abs(v), greatest));
}

// For copies larger than the caches: the destination is not read before it is written. It must lie
// at a multiple of the vector's size.
template <class V>
bool stream_finite(float* dst, const float* src, std::size_t n) noexcept {
  const V greatest = V::set(__FLT_MAX__);
  bool finite = true;
  std::size_t i = 0;
  for (; i + V::width <= n; i += V::width) {
    const V v = V::load(src + i);
    finite &= V::all(less_equal(abs(v), greatest));
    v.stream(dst + i);
  }
  V::fence();
  return copy_finite<V>(dst + i, src + i, n - i) && finite;
}

template <class V>
inline V compensated(V g, V w, V base, V lambda) noexcept {
  return g + lambda * g * g * (w - base);
}

template <class V>
void compensate(float* out, const float* g, const float* w, const float* base, float lambda,
                std::size_t n) noexcept {
  const V l = V::set(lambda);
  std::size_t i = 0;
  for (; i + V::width <= n; i += V::width)
    compensated(V::load(g + i), V::load(w + i), V::load(base + i), l).store(out + i);
  const std::size_t rest = n - i;
  if (rest > 0)
    compensated(V::load_first(g + i, rest), V::load_first(w + i, rest),
                V::load_first(base + i, rest), l)
        .store_first(out + i, rest);
}

template <class V>
constexpr KernelTable table_of(const char* name) {
  return {name,
          {update<V, Sgd>, update<V, Momentum>, update<V, Nesterov>, update<V, Adagrad>,
           update<V, RmsProp>, update<V, Adam>, update<V, AdamW>, update<V, Ftrl>},
          add<V>,
          scale<V>,
          all_finite<V>,
          copy_finite<V>,
          stream_finite<V>,
          compensate<V>};
}

}  // namespace
}  // namespace mpips
