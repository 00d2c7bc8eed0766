#include "server/evenness.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace mpips {

Evenness::Evenness(std::size_t n_workers, std::uint64_t first, std::uint64_t longest, double least)
    : length_(first), longest_(longest), least_(least), own_us_(n_workers, 0) {
  if (first < 2 || first % 2 != 0 || longest < first)
    throw std::invalid_argument("windows of " + std::to_string(first) + " to " +
                                std::to_string(longest) +
                                " clocks: must be even numbers, 2 at least");
}

bool Evenness::close(const std::vector<std::size_t>& workers, double now) {
  const double clock_s = now - closed_at_;
  const bool is_first = closed_at_ < 0.0;
  closed_at_ = now;
  bool is_known = !workers.empty();
  for (const std::size_t w : workers) is_known = is_known && own_us_[w] != 0;
  if (workers != workers_) restart(workers);
  if (is_first || !is_known) {
    std::fill(own_us_.begin(), own_us_.end(), 0);
    return false;
  }
  Sums& sums = half_[half_[0].clocks < length_ / 2 ? 0 : 1];
  double longest_s = 0.0;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const double own_s = 1e-6 * own_us_[workers[i]];
    sums.own_s[i] += own_s;
    longest_s = std::max(longest_s, own_s);
  }
  sums.clock_s += clock_s;
  sums.longest_s += longest_s;
  ++sums.clocks;
  std::fill(own_us_.begin(), own_us_.end(), 0);
  if (half_[1].clocks < length_ / 2) return false;

  const bool counts = estimate(half_[0]).gain >= least_ && estimate(half_[1]).gain >= least_;
  Sums all = half_[0];
  all.clock_s += half_[1].clock_s;
  all.longest_s += half_[1].longest_s;
  for (std::size_t i = 0; i < all.own_s.size(); ++i) all.own_s[i] += half_[1].own_s[i];
  all.clocks += half_[1].clocks;
  last_ = estimate(all);
  length_ = std::min(2 * length_, longest_);
  restart(workers);
  return counts;
}

// Begin a window with these workers.
void Evenness::restart(const std::vector<std::size_t>& workers) {
  workers_ = workers;
  for (Sums& sums : half_) {
    sums = {};
    sums.own_s.assign(workers.size(), 0.0);
  }
}

Evenness::Estimate Evenness::estimate(const Sums& sums) const {
  const auto clocks = static_cast<double>(sums.clocks);
  const auto [least, most] = std::minmax_element(sums.own_s.begin(), sums.own_s.end());
  Estimate found;
  found.clocks = sums.clocks;
  found.fastest_s = *least / clocks;
  found.slowest_s = *most / clocks;
  found.clock_s = std::max(sums.clock_s / clocks, found.slowest_s);
  const double others_s = std::max(0.0, found.clock_s - sums.longest_s / clocks);
  found.slowest = workers_[static_cast<std::size_t>(most - sums.own_s.begin())];
  for (const double own_s : sums.own_s) found.gain += found.clock_s / (own_s / clocks + others_s);
  found.gain /= static_cast<double>(sums.own_s.size());
  return found;
}

}  // namespace mpips
