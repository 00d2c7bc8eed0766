#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

// The records of the codecs that need error feedback and have lengths of their own (is_biased):
// sparse and onebit. `Feedback` writes them, `decode_biased` reads them.
namespace mpips {

// A block of onebit: the mean magnitude of its values, then a bit for the sign of each.
constexpr std::size_t sign_block_values = 512, sign_words = 16;
constexpr std::size_t sign_block_bytes = sizeof(float) + sign_words * sizeof(std::uint32_t);

// Return how many of n values a sparse codec sends, which sends this share of them.
inline std::size_t target_of(double share, std::size_t n) noexcept {
  const auto k = static_cast<std::size_t>(std::floor(share * static_cast<double>(n) + 0.5));
  return std::min(std::max<std::size_t>(k, 1), n);
}

}  // namespace mpips
