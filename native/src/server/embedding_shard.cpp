#include "server/embedding_shard.hpp"

#include <algorithm>
#include <cstring>

namespace mpips {
namespace {

constexpr std::size_t progress_rows = 256;
// A table grows by a sixteenth, and by no more than this: what is taken and not yet used stays
// small, and taking it, which zeroes pages, takes milliseconds at most.
constexpr std::size_t growth_bytes = std::size_t{64} << 20;
// Rows come from anywhere in memory: so many bytes of the next ones are asked for ahead, and so
// many lines of each (what follows the processor asks for by itself).
constexpr std::size_t prefetch_bytes = 8192;
constexpr std::size_t prefetch_lines = 16;

}  // namespace

EmbeddingShard::EmbeddingShard(SharedMemory rows, SharedMemory keys, std::size_t dim, Rule rule,
                               Initializer initializer, std::size_t n_workers, Progress progress)
    : dim_(dim),
      stride_(dim * (1 + rule.n_state)),
      counts_steps_(!rule.python && uses_step(rule.optimizer.kind)),
      row_memory_(std::move(rows)),
      key_memory_(std::move(keys)),
      rule_(std::move(rule)),
      initializer_(initializer),
      progress_(std::move(progress)),
      assembly_(n_workers),
      accumulator_(n_workers),
      expected_(n_workers),
      scratch_(dim) {
  stride_ += counts_steps_ ? 1 : 0;
  const auto lines_of = [](std::size_t floats) {
    return std::min(prefetch_lines, round_up(floats * sizeof(float), line_bytes) / line_bytes);
  };
  row_lines_ = lines_of(stride_);
  value_lines_ = lines_of(dim_);
  ahead_ = std::clamp<std::size_t>(prefetch_bytes / (row_lines_ * line_bytes), 4, 32);
}

bool EmbeddingShard::accepts(const Update& part) const noexcept { return part.keys != nullptr; }

void EmbeddingShard::assemble(std::size_t worker, const Update& part, bool first) {
  Buffer& buffer = assembly_[worker];
  if (first) {
    buffer.keys.clear();
    buffer.values.clear();
    buffer.base.clear();
  }
  buffer.has_base = part.base != nullptr;
  buffer.keys.insert(buffer.keys.end(), part.keys, part.keys + part.count);
  buffer.values.insert(buffer.values.end(), part.values, part.values + part.count * dim_);
  if (part.base != nullptr)
    buffer.base.insert(buffer.base.end(), part.base, part.base + part.count * dim_);
}

Update EmbeddingShard::whole(std::size_t worker) const {
  const Buffer& buffer = assembly_[worker];
  Update update;
  update.count = buffer.keys.size();
  update.keys = buffer.keys.data();
  update.values = buffer.values.data();
  update.base = buffer.has_base ? buffer.base.data() : nullptr;
  return update;
}

void EmbeddingShard::take_memory(std::size_t n_new) {
  const std::size_t before = map_.size();
  const std::size_t most = before + n_new;
  const std::size_t row_bytes = stride_ * sizeof(float);
  if (most * row_bytes <= row_memory_.size() && most * sizeof(std::int64_t) <= key_memory_.size())
    return;
  const std::size_t wanted =
      std::max(most, before + std::min(before / 16, growth_bytes / row_bytes));
  row_memory_.grow(wanted * row_bytes);
  key_memory_.grow(wanted * sizeof(std::int64_t));
}

// Memory is taken first: if there is none, nothing has changed.
void EmbeddingShard::find_rows(const std::int64_t* keys, std::size_t n) {
  rows_.resize(n);
  take_memory(n);
  find_or_make(keys, n, rows_.data());
}

void EmbeddingShard::find_or_make(const std::int64_t* keys, std::size_t n, std::uint32_t* rows) {
  const std::size_t before = map_.size();
  if (map_.find_or_insert(keys, n, rows) != 0) make_rows(keys, n, rows, before);
}

// New rows are numbered in the order of their first occurrence.
void EmbeddingShard::make_rows(const std::int64_t* keys, std::size_t n, const std::uint32_t* rows,
                               std::size_t first_new) {
  auto* stored_keys = reinterpret_cast<std::int64_t*>(key_memory_.data());
  std::size_t next = first_new;
  for (std::size_t i = 0; i < n; ++i) {
    if (rows[i] != next) continue;
    float* r = row(next);
    stored_keys[next] = keys[i];
    initialize_row(initializer_, keys[i], r, dim_);
    for (std::size_t k = 0; k < rule_.n_state; ++k)
      std::fill_n(r + (1 + k) * dim_, dim_,
                  rule_.python ? 0.0F : initial_state(rule_.optimizer, k));
    if (counts_steps_) std::memset(r + stride_ - 1, 0, sizeof(float));
    ++next;
  }
}

void EmbeddingShard::expect(std::size_t worker, const Update& part) {
  std::vector<std::uint32_t>& rows = expected_[worker];
  rows.resize(part.offset + part.count);
  map_.find(part.keys, part.count, rows.data() + part.offset);
}

void EmbeddingShard::make_expected(std::size_t worker, const std::vector<Update>& parts) {
  std::vector<std::uint32_t>& rows = expected_[worker];
  const auto n_new = static_cast<std::size_t>(std::count(rows.begin(), rows.end(), RowMap::npos));
  if (n_new == 0) return;
  take_memory(n_new);
  map_.reserve(map_.size() + n_new);
  for (const Update& part : parts) find_or_make(part.keys, part.count, rows.data() + part.offset);
}

void EmbeddingShard::apply_expected(std::size_t worker, const Update& part, float scale,
                                    float lambda, std::uint64_t step) {
  apply_rows(expected_[worker].data() + part.offset, part, scale, lambda, step);
}

void EmbeddingShard::load(const std::int64_t* keys, std::size_t n, const float* rows) {
  find_rows(keys, n);
  for (std::size_t i = 0; i < n; ++i) std::copy_n(rows + i * stride_, stride_, row(rows_[i]));
}

void EmbeddingShard::apply(const Update& update, float scale, float lambda, std::uint64_t step) {
  if (rule_.python) return apply_python(update, scale, lambda, step);
  find_rows(update.keys, update.count);
  apply_rows(rows_.data(), update, scale, lambda, step);
}

template <int for_writing>
inline void EmbeddingShard::prefetch(std::uint32_t index, std::size_t n_lines) const noexcept {
  const auto* at = reinterpret_cast<const char*>(row(index));
  for (std::size_t line = 0; line < n_lines; ++line)
    __builtin_prefetch(at + line * line_bytes, for_writing);
}

void EmbeddingShard::apply_rows(const std::uint32_t* rows, const Update& update, float scale,
                                float lambda, std::uint64_t step) {
  UpdateArgs args = prepare(rule_.optimizer, step, scale);
  for (std::size_t i = 0; i < std::min(ahead_, update.count); ++i) prefetch<1>(rows[i], row_lines_);
  for (std::size_t i = 0; i < update.count; ++i) {
    if (i + ahead_ < update.count) prefetch<1>(rows[i + ahead_], row_lines_);
    float* r = row(rows[i]);
    if (counts_steps_) args = prepare(rule_.optimizer, count_step(r), scale);
    const float* base = update.base != nullptr ? update.base + i * dim_ : nullptr;
    apply_row(r, update.values + i * dim_, base, lambda, args);
    if (progress_ && i % progress_rows == progress_rows - 1) progress_();
  }
}

std::uint32_t EmbeddingShard::count_step(float* r) const noexcept {
  std::uint32_t step = 0;
  std::memcpy(&step, r + stride_ - 1, sizeof step);
  ++step;
  std::memcpy(r + stride_ - 1, &step, sizeof step);
  return step;
}

void EmbeddingShard::apply_row(float* r, const float* update, const float* base, float lambda,
                               const UpdateArgs& args) {
  if (base != nullptr && lambda != 0.0F) {
    kernels().compensate(scratch_.data(), update, r, base, lambda, dim_);
    update = scratch_.data();
  }
  float* s0 = rule_.n_state > 0 ? r + dim_ : nullptr;
  float* s1 = rule_.n_state > 1 ? r + 2 * dim_ : nullptr;
  kernels().update[static_cast<std::size_t>(rule_.optimizer.kind)](r, s0, s1, update, dim_, args);
}

// The user's rule sees the touched rows as one flat array; they are gathered and put back.
void EmbeddingShard::apply_python(const Update& update, float scale, float lambda,
                                  std::uint64_t step) {
  find_rows(update.keys, update.count);
  const std::size_t n = update.count * dim_;
  std::vector<float> values(n * (1 + rule_.n_state)), scaled(update.values, update.values + n);
  std::vector<float*> state;
  for (std::size_t k = 0; k < rule_.n_state; ++k) state.push_back(values.data() + (1 + k) * n);
  for (std::size_t i = 0; i < update.count; ++i)
    for (std::size_t k = 0; k <= rule_.n_state; ++k)
      std::copy_n(row(rows_[i]) + k * dim_, dim_, values.data() + k * n + i * dim_);
  if (update.base != nullptr && lambda != 0.0F)
    kernels().compensate(scaled.data(), update.values, values.data(), update.base, lambda, n);
  if (scale != 1.0F) kernels().scale(scaled.data(), scale, n);
  rule_.python(values.data(), state.data(), state.size(), scaled.data(), n, step);
  for (std::size_t i = 0; i < update.count; ++i)
    for (std::size_t k = 0; k <= rule_.n_state; ++k)
      std::copy_n(values.data() + k * n + i * dim_, dim_, row(rows_[i]) + k * dim_);
}

void EmbeddingShard::add(Buffer* sum, const std::int64_t* keys, const float* values, std::size_t n,
                         std::size_t dim, std::vector<std::uint32_t>* rows) {
  rows->resize(n);
  const std::size_t before = sum->index.size();
  const std::size_t added = sum->index.find_or_insert(keys, n, rows->data());
  sum->values.resize((before + added) * dim, 0.0F);
  sum->keys.resize(before + added);
  for (std::size_t i = 0; i < n; ++i) {
    sum->keys[(*rows)[i]] = keys[i];
    kernels().add(sum->values.data() + (*rows)[i] * dim, values + i * dim, dim);
  }
}

void EmbeddingShard::accumulate(std::size_t buffer, const Update& part) {
  add(&accumulator_[buffer], part.keys, part.values, part.count, dim_, &rows_);
}

bool EmbeddingShard::apply_accumulated(const std::vector<std::size_t>& buffers, float scale,
                                       std::uint64_t step) {
  Buffer* total = nullptr;
  for (const std::size_t b : buffers) {
    Buffer& part = accumulator_[b];
    if (part.keys.empty()) continue;
    if (total == nullptr)
      total = &part;
    else
      add(total, part.keys.data(), part.values.data(), part.keys.size(), dim_, &rows_);
  }
  if (total == nullptr) return false;
  Update update;
  update.count = total->keys.size();
  update.keys = total->keys.data();
  update.values = total->values.data();
  apply(update, scale, 0.0F, step);
  for (const std::size_t b : buffers) discard(b);
  return true;
}

void EmbeddingShard::discard(std::size_t buffer) {
  Buffer& b = accumulator_[buffer];
  b.keys.clear();
  b.values.clear();
  b.index.clear();
}

void EmbeddingShard::pull(const std::int64_t* keys, std::size_t n, float* out) {
  rows_.resize(n);
  map_.find(keys, n, rows_.data());
  for (std::size_t i = 0; i < std::min(ahead_, n); ++i)
    if (rows_[i] != RowMap::npos) prefetch<0>(rows_[i], value_lines_);
  for (std::size_t i = 0; i < n; ++i) {
    if (i + ahead_ < n && rows_[i + ahead_] != RowMap::npos)
      prefetch<0>(rows_[i + ahead_], value_lines_);
    if (rows_[i] == RowMap::npos)
      initialize_row(initializer_, keys[i], out + i * dim_, dim_);
    else
      std::memcpy(out + i * dim_, row(rows_[i]), dim_ * sizeof(float));
  }
}

std::size_t EmbeddingShard::memory_bytes() const {
  return row_memory_.size() + key_memory_.size() + map_.memory_bytes();
}

}  // namespace mpips
