#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace mpips {

// A key that no server owns. The message names the key and the accepted range.
class KeyOutsidePartition : public std::out_of_range {
 public:
  using std::out_of_range::out_of_range;
};

// Map from keys to the servers that own them. It is arithmetic on an immutable value, so every rank
// computes the same answer without communication. Its hash (SplitMix64) is not that of RowMap
// (MurmurHash3): keys of one server share leading bits of the former and would collide in a map
// that used it, too.
class Partitioner {
 public:
  enum class Mode : std::uint8_t { hash, range, buckets };

  // The three constructors throw std::invalid_argument. The number of servers is 1 to 65535.
  // hash: the leading 32 bits of the mixed key, scaled to n_servers.
  static Partitioner by_hash(std::size_t n_servers);
  // range: server s owns [boundaries[s], boundaries[s + 1]); sorted, equal neighbours allowed.
  static Partitioner by_range(std::vector<std::int64_t> boundaries);
  // buckets: the mixed key is scaled to servers.size() buckets; servers[b] owns bucket b.
  static Partitioner by_buckets(std::vector<std::uint16_t> servers, std::size_t n_servers);

  Mode mode() const noexcept { return mode_; }
  std::size_t n_servers() const noexcept { return n_servers_; }

  // Return the owner of one key, or write those of n keys. Throw KeyOutsidePartition, in mode range
  // only; `owners` may then have written a part of `out`.
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
