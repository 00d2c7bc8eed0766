#include "reduction/node_rows.hpp"

#include <cstring>

namespace mpips {

void NodeRows::look(std::uint64_t table, const Need& need, bool claims, const std::int64_t* keys,
                    std::size_t n, std::size_t dim, float* rows, std::int64_t* stamps,
                    std::int64_t* versions, std::uint8_t* states) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    if (i + ahead < n) prefetch(home(table, keys[i + ahead]));
    Found to{rows + i * dim, stamps + i, versions + i};
    states[i] = look_one(table, need, claims, keys[i], dim, to);
  }
}

void NodeRows::publish(std::uint64_t table, std::int64_t stamp, const std::int64_t* keys,
                       std::size_t n, std::size_t dim, const float* rows,
                       const std::int64_t* versions) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    if (i + ahead < n) prefetch(home(table, keys[i + ahead]));
    publish_one(table, stamp, keys[i], dim, rows + i * dim, versions[i]);
  }
}

NodeRows::State NodeRows::look_one(std::uint64_t table, const Need& need, bool claims,
                                   std::int64_t key, std::size_t dim, const Found& to) noexcept {
  if (n_sets_ == 0) return absent;
  const std::size_t set = home(table, key);
  const std::size_t way = way_of(set, table, key);
  if (way == none) {
    if (claims) claim_new(set, table, need, key);
    return absent;
  }
  Line* at = line(set + way);
  bool is_whole = false;
  for (int read = 0; read < most_reads; ++read) {
    const std::uint64_t before = load_acquire(&at->version);
    if ((before & 1) != 0) continue;
    is_whole = true;
    const bool same = has(at, table, key);
    const std::int64_t stamp = load_relaxed(&at->stamp) - 1;
    const bool usable = same && stamp >= 0 && need.least <= stamp && stamp <= need.most;
    if (usable) {
      *to.stamp = stamp;
      *to.version = load_relaxed(&at->shard);
      std::memcpy(to.row, row(set + way), dim * sizeof(float));
    }
    fence_acquire();
    if (load_relaxed(&at->version) != before) continue;
    if (usable) return copied;
    if (!same) return absent;
    break;
  }
  // The writer may have died: its row and its claim would never change.
  if (!is_whole) return absent;
  std::uint64_t found = load_relaxed(&at->claimed);
  if (is_claimed(found, need)) return claimed;
  if (claims && !__atomic_compare_exchange_n(&at->claimed, &found, claim_word(need.clock), false,
                                             __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return is_claimed(found, need) ? claimed : absent;
  return absent;
}

std::size_t NodeRows::oldest(std::size_t set, std::int64_t claims_from) const noexcept {
  std::size_t best = none;
  std::int64_t least = 0;
  for (std::size_t way = 0; way < n_ways; ++way) {
    const Line* at = line(set + way);
    const std::int64_t stamp = load_relaxed(&at->stamp);
    const std::uint64_t claim = load_relaxed(&at->claimed);
    const bool is_in_use = claim / n_workers_ >= static_cast<std::uint64_t>(claims_from) + 1 ||
                           (load_relaxed(&at->version) & 1) != 0;
    if (!is_in_use && (best == none || stamp < least)) best = way, least = stamp;
  }
  return best;
}

void NodeRows::claim_new(std::size_t set, std::uint64_t table, const Need& need,
                         std::int64_t key) noexcept {
  const std::size_t way = oldest(set, need.claims_from);
  std::uint64_t version = 0;
  if (way == none || !lock(line(set + way), &version)) return;
  Line* at = line(set + way);
  name(at, table, key);
  store_relaxed(&at->stamp, std::int64_t{0});
  store_relaxed(&at->claimed, claim_word(need.clock));
  unlock(at, version);
}

void NodeRows::publish_one(std::uint64_t table, std::int64_t stamp, std::int64_t key,
                           std::size_t dim, const float* from, std::int64_t shard) noexcept {
  if (n_sets_ == 0) return;
  const std::size_t set = home(table, key);
  std::size_t way = way_of(set, table, key);
  const bool is_new = way == none;
  if (is_new) way = oldest(set, stamp);
  std::uint64_t version = 0;
  if (way == none || !lock(line(set + way), &version)) return;
  Line* at = line(set + way);
  // Another key may have taken the slot since `way_of`.
  if (is_new || (has(at, table, key) && load_relaxed(&at->stamp) < stamp + 1)) {
    name(at, table, key);
    store_relaxed(&at->stamp, stamp + 1);
    store_relaxed(&at->shard, shard);
    store_relaxed(&at->claimed, std::uint64_t{0});
    std::memcpy(row(set + way), from, dim * sizeof(float));
  }
  unlock(at, version);
}

}  // namespace mpips
