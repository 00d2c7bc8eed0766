#pragma once

#include <cstdint>

namespace mpips {

// A decision on a number that follows measurements, as one word: the clock from which the number
// is in force (48 bits), the number (8 bits), and the one before it (8 bits). Zero: the number is 0
// at every clock. SSP("auto") decides on its bound so (server_bound.cpp), and BSP(backup="auto") on
// its backup workers (server_backup.cpp).
struct NumberDecision {
  static constexpr std::uint64_t most_number = 255, most_clock = (std::uint64_t{1} << 48) - 1;
  std::uint64_t from = 0, number = 0, before = 0;

  static NumberDecision of_word(std::uint64_t word) noexcept {
    return {word >> 16, word >> 8 & 0xFF, word & 0xFF};
  }
  std::uint64_t at(std::uint64_t clock) const noexcept { return clock >= from ? number : before; }
  std::uint64_t word() const noexcept { return from << 16 | number << 8 | before; }
};

}  // namespace mpips
