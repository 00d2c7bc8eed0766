#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mpips {

// The measure of Switch(BSP(), ASP(), at="uneven"): how many times as many gradients per second the
// workers would push under ASP.
//
// Each tick names the worker's own time in its clock, without its waits and cuts. Under BSP let T
// be the mean time from close to close of a clock at this server, at least the longest mean own
// time; b_w the mean own time of worker w, and m the mean over clocks of the longest own time. o =
// max(0, T - m) is what a clock costs beside the own times: transport and the servers. Under ASP
// worker w ends a clock in b_w + o, and no worker waits for another. So the gain is
// (1/n) sum_w T / (b_w + o). It is 1 if all workers always need the same time, whatever the servers
// need. T < m if workers that do not pull in each clock run ahead of each other: then differences
// from clock to clock cost less than m.
//
// The gain of a window of clocks counts if both of its halves have at least `least`, so a single
// stall does not decide. Windows have `first` clocks, then 2 * first and so on up to `longest`:
// workers that always differ are found soon, and stalls that return once in many clocks later.
class Evenness {
 public:
  // The means of a window or of a half, seconds per clock; gain 0: none has ended.
  struct Estimate {
    double gain = 0.0, clock_s = 0.0, fastest_s = 0.0, slowest_s = 0.0;
    std::size_t slowest = 0;  // worker
    std::uint64_t clocks = 0;
  };

  // `first`, `longest`: clocks, even and 2 at least; longest >= first.
  Evenness(std::size_t n_workers, std::uint64_t first, std::uint64_t longest, double least);

  // Note the own time of a worker in the open clock, microseconds; 0: the tick does not name it.
  void note(std::size_t worker, std::uint32_t own_us) noexcept { own_us_[worker] = own_us; }
  // Note the end of a clock at `now` seconds; `workers` have ended it. Return true if a window has
  // ended, and its gain counts.
  bool close(const std::vector<std::size_t>& workers, double now);

  std::size_t n_workers() const noexcept { return own_us_.size(); }
  // The last window; gain 0 before the first one.
  const Estimate& last() const noexcept { return last_; }

 private:
  // Sums over clocks, seconds.
  struct Sums {
    double clock_s = 0.0, longest_s = 0.0;
    std::vector<double> own_s;  // by place in `workers_`
    std::uint64_t clocks = 0;
  };

  void restart(const std::vector<std::size_t>& workers);
  Estimate estimate(const Sums& sums) const;

  std::uint64_t length_, longest_;
  double least_;
  std::vector<std::uint32_t> own_us_;  // by worker, of the open clock
  std::vector<std::size_t> workers_;   // those of the present window
  double closed_at_ = -1.0;            // time of the last close; below 0: none in this launch
  Sums half_[2];
  Estimate last_;
};

}  // namespace mpips
