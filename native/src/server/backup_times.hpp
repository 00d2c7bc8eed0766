#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace mpips {

// The times that workers need for a clock, as one server sees them. BSP(backup="auto") decides on
// the number of backup workers from them.
//
// A worker begins a clock when it ends the one before, or, if it was in time, when that one closes.
// So a time has no wait for slower workers. A worker that is late has times as well: its end of a
// clock that is closed is measured, and it begins the open clock then. A worker that has ended no
// clock in this launch is in its clock since the first clock that closes, at least.
class BackupTimes {
 public:
  static constexpr std::size_t window = 64;  // newest times of a worker that are stored

  explicit BackupTimes(std::size_t n_workers)
      : times_(n_workers), n_(n_workers, 0), began_(n_workers, unknown), finished_(n_workers, 0) {}

  std::size_t n_workers() const noexcept { return times_.size(); }

  // Note that a worker ends a clock, which may be closed.
  void tick(std::size_t worker, double now) {
    if (began_[worker] != unknown) {
      std::vector<double>& own = times_[worker];
      const double seconds = std::max(0.0, now - began_[worker]);
      if (own.size() < window)
        own.push_back(seconds);
      else
        own[n_[worker] % window] = seconds;
      ++n_[worker];
    }
    began_[worker] = now;
  }

  // Note that a clock closes, which these workers have ended in time. Some of them may have
  // finished since then.
  void close(const std::vector<std::size_t>& workers, double now) noexcept {
    for (const std::size_t w : workers) began_[w] = now;
    for (std::size_t w = 0; w < began_.size(); ++w)
      if (finished_[w])
        began_[w] = unknown;
      else if (began_[w] == unknown)
        began_[w] = now;
  }

  // Note that a worker ends no more clocks.
  void finish(std::size_t worker) noexcept {
    times_[worker].clear();
    began_[worker] = unknown;
    finished_[worker] = 1;
  }

  // Return the newest times by worker since the last call, in s. A worker that has been in one
  // clock all the time has its time in it so far. One that has finished has none.
  std::vector<std::vector<double>> take(double now) {
    std::vector<std::vector<double>> found(times_.size());
    found.swap(times_);
    std::fill(n_.begin(), n_.end(), 0);
    for (std::size_t w = 0; w < found.size(); ++w)
      if (found[w].empty() && began_[w] != unknown)
        found[w].push_back(std::max(0.0, now - began_[w]));
    return found;
  }

 private:
  static constexpr double unknown = -1.0;

  std::vector<std::vector<double>> times_;
  std::vector<std::uint64_t> n_;  // by worker: times since the last `take`
  std::vector<double> began_;     // by worker: when its clock began, s; unknown: it is in none
  std::vector<std::uint8_t> finished_;
};

}  // namespace mpips
