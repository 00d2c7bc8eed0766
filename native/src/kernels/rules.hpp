#pragma once

#include "kernels/kernel_types.hpp"

// The optimizers' rules over a vector type V, in the order of operations that
// mpips/kernels/reference.py defines. A rule takes the gradient and changes the weight and up to
// two states. Sums and means of squares stay finite because the gradient is bounded
// (optimizer_config.cpp). The namespace is unnamed for the reason given in loops.hpp.
// loops.hpp.
namespace mpips {
namespace {

// The steps that every gradient passes before its rule: scale, clip (NaN stays NaN), coupled decay.
template <class V>
struct Gradient {
  V scale, bound, decay;
  explicit Gradient(const UpdateArgs& a) noexcept
      : scale(V::set(a.gradient_scale)),
        bound(V::set(a.clip_value)),
        decay(V::set(a.coupled_decay)) {}
  V operator()(V g, V w) const noexcept {
    g = g * scale;
    g = max(-bound, min(bound, g));
    return g + decay * w;
  }
};

template <class V>
struct Sgd {
  static constexpr std::size_t n_state = 0;
  V lr;
  explicit Sgd(const UpdateArgs& a) noexcept : lr(V::set(a.lr)) {}
  void operator()(V g, V& w, V&, V&) const noexcept { w = w - lr * g; }
};

template <class V>
struct Momentum {
  static constexpr std::size_t n_state = 1;
  V lr, mu;
  explicit Momentum(const UpdateArgs& a) noexcept : lr(V::set(a.lr)), mu(V::set(a.momentum)) {}
  void operator()(V g, V& w, V& m, V&) const noexcept {
    m = mu * m + g;
    w = w - lr * m;
  }
};

template <class V>
struct Nesterov {
  static constexpr std::size_t n_state = 1;
  V lr, mu;
  explicit Nesterov(const UpdateArgs& a) noexcept : lr(V::set(a.lr)), mu(V::set(a.momentum)) {}
  void operator()(V g, V& w, V& m, V&) const noexcept {
    m = mu * m + g;
    w = w - lr * (g + mu * m);
  }
};

template <class V>
struct Adagrad {
  static constexpr std::size_t n_state = 1;
  V lr, eps;
  explicit Adagrad(const UpdateArgs& a) noexcept : lr(V::set(a.lr)), eps(V::set(a.eps)) {}
  void operator()(V g, V& w, V& s, V&) const noexcept {
    s = s + g * g;
    w = w - lr * g / (sqrt(s) + eps);
  }
};

template <class V>
struct RmsProp {
  static constexpr std::size_t n_state = 1;
  V lr, eps, decay, rest;
  explicit RmsProp(const UpdateArgs& a) noexcept
      : lr(V::set(a.lr)), eps(V::set(a.eps)), decay(V::set(a.decay2)), rest(V::set(a.rest2)) {}
  void operator()(V g, V& w, V& s, V&) const noexcept {
    s = decay * s + rest * (g * g);
    w = w - lr * g / (sqrt(s) + eps);
  }
};

template <class V>
struct Adam {
  static constexpr std::size_t n_state = 2;
  V lr, eps, decay1, rest1, decay2, rest2, root_scale;
  explicit Adam(const UpdateArgs& a) noexcept
      : lr(V::set(a.lr)),
        eps(V::set(a.eps)),
        decay1(V::set(a.decay1)),
        rest1(V::set(a.rest1)),
        decay2(V::set(a.decay2)),
        rest2(V::set(a.rest2)),
        root_scale(V::set(a.root_scale)) {}
  void operator()(V g, V& w, V& m, V& v) const noexcept {
    m = decay1 * m + rest1 * g;
    v = decay2 * v + rest2 * (g * g);
    w = w - lr * m / (sqrt(v) * root_scale + eps);
  }
};

template <class V>
struct AdamW {
  static constexpr std::size_t n_state = 2;
  Adam<V> adam;
  V decay;
  explicit AdamW(const UpdateArgs& a) noexcept : adam(a), decay(V::set(a.decoupled_decay)) {}
  void operator()(V g, V& w, V& m, V& v) const noexcept {
    w = w - decay * w;
    adam(g, w, m, v);
  }
};

// FTRL-proximal (McMahan et al., KDD 2013). At its first nonzero gradient (n == 0 before) a weight
// gets the z whose solution is the weight, so that training continues from the initial value. Until
// then (n is still 0) weight and z do not change.
template <class V>
struct Ftrl {
  static constexpr std::size_t n_state = 2;
  V rate, inverse_lr, l1, l2, beta;
  explicit Ftrl(const UpdateArgs& a) noexcept
      : rate(V::set(a.rate)),
        inverse_lr(V::set(a.inverse_lr)),
        l1(V::set(a.l1)),
        l2(V::set(a.l2)),
        beta(V::set(a.beta)) {}
  V curvature(V root) const noexcept { return (beta + root) * inverse_lr + l2; }
  // Return the z whose solution is w while n is 0.
  V start(V w) const noexcept {
    const V z = -(w * curvature(V::zero())) - copysign(l1, w);
    return select(equal(w, V::zero()), V::zero(), z);
  }
  // Return the weight of z: minus the part of z beyond l1 on either side, divided by the curvature;
  // exactly 0 where |z| <= l1.
  V solution(V z, V root) const noexcept { return (max(-l1, min(l1, z)) - z) / curvature(root); }
  void operator()(V g, V& w, V& z, V& n) const noexcept {
    const V n_new = n + g * g;
    const V root = sqrt(n_new);
    const V sigma = (root - sqrt(n)) * inverse_lr;
    const V z_old = select(equal(n, V::zero()), start(w), z);
    const auto untouched = equal(n_new, V::zero());
    z = select(untouched, z, z_old + rate * g - sigma * w);
    w = select(untouched, w, solution(z, root));
    n = n_new;
  }
};

}  // namespace
}  // namespace mpips
