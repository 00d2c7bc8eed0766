#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "server/shard.hpp"

namespace mpips {

// The threshold of Reject("auto"): Ringmaster ASGD (Maranjyan, Tyurin, Richtarik, ICML 2025)
// ignores a gradient whose delay is R or more, with R = max(1, ceil(sigma^2 / epsilon)). sigma^2 is
// the variance of a stochastic gradient, epsilon the squared norm of the gradient that is to be
// reached.
//
// Both are estimated from pairs of applied pushes of two workers that follow each other. With
// independent noise the mean of their inner products is |grad f|^2, and the mean of their squared
// norms is |grad f|^2 + sigma^2. So epsilon is the squared norm where training is now. One pair in
// `every` pushes is taken, so a push costs a counter nearly always.
//
// All of it depends on the applied pushes and their order alone. So a replay of a recorded run,
// which has the same order, comes to the same thresholds.
class DelayThreshold {
 public:
  static constexpr std::uint64_t every = 32;  // applied pushes from pair to pair
  static constexpr std::uint64_t pairs = 16;  // pairs of an estimate
  static constexpr std::uint64_t most = 1 << 20;

  // `least`: the lowest threshold; with the number of workers, an even job loses no push.
  explicit DelayThreshold(std::uint64_t least) : least_(least), threshold_(most) {}

  std::uint64_t threshold() const noexcept { return threshold_; }
  void set(std::uint64_t threshold) noexcept {
    threshold_ = std::min(std::max(threshold, least_), most);
  }
  bool rejects(std::uint64_t staleness) const noexcept { return staleness >= threshold_; }

  // Note an applied push. Return true if there is a new estimate.
  bool note(std::size_t worker, const float* values, std::size_t n) {
    if (++count_ < every) return false;
    if (first_.empty()) {
      first_.assign(values, values + n);
      worker_ = worker;
      return false;
    }
    if (worker == worker_ || n != first_.size()) return false;
    double inner = 0.0, own = 0.0, other = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      const double a = first_[i], b = values[i];
      inner += a * b;
      own += a * a;
      other += b * b;
    }
    inner_ += inner;
    squares_ += (own + other) / 2;
    first_.clear();
    count_ = 0;
    if (++n_pairs_ < pairs) return false;
    estimate();
    return true;
  }

  double signal() const noexcept { return signal_; }  // |grad f|^2 of the last estimate
  double noise() const noexcept { return noise_; }    // sigma^2 of it

 private:
  void estimate() noexcept {
    const auto n = static_cast<double>(n_pairs_);
    signal_ = inner_ / n;
    noise_ = std::max(0.0, squares_ / n - signal_);
    const double ratio = signal_ > 0.0 ? std::ceil(noise_ / signal_) : static_cast<double>(most);
    set(ratio < static_cast<double>(most) ? static_cast<std::uint64_t>(ratio) : most);
    inner_ = squares_ = 0.0;
    n_pairs_ = 0;
  }

  std::uint64_t least_, threshold_;
  std::uint64_t count_ = 0, n_pairs_ = 0;
  double inner_ = 0.0, squares_ = 0.0, signal_ = 0.0, noise_ = 0.0;
  std::size_t worker_ = 0;
  std::vector<float> first_;  // the first push of a pair; empty: there is none
};

}  // namespace mpips
