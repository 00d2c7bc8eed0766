#pragma once

#include <cstdint>

namespace mpips {

// Two bijections of 64-bit words whose every output bit depends on every input bit. RowMap and
// KeyPlan use the first, Partitioner the second: were they the same, all keys of a shard would
// share the leading bits of their hash and crowd into one corner of that shard's map.

// The finaliser of MurmurHash3 (Austin Appleby, public domain).
inline std::uint64_t mix_murmur(std::uint64_t x) noexcept {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

// The step and the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
// number generators", OOPSLA 2014, with the constants of Stafford's variant 13).
constexpr std::uint64_t splitmix_step = 0x9e3779b97f4a7c15ULL;

inline std::uint64_t mix_splitmix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace mpips
