#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

// The distance of two cores: the time of a flag from one to the other and back. Inline, since the
// loops of benchmarks are a module of their own.
namespace mpips {

// Two words on cache lines of their own, in memory that both processes map; zero at the beginning.
//
// Each word has one writer: `asked` the first process, `answered` the second one. The first one
// writes `asked` after the values (release), and the second one reads the values after it has seen
// the word (acquire); `answered` orders the other direction in the same way.
struct HandoverWords {
  std::uint64_t asked;
  std::uint64_t unused[7];
  std::uint64_t answered;
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Wait until the word has the value. Throws std::runtime_error after `limit_s`.
inline void wait_for_word(const std::uint64_t& word, std::uint64_t value, double limit_s) {
  constexpr unsigned spins_between = 1u << 14;  // two looks at the clock
  std::chrono::steady_clock::time_point start;
  for (std::uint64_t spins = 0; __atomic_load_n(&word, __ATOMIC_ACQUIRE) != value; ++spins) {
    if (spins == 0) start = std::chrono::steady_clock::now();
    if (spins % spins_between == spins_between - 1 && seconds_since(start) > limit_s)
      throw std::runtime_error("the other process has not answered within " +
                               std::to_string(limit_s) + " s");
  }
}

inline void write_word(std::uint64_t& word, std::uint64_t value) {
  __atomic_store_n(&word, value, __ATOMIC_RELEASE);
}

// Return the seconds of one round trip of a flag, the mean of `n`. Both processes or threads call
// it with the same `n`; `is_first` on one of them. Throws std::runtime_error if the other one does
// not answer in `limit_s`.
inline double flag_round_trip(HandoverWords& words, bool is_first, std::size_t n, double limit_s) {
  const std::uint64_t before = is_first ? words.asked : words.answered;
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t turn = before + 1; turn <= before + n; ++turn) {
    if (is_first) {
      write_word(words.asked, turn);
      wait_for_word(words.answered, turn, limit_s);
    } else {
      wait_for_word(words.asked, turn, limit_s);
      write_word(words.answered, turn);
    }
  }
  return seconds_since(start) / static_cast<double>(n);
}

}  // namespace mpips
