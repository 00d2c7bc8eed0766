#pragma once

#include <cstdint>

// Hashes of keys. SecretHash is secret to the process, so that crafted keys cannot be made to fall
// into one place of a map. It decides only where in memory a key lies, and no result depends on it:
// rows and places are numbered in order of appearance.
namespace mpips {

// The hash of RowMap and KeyPlan, which use its leading bits: the finaliser of MurmurHash3 (Austin
// Appleby, public domain) up to its second product, with one secret factor. The steps before the
// product are a bijection. So the leading bits of any two keys are equal with at most twice the
// probability of chance (Dietzfelbinger, Hagerup, Katajainen and Penttonen, J. Algorithms 1997).
class SecretHash {
 public:
  SecretHash();  // a different hash for each object

  std::uint64_t operator()(std::int64_t key) const noexcept {
    std::uint64_t x = static_cast<std::uint64_t>(key) ^ salt_;
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
    return (x ^ (x >> 33)) * factor_;
  }

 private:
  std::uint64_t salt_, factor_;  // the factor is odd
};

// The hash of Partitioner, the same in all processes. It differs from SecretHash on purpose: if
// RowMap used it too, all keys of a shard would share the leading bits of their hash and crowd into
// one part of that shard's map. It is the step and the finaliser of SplitMix64 (Steele, Lea and
// Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with the constants of
// Stafford's variant 13).
constexpr std::uint64_t splitmix_step = 0x9e3779b97f4a7c15ULL;

inline std::uint64_t mix_splitmix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace mpips
