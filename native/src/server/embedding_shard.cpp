#include "server/embedding_shard.hpp"

#include <algorithm>
#include <cstring>

#include "server/embedding_rows.hpp"
#include "server/shard_faults.hpp"
#include "shm/copy.hpp"

namespace mpips {
namespace {

// A table grows by a sixteenth, between these bounds. The upper bound keeps unused memory small;
// growing zeroes pages and takes milliseconds at most. The lower bound avoids many tiny steps.
constexpr std::size_t growth_bytes = std::size_t{64} << 20;
constexpr std::size_t least_growth_bytes = std::size_t{64} << 10;
// Rows lie anywhere in memory, so the next rows are prefetched: this many bytes in all, and at most
// this many lines of each row (the processor itself prefetches the lines that follow).
constexpr std::size_t prefetch_bytes = 8192;
constexpr std::size_t prefetch_lines = 16;

}  // namespace

EmbeddingShard::EmbeddingShard(SharedMemory rows, SharedMemory keys, std::size_t dim,
                               RowDtype dtype, Rule rule, Initializer initializer,
                               std::size_t n_workers, Progress progress, const Durable& durable)
    : Shard(std::move(rule)),
      dim_(dim),
      value_floats_(dtype == RowDtype::bf16 ? (dim + 1) / 2 : dim),
      stride_(value_floats_ + dim * rule_.n_state),
      row_state_(stride_),
      dtype_(dtype),
      changes_whole_(dtype == RowDtype::bf16 ||
                     (!rule_.python && n_row_state(rule_.optimizer.kind) != 0)),
      counts_steps_(dtype == RowDtype::bf16 || (!rule_.python && uses_step(rule_.optimizer.kind))),
      row_memory_(std::move(rows)),
      key_memory_(std::move(keys)),
      initializer_(initializer),
      progress_(std::move(progress)),
      assembly_(n_workers),
      accumulator_(n_workers),
      expected_(n_workers),
      scratch_(dim),
      widened_(dim),
      durable_(durable) {
  Stretches stretches(durable_, 5 * n_workers);
  for (std::size_t b = 0; b < n_workers; ++b) {
    stretches.place(&accumulator_[b].keys);
    stretches.place(&accumulator_[b].values);
    stretches.place(&assembly_[b].keys);
    stretches.place(&assembly_[b].values);
    stretches.place(&assembly_[b].base);
  }
  if (!rule_.python) stride_ += n_row_state(rule_.optimizer.kind);
  stride_ += counts_steps_ ? 1 : 0;
  const auto lines_of = [](std::size_t floats) {
    return std::min(prefetch_lines, round_up(floats * sizeof(float), line_bytes) / line_bytes);
  };
  row_lines_ = lines_of(stride_);
  value_lines_ = lines_of(value_floats_);
  ahead_ = std::clamp<std::size_t>(prefetch_bytes / (row_lines_ * line_bytes), 4, 32);
}

bool EmbeddingShard::accepts(const Update& part) const noexcept { return part.keys != nullptr; }

void EmbeddingShard::assemble(std::size_t worker, const Update& part, bool first) {
  Buffer& buffer = assembly_[worker];
  if (first) buffer.n = 0;
  const std::size_t from = buffer.n, n = from + part.count;
  buffer.has_base = part.base != nullptr;
  buffer.keys.need(n);
  buffer.values.need(n * dim_);
  std::copy_n(part.keys, part.count, buffer.keys.data() + from);
  std::copy_n(part.values, part.count * dim_, buffer.values.data() + from * dim_);
  buffer.n = n;
  if (part.base == nullptr) return;
  buffer.base.need(n * dim_);
  std::copy_n(part.base, part.count * dim_, buffer.base.data() + from * dim_);
}

Update EmbeddingShard::whole(std::size_t worker) const {
  const Buffer& buffer = assembly_[worker];
  Update update;
  update.count = buffer.n;
  update.keys = buffer.keys.data();
  update.values = buffer.values.data();
  update.base = buffer.has_base ? buffer.base.data() : nullptr;
  return update;
}

void EmbeddingShard::take_memory(std::size_t n_new) {
  if (storage_ != nullptr) return take_frames(n_new);
  const std::size_t before = map_.size();
  const std::size_t most = before + n_new;
  const std::size_t row_bytes = stride_ * sizeof(float);
  if (most * row_bytes <= row_memory_.size() && most * sizeof(std::int64_t) <= key_memory_.size() &&
      (!has_uses() || most * sizeof(RowUse) <= use_memory_->size()))
    return;
  const std::size_t step =
      std::clamp(before / 16, least_growth_bytes / row_bytes, growth_bytes / row_bytes);
  const std::size_t wanted = std::max(most, before + step);
  row_memory_.grow(wanted * row_bytes);
  key_memory_.grow(wanted * sizeof(std::int64_t));
  if (has_uses()) limits_->grow_uses(wanted);
  if (durable_.journal != nullptr)
    durable_.journal->set_segment(durable_.row_segment(), row_memory_.data());
}

// Find or make the rows of all keys. Memory is reserved first: if there is not enough, nothing has
// changed.
void EmbeddingShard::find_rows(const std::int64_t* keys, std::size_t n) {
  rows_.resize(n);
  take_memory(n);
  if (storage_ != nullptr) return find_stored(keys, n);
  find_or_make(keys, n, rows_.data());
}

void EmbeddingShard::find_or_make(const std::int64_t* keys, std::size_t n, std::uint32_t* rows) {
  const std::size_t before = map_.size();
  if (map_.find_or_insert(keys, n, rows) != 0) make_rows(keys, n, rows, before);
}

// Initialise new rows, which are numbered in the order of their first occurrence.
void EmbeddingShard::make_rows(const std::int64_t* keys, std::size_t n, const std::uint32_t* rows,
                               std::size_t first_new) {
  auto* stored_keys = reinterpret_cast<std::int64_t*>(key_memory_.data());
  std::size_t next = first_new;
  for (std::size_t i = 0; i < n; ++i) {
    if (rows[i] != next) continue;
    stored_keys[next] = keys[i];
    reset_row(storage_ == nullptr ? next : storage_->place(next), keys[i]);
    ++next;
  }
  if (has_uses())
    for (std::size_t r = first_new; r < next; ++r)
      limits_->set_use(r, {as_use_clock(limits_->now), 1});
  if (durable_.journal == nullptr) return;
  fault::at(fault::Point::rows_made);
  durable_.journal->set(durable_.journal->of_table(durable_.table, Journal::n_rows), next);
}

// Write the initial values and state of a row.
void EmbeddingShard::reset_row(std::size_t index, std::int64_t key) {
  float* r = row(index);
  if (dtype_ == RowDtype::float32) {
    initialize_row(initializer_, key, r, dim_);
  } else {
    initialize_row(initializer_, key, widened_.data(), dim_);
    store_values(widened_.data(), r);
  }
  for (std::size_t k = 0; k < rule_.n_state; ++k)
    std::fill_n(r + value_floats_ + k * dim_, dim_,
                rule_.python ? 0.0F : initial_state(rule_.optimizer, k));
  if (changes_whole_ && n_row_state(rule_.optimizer.kind) != 0)
    r[row_state_] = initial_state(rule_.optimizer, 0);
  if (counts_steps_) std::memset(r + stride_ - 1, 0, sizeof(float));
}

void EmbeddingShard::expect(std::size_t worker, const Update& part) {
  std::vector<std::uint32_t>& rows = expected_[worker];
  rows.resize(part.offset + part.count);
  map_.find(part.keys, part.count, rows.data() + part.offset);
}

void EmbeddingShard::make_expected(std::size_t worker, const std::vector<Update>& parts) {
  std::vector<std::uint32_t>& rows = expected_[worker];
  const auto n_new = static_cast<std::size_t>(std::count(rows.begin(), rows.end(), RowMap::npos));
  if (n_new != 0) {
    take_memory(n_new);
    map_.reserve(map_.size() + n_new);
    for (const Update& part : parts) find_or_make(part.keys, part.count, rows.data() + part.offset);
  }
  if (!notes_changes_) return;
  changed_.resize(map_.size(), next_version_);
  for (const std::uint32_t r : rows) changed_[r] = next_version_;
}

void EmbeddingShard::load(const std::int64_t* keys, std::size_t n, const float* rows) {
  if (storage_ != nullptr && n > storage_->most_at_once()) {
    const std::size_t first = storage_->most_at_once();
    load(keys, first, rows);
    return load(keys + first, n - first, rows + first * content_floats());
  }
  const std::size_t before = map_.size();
  find_rows(keys, n);
  const std::size_t n_content = content_floats();
  for (std::size_t i = 0; i < n; ++i) {
    float* r = row(rows_[i]);
    store_values(rows + i * n_content, r);
    std::copy_n(rows + i * n_content + dim_, n_content - dim_, r + value_floats_);
  }
  if (has_uses()) note_loaded(before);
}

void EmbeddingShard::set(const std::int64_t* keys, std::size_t n, const float* values) {
  if (storage_ != nullptr && n > storage_->most_at_once()) {
    const std::size_t first = storage_->most_at_once();
    set(keys, first, values);
    return set(keys + first, n - first, values + first * dim_);
  }
  const std::size_t before = map_.size();
  find_rows(keys, n);
  for (std::size_t i = 0; i < n; ++i) store_values(values + i * dim_, row(rows_[i]));
  if (has_uses()) note_loaded(before);
}

void EmbeddingShard::pull(const std::int64_t* keys, std::size_t n, float* out, bool past) {
  if (has_uses()) return pull_limited(keys, n, out);
  if (storage_ != nullptr) return pull_stored(keys, n, out);
  rows_.resize(n);
  map_.find(keys, n, rows_.data());
  for (std::size_t i = 0; i < std::min(ahead_, n); ++i)
    if (rows_[i] != RowMap::npos) prefetch<0>(rows_[i], value_lines_);
  for (std::size_t i = 0; i < n; ++i) {
    if (i + ahead_ < n && rows_[i + ahead_] != RowMap::npos)
      prefetch<0>(rows_[i + ahead_], value_lines_);
    if (rows_[i] == RowMap::npos)
      make_initial(keys[i], out + i * dim_);
    else if (past)
      stream_bytes(out + i * dim_, row(rows_[i]), dim_ * sizeof(float));
    else if (dtype_ == RowDtype::float32)
      std::memcpy(out + i * dim_, row(rows_[i]), dim_ * sizeof(float));
    else
      read(rows_[i], 0, dim_, out + i * dim_);
  }
  if (past) complete_streams();
}

std::size_t EmbeddingShard::memory_bytes() const {
  return row_memory_.size() + key_memory_.size() + map_.memory_bytes() +
         (limits_ != nullptr ? limits_->memory_bytes() : 0) +
         (storage_ != nullptr ? storage_->memory_bytes() : 0);
}

}  // namespace mpips
