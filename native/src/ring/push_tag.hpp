#pragma once

#include <cstddef>
#include <cstdint>

#include "keys/mix.hpp"

// What identifies a push when a worker repeats it after a warm restart: its table, its length and
// its keys, not its values. The tag of a clock at one server is a chain over the complete pushes of
// one worker in the order of its program, so a chain of n pushes equals another only if all n
// agree. Worker and server compute it separately: the worker over what it would write, the server
// over what it has consumed. Neither depends on how a push is split into records, nor on the order
// of keys within a push, which is the choice of a hash table.
namespace mpips {

constexpr std::uint64_t no_pushes = 0;  // the tag of a clock without a push

// The sum over the keys, each mixed so that different sets of keys have different sums.
inline std::uint64_t keys_digest(const std::int64_t* keys, std::size_t n) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t product = static_cast<std::uint64_t>(keys[i]) * 0x9e3779b97f4a7c15ULL;
    sum += product ^ (product >> 32);
  }
  return sum;
}

// The tag of the pushes so far with one more, of `n` elements or rows of a table.
inline std::uint64_t next_tag(std::uint64_t tag, std::uint16_t table, std::uint64_t n,
                              std::uint64_t digest) noexcept {
  return mix_splitmix(mix_splitmix(mix_splitmix(tag + 1 + table) ^ n) + digest);
}

}  // namespace mpips
