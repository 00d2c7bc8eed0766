#pragma once

#include <cstddef>
#include <cstdint>

// The optimizers: their rules, and the list of them at the end, from which the kinds, the names and
// the tables of kernels follow. A new optimizer needs no other change in C++, except that
// `range_of` in optimizer_config.cpp must accept its hyperparameters.
//
// A rule is written over a vector type V, in the order of operations that
// mpips/kernels/reference.py defines. It takes the gradient and changes the weight and up to two
// states. Sums and means of squares stay finite because the gradient is bounded. The inner
// namespace is unnamed for the reason given in loops.hpp.
namespace mpips {

// The constants that the inner loops read; made by `prepare`. A rule reads only the fields it
// needs.
struct UpdateArgs {
  float gradient_scale;
  // gradients are clipped to it; off: a bound whose square is finite, or infinity
  float clip_value;
  float coupled_decay;    // gradient += coupled_decay * w
  float decoupled_decay;  // w -= decoupled_decay * w
  float lr;               // times `rate`; adam, adamw: also divided by the first bias correction
  float momentum;
  float decay1, rest1;  // first moment: beta1 and 1 - beta1
  float decay2, rest2;  // second moment: beta2 (rmsprop: rho) and 1 minus it
  // 1 / sqrt(second bias correction); row_adagrad: the divisor of the row, see row_rule.hpp
  float root_scale;
  float eps;
  float rate;  // factor of the learning rate by the policy for stale pushes; 1: none
  float inverse_lr;
  float l1, l2, beta;
  float share;  // delayed_nesterov: 1 / every
  bool is_due;  // delayed_nesterov: this update changes the momentum
  // Store the weights past the caches if they begin at a multiple of 64 bytes; they are complete
  // for all cores when the kernel returns. No kernel of rows does.
  bool past_caches;
};

namespace rules {
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

// The value is what was pushed, whatever it was before.
template <class V>
struct Replace {
  static constexpr std::size_t n_state = 0;
  V lr;
  explicit Replace(const UpdateArgs& a) noexcept : lr(V::set(a.lr)) {}
  void operator()(V g, V& w, V&, V&) const noexcept { w = lr * g; }
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

// Delayed Nesterov (Liu et al., arXiv 2401.09135, with c = 0). `is_due` is equal for all weights of
// a call, so the branch is predicted.
template <class V>
struct DelayedNesterov {
  static constexpr std::size_t n_state = 2;
  V lr, mu, share;
  bool is_due;
  explicit DelayedNesterov(const UpdateArgs& a) noexcept
      : lr(V::set(a.lr)), mu(V::set(a.momentum)), share(V::set(a.share)), is_due(a.is_due) {}
  void operator()(V g, V& w, V& m, V& sum) const noexcept {
    g = share * g;
    sum = sum + g;
    if (is_due) {
      m = mu * m + sum;
      w = w - lr * (g + mu * m);
      sum = V::set(0.0F);
    } else {
      w = w - lr * g;
    }
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

// Row-wise Adagrad; `divisor` is that of the whole row.
template <class V>
struct RowAdagrad {
  static constexpr std::size_t n_state = 0;
  V lr, divisor;
  explicit RowAdagrad(const UpdateArgs& a) noexcept
      : lr(V::set(a.lr)), divisor(V::set(a.root_scale)) {}
  void operator()(V g, V& w, V&, V&) const noexcept { w = w - lr * g / divisor; }
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

constexpr double unbounded = __builtin_inf();
// Bound of gradients whose squares enter a mean: the square is finite in float32, and so is a mean
// of such squares, however it is rounded.
constexpr double largest_root = 1.8e19;
// Bound of gradients whose squares enter a sum that never decays: the sum is finite for 2^28 of
// them.
constexpr double largest_root_of_sum = 1125899906842624.0;  // 2^50

// The properties of a rule that decide how `prepare` makes its UpdateArgs and how its state begins.
enum Property : unsigned {
  none = 0,
  velocity = 1,          // the rate scales what a gradient adds to the velocity, not `lr`
  bias_correction = 2,   // `lr` and `root_scale` depend on the number of updates so far
  decoupled_decay = 4,   // the weight decay is not added to the gradient
  second_is_rho = 8,     // `decay2` is the hyperparameter rho, not beta2
  counts_updates = 32,   // `is_due` depends on the number of updates so far
  starts_positive = 16,  // state 0 begins as the hyperparameter initial_accumulator, not as 0
  of_row = 64,           // the only state is one float of the whole row, see row_rule.hpp
};

// All optimizers, as X(kind, rule, gradient_bound, properties). The kind is also the name that
// users write. Larger gradients are clipped to the bound.
#define MPIPS_OPTIMIZERS(X)                                                  \
  X(sgd, Sgd, unbounded, none)                                               \
  X(momentum, Momentum, unbounded, velocity)                                 \
  X(nesterov, Nesterov, unbounded, velocity)                                 \
  X(delayed_nesterov, DelayedNesterov, unbounded, velocity | counts_updates) \
  X(adagrad, Adagrad, largest_root_of_sum, starts_positive)                  \
  X(rmsprop, RmsProp, largest_root, second_is_rho)                           \
  X(adam, Adam, largest_root, bias_correction)                               \
  X(adamw, AdamW, largest_root, bias_correction | decoupled_decay)           \
  X(ftrl, Ftrl, largest_root_of_sum, none)                                   \
  X(row_adagrad, RowAdagrad, largest_root_of_sum, starts_positive | of_row)  \
  X(replace, Replace, unbounded, none)

struct Traits {
  std::size_t n_state;  // float32 state values per weight
  double gradient_bound;
  unsigned properties;
};

#define MPIPS_TRAITS(kind, Rule, gradient_bound, properties) \
  {Rule<float>::n_state, gradient_bound, properties},
constexpr Traits traits[] = {MPIPS_OPTIMIZERS(MPIPS_TRAITS)};  // by OptimizerKind
#undef MPIPS_TRAITS

}  // namespace rules

#define MPIPS_KIND(kind, ...) kind,
enum class OptimizerKind : std::uint8_t { MPIPS_OPTIMIZERS(MPIPS_KIND) };
#undef MPIPS_KIND

#define MPIPS_NAME(kind, ...) #kind,
constexpr const char* optimizer_names[] = {MPIPS_OPTIMIZERS(MPIPS_NAME)};  // by OptimizerKind
#undef MPIPS_NAME

constexpr std::size_t n_optimizers = sizeof(optimizer_names) / sizeof(*optimizer_names);

}  // namespace mpips
