#include <algorithm>
#include <cstring>

#include "server/embedding_rows.hpp"
#include "server/shard_faults.hpp"

// Rows of which some lie in a file (see row_storage.hpp). What a push or a pull needs is brought to
// memory first, so many rows at a time as memory has room for; then the rows are changed or read
// there as those of any table, by the numbers of their frames.
//
// With a journal each of these groups of rows is a part of the operation of its own. The groups of
// a repeated operation are the same, because the number of frames is that of the process before.
// Before a group is brought to memory, the part before it has ended, so the journal has no old
// bytes of a frame (see Journal::undo for the time after a kill).
namespace mpips {

// Reserve memory and space in the file for new rows.
void EmbeddingShard::take_frames(std::size_t n_new) {
  constexpr std::size_t most_growth_bytes = std::size_t{64} << 20;
  const std::size_t n = map_.size() + n_new, row_bytes = stride_ * sizeof(float);
  const auto grow = [&](SharedMemory* memory, std::size_t needed, std::size_t most) {
    if (needed <= memory->size()) return;
    const std::size_t ahead = std::min(memory->size() / 16, most_growth_bytes);
    memory->grow(std::max(needed, std::min(memory->size() + ahead, most)));
  };
  const std::size_t most_bytes = storage_->frames_for(RowMap::npos) * row_bytes;
  grow(&row_memory_, storage_->frames_for(n) * row_bytes, most_bytes);
  grow(&key_memory_, n * sizeof(std::int64_t), std::size_t{RowMap::npos} * sizeof(std::int64_t));
  storage_->reserve(n);
  if (durable_.journal != nullptr)
    durable_.journal->set_segment(durable_.row_segment(), row_memory_.data());
}

// Set `numbers_` to the rows of keys, which are made if they are new, and `rows_` to their frames.
// There must be memory for them.
void EmbeddingShard::find_stored(const std::int64_t* keys, std::size_t n) {
  const std::size_t before = map_.size();
  numbers_.resize(n);
  const std::size_t n_new = map_.find_or_insert(keys, n, numbers_.data());
  try {
    storage_->bring(numbers_.data(), n, before, row(0), this->keys(), rows_.data());
  } catch (...) {
    // Nothing is made of the new rows.
    for (std::size_t i = 0; i < n; ++i)
      if (numbers_[i] >= before && numbers_[i] != RowMap::npos) map_.erase(keys[i]);
    throw;
  }
  if (n_new != 0) make_rows(keys, n, numbers_.data(), before);
}

void EmbeddingShard::apply_stored(const Update& update, const Weight& weight, std::uint64_t step) {
  take_memory(update.count);
  const std::size_t most = storage_->most_at_once();
  for (std::size_t from = 0; from < update.count; from += most) {
    Update part = update;
    part.count = std::min(most, update.count - from);
    part.keys = update.keys + from;
    part.values = update.values + from * dim_;
    if (update.base != nullptr) part.base = update.base + from * dim_;
    find_rows(part.keys, part.count);
    apply_rows(rows_.data(), part, weight, step);
    if (notes_changes_) {
      changed_.resize(map_.size(), next_version_);
      for (const std::uint32_t r : numbers_) changed_[r] = next_version_;
    }
  }
}

void EmbeddingShard::pull_stored(const std::int64_t* keys, std::size_t n, float* out) {
  const std::size_t most = storage_->most_at_once();
  for (std::size_t from = 0; from < n; from += most) {
    const std::size_t count = std::min(most, n - from);
    rows_.resize(count);
    map_.find(keys + from, count, rows_.data());
    storage_->bring(rows_.data(), count, map_.size(), row(0), this->keys(), rows_.data());
    for (std::size_t i = 0; i < std::min(ahead_, count); ++i)
      if (rows_[i] != RowMap::npos) prefetch<0>(rows_[i], value_lines_);
    for (std::size_t i = 0; i < count; ++i) {
      if (i + ahead_ < count && rows_[i + ahead_] != RowMap::npos)
        prefetch<0>(rows_[i + ahead_], value_lines_);
      if (rows_[i] == RowMap::npos)
        make_initial(keys[from + i], out + (from + i) * dim_);
      else
        read_content(row(rows_[i]), 0, dim_, out + (from + i) * dim_);
    }
    if (progress_) progress_();
  }
}

// Return the stored floats of a row, wherever it lies; valid until the next call.
const float* EmbeddingShard::content_of(std::size_t index) const {
  const std::uint32_t at = storage_->place(index);
  if ((at & RowStorage::in_file) == 0) return row(at);
  content_.resize(stride_);
  storage_->read_slot(at, keys()[index], content_.data());
  return content_.data();
}

}  // namespace mpips
