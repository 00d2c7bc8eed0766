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

// Backoff between two reads of a word that has not changed: first spin, then yield, then sleep.
// Where there are more ranks than cores it yields at once, because spinning would occupy the core
// that the awaited process needs.
//
// A sleep lasts 1 % of the time since the first sleep, between `min_sleep_us` and `max_sleep_us`.
// So a long wait becomes at most 1 % longer, and wake-ups become rare. A wake-up costs 3 us of a
// core on bare metal and 25 us in some virtual machines.
class Backoff {
 public:
  Backoff(bool oversubscribed, std::uint32_t max_sleep_us)
      : spins_(oversubscribed ? 0 : 4000),
        yields_(oversubscribed ? 64 : 256),
        max_sleep_us_(max_sleep_us) {}

  void reset() noexcept { count_ = 0; }
  void set_max_sleep_us(std::uint32_t us) noexcept { max_sleep_us_ = us; }

  void pause() noexcept {
    // Wait once, longer with every call since the last `reset`.
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

  // True while `pause` neither yields nor sleeps.
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
