#include "keys/key_plan.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace mpips {

void KeyPlan::build(const std::int64_t* keys, std::size_t n, const Partitioner& partitioner) {
  if (n > RowMap::npos)
    throw std::length_error("a batch holds at most 4294967295 keys, not " + std::to_string(n));
  try {
    reset(partitioner.n_servers());
    number_keys(keys, n);
    group_by_owner(partitioner);
  } catch (...) {
    unique_keys_.clear();
    inverse_.clear();
    std::fill(group_starts_.begin(), group_starts_.end(), 0);
    in_order_ = true;
    throw;
  }
}

void KeyPlan::reset(std::size_t n_servers) {
  numbers_.clear();
  group_starts_.assign(n_servers + 1, 0);
}

// inverse_[i] = number of keys[i]; appeared_ and first_seen_ = the way back.
void KeyPlan::number_keys(const std::int64_t* keys, std::size_t n) {
  inverse_.resize(n);
  const std::size_t n_unique = numbers_.find_or_insert(keys, n, inverse_.data());

  appeared_.resize(n_unique);
  first_seen_.resize(n_unique);
  for (std::size_t i = 0, seen = 0; seen < n_unique; ++i) {
    if (inverse_[i] != seen) continue;
    appeared_[seen] = keys[i];
    first_seen_[seen++] = static_cast<std::uint32_t>(i);
  }
}

// A counting sort by server, which keeps the order of appearance within each.
void KeyPlan::group_by_owner(const Partitioner& partitioner) {
  const std::size_t n_unique = appeared_.size();
  owners_.resize(n_unique);
  partitioner.owners(appeared_.data(), n_unique, owners_.data());

  for (std::size_t u = 0; u < n_unique; ++u) ++group_starts_[owners_[u] + 1u];
  for (std::size_t s = 0; s < n_servers(); ++s) group_starts_[s + 1] += group_starts_[s];

  // Where the owners already ascend, places are numbers and nothing moves.
  const bool ascending = std::is_sorted(owners_.begin(), owners_.end());
  in_order_ = ascending && n_unique == inverse_.size();
  if (ascending) {
    unique_keys_.assign(appeared_.begin(), appeared_.end());
    first_.assign(first_seen_.begin(), first_seen_.end());
    return;
  }

  unique_keys_.resize(n_unique);
  first_.resize(n_unique);
  places_.resize(n_unique);
  next_place_.assign(group_starts_.begin(), group_starts_.end());
  for (std::size_t u = 0; u < n_unique; ++u) {
    const std::size_t place = next_place_[owners_[u]]++;
    places_[u] = static_cast<std::uint32_t>(place);
    unique_keys_[place] = appeared_[u];
    first_[place] = first_seen_[u];
  }
  for (std::uint32_t& number : inverse_) number = places_[number];
}

void KeyPlan::sum_rows(const float* rows, std::size_t dim, float* out) const noexcept {
  if (dim == 0 || inverse_.empty()) return;
  const std::size_t row_bytes = dim * sizeof(float);
  if (in_order_) {
    std::memcpy(out, rows, inverse_.size() * row_bytes);
    return;
  }

  // The first row of a key is copied and the others are added: `out` needs no zeroing.
  for (std::size_t i = 0; i < inverse_.size(); ++i) {
    const float* __restrict row = rows + i * dim;
    float* __restrict sum = out + inverse_[i] * dim;
    if (first_[inverse_[i]] == i) {
      std::memcpy(sum, row, row_bytes);
    } else {
      for (std::size_t j = 0; j < dim; ++j) sum[j] += row[j];
    }
  }
}

void KeyPlan::scatter_rows(const float* unique_rows, std::size_t dim, float* out) const noexcept {
  if (dim == 0 || inverse_.empty()) return;
  const std::size_t row_bytes = dim * sizeof(float);
  if (in_order_) {
    std::memcpy(out, unique_rows, inverse_.size() * row_bytes);
    return;
  }
  for (std::size_t i = 0; i < inverse_.size(); ++i)
    std::memcpy(out + i * dim, unique_rows + inverse_[i] * dim, row_bytes);
}

}  // namespace mpips
