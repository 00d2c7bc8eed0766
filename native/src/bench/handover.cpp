#include "bench/handover.hpp"

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

namespace mpips {

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kSpins = 1u << 14;  // between two looks at the clock

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void wait_for(const std::uint64_t& word, std::uint64_t value, double limit_s) {
  Clock::time_point start;
  for (std::uint64_t spins = 0; __atomic_load_n(&word, __ATOMIC_ACQUIRE) != value; ++spins) {
    if (spins == 0) start = Clock::now();
    if (spins % kSpins == kSpins - 1 && seconds_since(start) > limit_s)
      throw std::runtime_error("the other process has not answered within " +
                               std::to_string(limit_s) + " s");
  }
}

void write(std::uint64_t& word, std::uint64_t value) {
  __atomic_store_n(&word, value, __ATOMIC_RELEASE);
}

}  // namespace

double flag_round_trip(HandoverWords& words, bool is_first, std::size_t n, double limit_s) {
  const std::uint64_t before = is_first ? words.asked : words.answered;
  const Clock::time_point start = Clock::now();
  for (std::uint64_t turn = before + 1; turn <= before + n; ++turn) {
    if (is_first) {
      write(words.asked, turn);
      wait_for(words.answered, turn, limit_s);
    } else {
      wait_for(words.asked, turn, limit_s);
      write(words.answered, turn);
    }
  }
  return seconds_since(start) / static_cast<double>(n);
}

double handover(HandoverWords& words, float* shared, float* own, std::size_t size, bool is_first,
                std::size_t n, double limit_s) {
  const std::uint64_t before = is_first ? words.asked : words.answered;
  double seconds = 0;
  for (std::uint64_t turn = before + 1; turn <= before + n; ++turn) {
    if (!is_first) {
      wait_for(words.asked, turn, limit_s);
      for (std::size_t i = 0; i < size; ++i) own[i] -= shared[i];
      write(words.answered, turn);
      continue;
    }
    for (std::size_t i = 0; i < size; ++i) own[i] = -own[i];
    const Clock::time_point start = Clock::now();
    std::memcpy(shared, own, size * sizeof(float));
    write(words.asked, turn);
    wait_for(words.answered, turn, limit_s);
    seconds += seconds_since(start);
  }
  return seconds / static_cast<double>(n);
}

}  // namespace mpips
