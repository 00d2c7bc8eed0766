#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "keys/mix.hpp"
#include "keys/partitioner.hpp"

namespace mpips {

// The keys of one batch, prepared for communication: each key once, grouped by the server that owns
// it, with the way back to the batch.
//
// Group s is unique_keys()[group_start(s) .. group_start(s + 1)), in order of first appearance, and
// keys[i] == unique_keys()[inverse()[i]]. A plan is built again for every batch and reuses its
// memory: after the largest batch it allocates nothing more. Pointers are valid until the next
// `build`. Not thread-safe, except that any number of threads may call const members at the same
// time.
class KeyPlan {
 public:
  // Throws KeyOutsidePartition, std::length_error (n above 2^32 - 1) or std::bad_alloc; the plan is
  // then that of an empty batch.
  void build(const std::int64_t* keys, std::size_t n, const Partitioner& partitioner);

  std::size_t size() const noexcept { return inverse_.size(); }
  std::size_t n_unique() const noexcept { return unique_keys_.size(); }
  std::size_t n_servers() const noexcept { return group_starts_.size() - 1; }

  const std::int64_t* unique_keys() const noexcept { return unique_keys_.data(); }
  // The first index of group s in unique_keys(); s from 0 to n_servers(), both included.
  std::size_t group_start(std::size_t s) const noexcept { return group_starts_[s]; }
  const std::uint32_t* inverse() const noexcept { return inverse_.data(); }
  // True if unique_keys() is the batch itself: no key repeats and no key moves.
  bool in_order() const noexcept { return in_order_; }

  // The three functions below work on unique keys from .. from + count. Row j of `out` or
  // `unique_rows` belongs to unique key from + j. Arrays are row-major and do not overlap; `rows`
  // and `batch` have size() rows.
  //
  // Write out[j] = the sum of the rows of that key, added in the order of the batch, so that bits
  // are repeatable.
  void sum_rows(std::size_t from, std::size_t count, const float* rows, std::size_t dim,
                float* out) const noexcept;
  // Write out[j] = the first row of that key.
  void take_rows(std::size_t from, std::size_t count, const float* rows, std::size_t dim,
                 float* out) const noexcept;
  // Write batch[i] = unique_rows[j] for every place i of that key.
  void scatter_rows(std::size_t from, std::size_t count, const float* unique_rows, std::size_t dim,
                    float* batch) const noexcept;

 private:
  static constexpr std::uint32_t none = 0xFFFFFFFFu;

  void number_keys(const std::int64_t* keys, std::size_t n);
  void group_by_owner(const Partitioner& partitioner);
  void link_repeats();
  void prefetch_row(std::size_t u, const float* rows, std::size_t dim) const noexcept;

  SecretHash hash_;
  std::vector<std::int64_t> unique_keys_;
  std::vector<std::uint32_t> inverse_;
  std::vector<std::size_t> group_starts_ = {0};
  bool in_order_ = true;

  // The places of a key in the batch, ascending: first_[u], then next_ of each up to `none`.
  bool repeats_ = false;
  std::vector<std::uint32_t> first_;
  std::vector<std::uint32_t> next_;  // only if repeats_

  // Scratch memory. A key's number is its place in the order of first appearance.
  std::vector<std::uint32_t> table_;     // open addressing: a key's number + 1; 0: free
  std::vector<std::int64_t> appeared_;   // number -> key
  std::vector<std::uint16_t> owners_;    // number -> server
  std::vector<std::uint32_t> places_;    // number -> place in unique_keys_
  std::vector<std::size_t> next_place_;  // server -> next free place of its group
};

}  // namespace mpips
