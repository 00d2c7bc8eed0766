#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace mpips {

// A key that no server owns; its message names the key and the accepted range.
class KeyOutsidePartition : public std::out_of_range {
 public:
  using std::out_of_range::out_of_range;
};

// Which server owns a key: arithmetic on an immutable value, so that every rank gets the same
// answer without asking. Its hash (SplitMix64) is not the one of RowMap (MurmurHash3): keys of one
// server share leading bits of the former, and would all collide in a map that used it too.
class Partitioner {
 public:
  enum class Mode : std::uint8_t { hash, range, buckets };

  // The constructors throw std::invalid_argument; server counts go from 1 to 65535.
  // hash: leading 32 bits of the mixed key, scaled to n_servers.
  static Partitioner by_hash(std::size_t n_servers);
  // range: server s owns [boundaries[s], boundaries[s + 1]); sorted, equal neighbours allowed.
  static Partitioner by_range(std::vector<std::int64_t> boundaries);
  // buckets: the mixed key scaled to servers.size() buckets; servers[b] owns bucket b.
  static Partitioner by_buckets(std::vector<std::uint16_t> servers, std::size_t n_servers);

  Mode mode() const noexcept { return mode_; }
  std::size_t n_servers() const noexcept { return n_servers_; }

  // Throw KeyOutsidePartition, in mode range only; `owners` may have written a part of `out` then.
  std::uint16_t owner(std::int64_t key) const;
  void owners(const std::int64_t* keys, std::size_t n, std::uint16_t* out) const;

 private:
  Partitioner(Mode mode, std::size_t n_servers);

  std::uint16_t range_owner(std::int64_t key) const;

  Mode mode_;
  std::size_t n_servers_;
  std::vector<std::int64_t> boundaries_;  // mode range
  std::vector<std::uint16_t> servers_;    // mode buckets
};

}  // namespace mpips
