#include "keys/partitioner.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "keys/mix.hpp"

namespace mpips {

namespace {

constexpr std::size_t max_servers = 65535;

// Return the hash of `key` scaled from [0, 2^32) to [0, n), n < 2^32.
inline std::size_t scaled_hash(std::int64_t key, std::uint64_t n) noexcept {
  const std::uint64_t hash = mix_splitmix(static_cast<std::uint64_t>(key) + splitmix_step);
  return static_cast<std::size_t>(((hash >> 32) * n) >> 32);
}

}  // namespace

Partitioner::Partitioner(Mode mode, std::size_t n_servers) : mode_(mode), n_servers_(n_servers) {
  if (n_servers < 1 || n_servers > max_servers)
    throw std::invalid_argument("n_servers = " + std::to_string(n_servers) +
                                ": a partition needs 1 to 65535 servers");
}

Partitioner Partitioner::by_hash(std::size_t n_servers) {
  return Partitioner(Mode::hash, n_servers);
}

Partitioner Partitioner::by_range(std::vector<std::int64_t> boundaries) {
  if (boundaries.size() < 2 || boundaries.front() == boundaries.back() ||
      !std::is_sorted(boundaries.begin(), boundaries.end()))
    throw std::invalid_argument(
        "a range partition needs n_servers + 1 ascending boundaries around at least one key");
  Partitioner partitioner(Mode::range, boundaries.size() - 1);
  partitioner.boundaries_ = std::move(boundaries);
  return partitioner;
}

Partitioner Partitioner::by_buckets(std::vector<std::uint16_t> servers, std::size_t n_servers) {
  Partitioner partitioner(Mode::buckets, n_servers);
  if (servers.empty() || servers.size() > 0xFFFFFFFFu)
    throw std::invalid_argument(std::to_string(servers.size()) +
                                " buckets: a bucket partition needs 1 to 4294967295 buckets");
  const std::uint16_t last = *std::max_element(servers.begin(), servers.end());
  if (last >= n_servers)
    throw std::invalid_argument("a bucket belongs to server " + std::to_string(last) +
                                ", but servers are 0 to " + std::to_string(n_servers - 1));
  partitioner.servers_ = std::move(servers);
  return partitioner;
}

std::uint16_t Partitioner::range_owner(std::int64_t key) const {
  if (key < boundaries_.front() || key >= boundaries_.back())
    throw KeyOutsidePartition(
        "key " + std::to_string(key) + " lies outside the partition, which accepts keys from " +
        std::to_string(boundaries_.front()) + " to " + std::to_string(boundaries_.back() - 1));
  const auto above = std::upper_bound(boundaries_.begin(), boundaries_.end(), key);
  return static_cast<std::uint16_t>(above - boundaries_.begin() - 1);
}

std::uint16_t Partitioner::owner(std::int64_t key) const {
  std::uint16_t server = 0;
  owners(&key, 1, &server);
  return server;
}

void Partitioner::owners(const std::int64_t* keys, std::size_t n, std::uint16_t* out) const {
  switch (mode_) {
    case Mode::hash:
      for (std::size_t i = 0; i < n; ++i)
        out[i] = static_cast<std::uint16_t>(scaled_hash(keys[i], n_servers_));
      return;
    case Mode::range:
      for (std::size_t i = 0; i < n; ++i) out[i] = range_owner(keys[i]);
      return;
    case Mode::buckets:
      for (std::size_t i = 0; i < n; ++i) out[i] = servers_[scaled_hash(keys[i], servers_.size())];
      return;
  }
}

}  // namespace mpips
