#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>

namespace mpips {

inline double now_s() noexcept {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// What a process does between two looks at a word that has not changed: spin, then yield, then
// sleep. With more ranks than cores spinning takes the core from the one that is waited for, so it
// yields at once there.
//
// A sleep is 1 % of the time since the first one, within bounds: whoever has waited long is asked
// for little more, and waking, which costs 3 us of a core on bare metal and 25 us in some virtual
// machines, becomes rare.
class Backoff {
 public:
  Backoff(bool oversubscribed, std::uint32_t max_sleep_us)
      : spins_(oversubscribed ? 0 : 4000),
        yields_(oversubscribed ? 64 : 256),
        max_sleep_us_(max_sleep_us) {}

  void reset() noexcept { count_ = 0; }
  void set_max_sleep_us(std::uint32_t us) noexcept { max_sleep_us_ = us; }

  void pause() noexcept {
    if (count_ < spins_) {
      cpu_relax();
      ++count_;
    } else if (count_ < spins_ + yields_) {
      sched_yield();
      if (++count_ == spins_ + yields_) asleep_since_ = now_s();
    } else {
      sleep_us(sleep_length());
    }
  }

  bool spinning() const noexcept { return count_ < spins_; }

 private:
  std::uint32_t sleep_length() const noexcept {
    const double share_us = 1e6 * sleep_share * (now_s() - asleep_since_);
    if (share_us >= max_sleep_us_) return max_sleep_us_;
    return share_us > min_sleep_us ? static_cast<std::uint32_t>(share_us) : min_sleep_us;
  }

  static void sleep_us(std::uint32_t us) noexcept {
    timespec t{0, static_cast<long>(us) * 1000};
    nanosleep(&t, nullptr);
  }

  static constexpr double sleep_share = 0.01;
  static constexpr std::uint32_t min_sleep_us = 20;

  std::uint32_t spins_, yields_, max_sleep_us_;
  std::uint32_t count_ = 0;
  double asleep_since_ = 0.0;
};

}  // namespace mpips
