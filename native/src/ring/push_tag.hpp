#pragma once

#include <cstddef>
#include <cstdint>

#include "keys/mix.hpp"

// Tags identify the pushes that a worker repeats after a warm restart: by table, length and keys,
// not by values. The tag of a clock at one server is a hash chain over all complete pushes of one
// worker, in the order of its program. So two chains of n pushes are equal only if all n pushes
// agree.
//
// Worker and server compute the tag separately: the worker from what it would write, the server
// from what it has consumed. The tag depends neither on how a push is split into records nor on the
// order of keys within a push, because a hash table chooses that order.
namespace mpips {

constexpr std::uint64_t no_pushes = 0;  // the tag of a clock without a push

// Return the sum over the keys, each mixed so that different sets of keys have different sums.
inline std::uint64_t keys_digest(const std::int64_t* keys, std::size_t n) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t product = static_cast<std::uint64_t>(keys[i]) * 0x9e3779b97f4a7c15ULL;
    sum += product ^ (product >> 32);
  }
  return sum;
}

// Return the tag of the pushes so far followed by one push of `n` elements or rows to a table.
inline std::uint64_t next_tag(std::uint64_t tag, std::uint16_t table, std::uint64_t n,
                              std::uint64_t digest) noexcept {
  return mix_splitmix(mix_splitmix(mix_splitmix(tag + 1 + table) ^ n) + digest);
}

}  // namespace mpips
