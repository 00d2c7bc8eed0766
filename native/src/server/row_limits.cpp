#include "server/row_limits.hpp"

#include <algorithm>
#include <cstring>

#include "journal/journal.hpp"
#include "keys/mix.hpp"

namespace mpips {
namespace {

// The hash that a Partitioner uses: the same in all processes.
std::uint64_t common_hash(std::int64_t key) noexcept {
  return mix_splitmix(static_cast<std::uint64_t>(key) + splitmix_step);
}

}  // namespace

RowSets::RowSets(std::uint64_t most_rows) {
  std::size_t n_sets = 1;
  while (most_rows / (2 * n_sets) >= least_rows) {
    n_sets *= 2;
    --shift_;
  }
  most_ = static_cast<std::size_t>(most_rows / n_sets);
  members_.resize(n_sets);
  waits_.assign(n_sets, 0);
  bytes_ = n_sets * (sizeof(members_[0]) + 1);
}

std::size_t RowSets::set_of(std::int64_t key) const noexcept {
  return shift_ == 64 ? 0 : static_cast<std::size_t>(common_hash(key) >> shift_);
}

void RowSets::add(std::size_t set, std::uint32_t row) {
  std::vector<std::uint32_t>& rows = members_[set];
  const std::size_t before = rows.capacity();
  rows.push_back(row);
  bytes_ += (rows.capacity() - before) * sizeof(std::uint32_t);
  if (rows.size() <= most_ || waits_[set] != 0) return;
  waiting_.push_back(set);
  waits_[set] = 1;
}

void RowSets::remove(std::size_t set, std::uint32_t row) noexcept {
  std::vector<std::uint32_t>& rows = members_[set];
  const auto at = std::find(rows.begin(), rows.end(), row);
  *at = rows.back();
  rows.pop_back();
}

void RowSets::rename(std::size_t set, std::uint32_t from, std::uint32_t to) noexcept {
  std::vector<std::uint32_t>& rows = members_[set];
  *std::find(rows.begin(), rows.end(), from) = to;
}

void RowSets::prefetch_overfull() const noexcept {
  const std::size_t n = waiting_.size();
  if (n > 1) prefetch_members(waiting_[n - 2]);
  if (n > 2) prefetch_place(waiting_[n - 3]);
}

void RowSets::prefetch_members(std::size_t set) const noexcept {
  constexpr std::size_t most_lines = 8;
  const std::vector<std::uint32_t>& rows = members_[set];
  const auto* at = reinterpret_cast<const char*>(rows.data());
  const std::size_t n_bytes = rows.size() * sizeof(std::uint32_t);
  for (std::size_t k = 0; k < std::min(n_bytes, most_lines * line_bytes); k += line_bytes)
    __builtin_prefetch(at + k, 1);
}

std::size_t RowSets::next_overfull() noexcept {
  const std::size_t set = waiting_.back();
  waiting_.pop_back();
  waits_[set] = 0;
  return set;
}

RowLimits::RowLimits(const LimitsConfig& config, SharedMemory* uses, SharedMemory* counts)
    : config_(config), uses_(uses), counts_(counts) {
  if (config.eviction == Eviction::recent || config.eviction == Eviction::frequent)
    sets_.emplace_back(config.most_rows);
  if (counts_ == nullptr) return;
  for (std::size_t n = counts_->size() / line_bytes; n > 1; n /= 2) --block_shift_;
}

void RowLimits::grow_uses(std::size_t n_rows) { uses_->grow(n_rows * sizeof(RowUse)); }

void RowLimits::shrink_uses(std::size_t n_rows) { uses_->shrink(n_rows * sizeof(RowUse)); }

// Return the block of a key and its two cells there, which differ. The leading bits of the
// partition's hash give the block, so its other keys are on the same server.
std::uint32_t* RowLimits::block_of(std::int64_t key, unsigned* first,
                                   unsigned* second) const noexcept {
  const std::uint64_t hash = common_hash(key);
  const std::size_t block = block_shift_ == 64 ? 0 : static_cast<std::size_t>(hash >> block_shift_);
  const std::uint64_t low = mix_splitmix(hash);
  *first = static_cast<unsigned>(low % cells_per_block);
  *second =
      static_cast<unsigned>((*first + 1 + (low >> 32) % (cells_per_block - 1)) % cells_per_block);
  return reinterpret_cast<std::uint32_t*>(counts_->data() + block * line_bytes);
}

void RowLimits::prefetch(std::int64_t key) const noexcept {
  unsigned first = 0, second = 0;
  if (counts_ != nullptr) __builtin_prefetch(block_of(key, &first, &second), 1);
}

bool RowLimits::admit(std::int64_t key) noexcept {
  if (config_.admission == Admission::all) return true;
  if (config_.admission == Admission::random) {
    const std::uint64_t drawn =
        mix_splitmix(common_hash(key) ^ mix_splitmix(config_.seed + now * splitmix_step));
    return static_cast<double>(drawn >> 11) * 0x1.0p-53 < config_.probability;
  }
  // A clock is stored as its number plus one, so that 0 is a cell that was never changed.
  constexpr std::uint32_t clock_mask = (1U << (32 - count_bits)) - 1;
  const auto clock = static_cast<std::uint32_t>((now + 1) & clock_mask);
  unsigned at[2];
  std::uint32_t* block = block_of(key, &at[0], &at[1]);
  std::uint32_t least = ~0U;
  for (const unsigned cell : at) {
    const std::uint32_t word = block[cell], then = word >> count_bits;
    std::uint32_t count = word & ((1U << count_bits) - 1);
    if (then != clock || count == 0) {
      if (((clock - then) & clock_mask) > config_.within) count = 0;
      count = std::min(count + 1, (1U << count_bits) - 1);
      block[cell] = clock << count_bits | count;
    }
    least = std::min(least, count);
  }
  return least >= config_.least_clocks;
}

void RowLimits::note_removed(std::int64_t key) {
  if (removed_.empty()) removed_.assign(remembered, 0);
  const std::uint64_t hash = common_hash(key);
  removed_[hash % remembered] = static_cast<std::uint32_t>(hash >> 32) | 1;
}

bool RowLimits::comes_back(std::int64_t key) noexcept {
  if (removed_.empty()) return false;
  const std::uint64_t hash = common_hash(key);
  std::uint32_t& place = removed_[hash % remembered];
  if (place != (static_cast<std::uint32_t>(hash >> 32) | 1)) return false;
  place = 0;
  return true;
}

std::size_t RowLimits::memory_bytes() const noexcept {
  return (uses_ != nullptr ? uses_->size() : 0) + (counts_ != nullptr ? counts_->size() : 0) +
         (has_sets() ? sets().memory_bytes() : 0) + removed_.size() * sizeof(std::uint32_t);
}

}  // namespace mpips
