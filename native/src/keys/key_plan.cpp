#include "keys/key_plan.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "keys/mix.hpp"

namespace mpips {
namespace {

constexpr std::size_t rows_ahead = 8;
constexpr std::size_t keys_ahead = 16;

}  // namespace

void KeyPlan::build(const std::int64_t* keys, std::size_t n, const Partitioner& partitioner) {
  if (n > none)
    throw std::length_error(std::to_string(n) + " keys: a batch can have at most 4294967295");
  try {
    group_starts_.assign(partitioner.n_servers() + 1, 0);
    number_keys(keys, n);
    group_by_owner(partitioner);
    if (!in_order_) link_repeats();
  } catch (...) {
    unique_keys_.clear();
    inverse_.clear();
    std::fill(group_starts_.begin(), group_starts_.end(), 0);
    in_order_ = true;
    throw;
  }
}

// Set inverse_[i] to the number of keys[i], and appeared_ to the way back. The table is used for
// one batch and at most half full. So one word per key is enough, and it stays in the nearest
// caches.
void KeyPlan::number_keys(const std::int64_t* keys, std::size_t n) {
  unsigned shift = 64 - 7;
  while ((std::size_t{1} << (64 - shift)) < 2 * n) --shift;
  const std::size_t mask = (std::size_t{1} << (64 - shift)) - 1;
  table_.assign(mask + 1, 0);
  inverse_.resize(n);
  appeared_.resize(n);

  const SecretHash hash = hash_;
  const auto home = [&](std::size_t i) noexcept { return hash(keys[i]) >> shift; };
  std::uint32_t n_unique = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + keys_ahead < n) __builtin_prefetch(&table_[home(i + keys_ahead)], 1);
    std::size_t at = home(i);
    while (table_[at] != 0 && appeared_[table_[at] - 1] != keys[i]) at = (at + 1) & mask;
    if (table_[at] == 0) {
      appeared_[n_unique] = keys[i];
      table_[at] = ++n_unique;
    }
    inverse_[i] = table_[at] - 1;
  }
  appeared_.resize(n_unique);
  repeats_ = n_unique != n;
}

// Sort the keys by server: a counting sort, which preserves the order of appearance within each
// group.
void KeyPlan::group_by_owner(const Partitioner& partitioner) {
  const std::size_t n_unique = appeared_.size();
  bool ascending = true;
  if (n_servers() == 1 && partitioner.mode() != Partitioner::Mode::range) {
    group_starts_[1] = n_unique;
  } else {
    owners_.resize(n_unique);
    partitioner.owners(appeared_.data(), n_unique, owners_.data());
    for (std::size_t u = 0; u < n_unique; ++u) ++group_starts_[owners_[u] + 1u];
    for (std::size_t s = 0; s < n_servers(); ++s) group_starts_[s + 1] += group_starts_[s];
    ascending = std::is_sorted(owners_.begin(), owners_.end());
  }

  // Where the owners ascend already, a key's place is its number and nothing moves.
  in_order_ = ascending && !repeats_;
  if (ascending) {
    unique_keys_.swap(appeared_);
    return;
  }

  unique_keys_.resize(n_unique);
  places_.resize(n_unique);
  next_place_.assign(group_starts_.begin(), group_starts_.end());
  for (std::size_t u = 0; u < n_unique; ++u) {
    const std::size_t place = next_place_[owners_[u]]++;
    places_[u] = static_cast<std::uint32_t>(place);
    unique_keys_[place] = appeared_[u];
  }
  for (std::uint32_t& number : inverse_) number = places_[number];
}

// Link the places of each key, from the last place to the first, so that each chain ascends.
void KeyPlan::link_repeats() {
  const std::size_t n = inverse_.size();
  first_.resize(n_unique());
  if (!repeats_) {
    for (std::size_t i = 0; i < n; ++i) first_[inverse_[i]] = static_cast<std::uint32_t>(i);
    return;
  }
  next_.resize(n);
  std::fill(first_.begin(), first_.end(), none);
  for (std::size_t i = n; i-- > 0;) {
    std::uint32_t& head = first_[inverse_[i]];
    next_[i] = head;
    head = static_cast<std::uint32_t>(i);
  }
}

inline void KeyPlan::prefetch_row(std::size_t u, const float* rows,
                                  std::size_t dim) const noexcept {
  if (u < first_.size()) __builtin_prefetch(rows + first_[u] * dim);
}

void KeyPlan::sum_rows(std::size_t from, std::size_t count, const float* rows, std::size_t dim,
                       float* out) const noexcept {
  take_rows(from, count, rows, dim, out);
  if (in_order_ || !repeats_) return;
  for (std::size_t j = 0; j < count; ++j) {
    float* __restrict sum = out + j * dim;
    for (std::uint32_t i = next_[first_[from + j]]; i != none; i = next_[i]) {
      const float* __restrict row = rows + i * dim;
      for (std::size_t k = 0; k < dim; ++k) sum[k] += row[k];
    }
  }
}

void KeyPlan::take_rows(std::size_t from, std::size_t count, const float* rows, std::size_t dim,
                        float* out) const noexcept {
  if (dim == 0 || count == 0) return;
  const std::size_t row_bytes = dim * sizeof(float);
  if (in_order_) {
    std::memcpy(out, rows + from * dim, count * row_bytes);
    return;
  }
  for (std::size_t j = 0; j < count; ++j) {
    prefetch_row(from + j + rows_ahead, rows, dim);
    std::memcpy(out + j * dim, rows + first_[from + j] * dim, row_bytes);
  }
}

void KeyPlan::scatter_rows(std::size_t from, std::size_t count, const float* unique_rows,
                           std::size_t dim, float* batch) const noexcept {
  if (dim == 0 || count == 0) return;
  const std::size_t row_bytes = dim * sizeof(float);
  if (in_order_) {
    std::memcpy(batch + from * dim, unique_rows, count * row_bytes);
    return;
  }
  for (std::size_t j = 0; j < count; ++j) {
    std::uint32_t i = first_[from + j];
    do {
      std::memcpy(batch + i * dim, unique_rows + j * dim, row_bytes);
      i = repeats_ ? next_[i] : none;
    } while (i != none);
  }
}

}  // namespace mpips
