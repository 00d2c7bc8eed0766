#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "server/decision.hpp"

namespace mpips {

// The time that each worker needs for a clock, between its pushes and without its waits for slower
// workers, as one server sees it. DSSP (Zhao et al., ICDCS 2019) decides on the bound from it.
//
// A worker at clock c may go on when all workers have reached clock c - bound. So its clock begins
// at its tick before, or when the slowest worker has reached that clock, whichever is later.
class PushIntervals {
 public:
  struct Sum {
    std::uint64_t n = 0;  // clocks
    double seconds = 0.0;
  };

  // `most`: the greatest bound that will be in force.
  PushIntervals(std::size_t n_workers, std::uint64_t most)
      : sums_(n_workers), last_(n_workers, unknown), reached_(most + 2, 0.0) {}

  std::size_t n_workers() const noexcept { return sums_.size(); }
  void decide(const NumberDecision& decision) noexcept { decision_ = decision; }
  const NumberDecision& decision() const noexcept { return decision_; }

  // Note that a worker ends a clock. `waits`: it waits for all workers at each clock, as under BSP.
  void tick(std::size_t worker, std::uint64_t clock, bool waits, double now) noexcept {
    const std::uint64_t bound = waits ? 0 : decision_.at(clock);
    if (last_[worker] != unknown) {
      const double free = clock > bound ? time_of(clock - bound) : 0.0;
      sums_[worker].seconds += std::max(0.0, now - std::max(last_[worker], free));
      ++sums_[worker].n;
    }
    last_[worker] = now;
  }

  // Note that the lowest clock of all workers is `least` now.
  void reach(std::uint64_t least, double now) noexcept {
    if (least <= least_) return;
    const std::uint64_t n = std::min<std::uint64_t>(least - least_, reached_.size());
    for (std::uint64_t i = 0; i < n; ++i) reached_[(least - i) % reached_.size()] = now;
    least_ = least;
  }

  // Return the sums by worker since the last call.
  std::vector<Sum> take() {
    std::vector<Sum> found(sums_.size());
    found.swap(sums_);
    return found;
  }

 private:
  static constexpr double unknown = -1.0;

  // Return when all workers had reached a clock; 0: too long ago to delay anything, or not yet.
  double time_of(std::uint64_t clock) const noexcept {
    return clock <= least_ && clock + reached_.size() > least_ ? reached_[clock % reached_.size()]
                                                               : 0.0;
  }

  std::vector<Sum> sums_;
  std::vector<double> last_;  // by worker: time of its last tick, s; unknown: none in this launch
  std::vector<double> reached_;  // by clock modulo its size: when all workers had reached it, s
  std::uint64_t least_ = 0;
  NumberDecision decision_;
};

}  // namespace mpips
