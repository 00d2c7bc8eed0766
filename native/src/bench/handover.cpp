#include "bench/handover.hpp"

#include <chrono>
#include <cstring>

namespace mpips {

double handover(HandoverWords& words, float* shared, float* own, std::size_t size, bool is_first,
                std::size_t n, double limit_s) {
  const std::uint64_t before = is_first ? words.asked : words.answered;
  double seconds = 0;
  for (std::uint64_t turn = before + 1; turn <= before + n; ++turn) {
    if (!is_first) {
      wait_for_word(words.asked, turn, limit_s);
      for (std::size_t i = 0; i < size; ++i) own[i] -= shared[i];
      write_word(words.answered, turn);
      continue;
    }
    for (std::size_t i = 0; i < size; ++i) own[i] = -own[i];
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(shared, own, size * sizeof(float));
    write_word(words.asked, turn);
    wait_for_word(words.answered, turn, limit_s);
    seconds += seconds_since(start);
  }
  return seconds / static_cast<double>(n);
}

}  // namespace mpips
