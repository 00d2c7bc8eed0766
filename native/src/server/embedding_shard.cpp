#include "server/embedding_shard.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "server/shard_faults.hpp"

namespace mpips {
namespace {

constexpr std::size_t progress_rows = 256;
// A table grows by a sixteenth, between these bounds. The upper bound keeps unused memory small;
// growing zeroes pages and takes milliseconds at most. The lower bound avoids many tiny steps.
constexpr std::size_t growth_bytes = std::size_t{64} << 20;
constexpr std::size_t least_growth_bytes = std::size_t{64} << 10;
// Rows lie anywhere in memory, so the next rows are prefetched: this many bytes in all, and at most
// this many lines of each row (the processor itself prefetches the lines that follow).
constexpr std::size_t prefetch_bytes = 8192;
constexpr std::size_t prefetch_lines = 16;
// Bytes that a unit of the journal saves: they and their copy stay in the first-level cache.
constexpr std::size_t unit_bytes = 16 << 10;
constexpr std::size_t most_unit_rows = 256;

std::size_t unit_rows_for(std::size_t row_bytes) noexcept {
  return std::clamp<std::size_t>(unit_bytes / row_bytes, 1, most_unit_rows);
}

}  // namespace

EmbeddingShard::EmbeddingShard(SharedMemory rows, SharedMemory keys, std::size_t dim, Rule rule,
                               Initializer initializer, std::size_t n_workers, Progress progress,
                               const Durable& durable)
    : Shard(std::move(rule)),
      dim_(dim),
      stride_(dim * (1 + rule_.n_state)),
      counts_steps_(!rule_.python && uses_step(rule_.optimizer.kind)),
      row_memory_(std::move(rows)),
      key_memory_(std::move(keys)),
      initializer_(initializer),
      progress_(std::move(progress)),
      assembly_(n_workers),
      accumulator_(n_workers),
      expected_(n_workers),
      scratch_(dim),
      durable_(durable) {
  Stretches stretches(durable_, 5 * n_workers);
  for (std::size_t b = 0; b < n_workers; ++b) {
    stretches.place(&accumulator_[b].keys);
    stretches.place(&accumulator_[b].values);
    stretches.place(&assembly_[b].keys);
    stretches.place(&assembly_[b].values);
    stretches.place(&assembly_[b].base);
  }
  stride_ += counts_steps_ ? 1 : 0;
  const auto lines_of = [](std::size_t floats) {
    return std::min(prefetch_lines, round_up(floats * sizeof(float), line_bytes) / line_bytes);
  };
  row_lines_ = lines_of(stride_);
  value_lines_ = lines_of(dim_);
  ahead_ = std::clamp<std::size_t>(prefetch_bytes / (row_lines_ * line_bytes), 4, 32);
}

bool EmbeddingShard::accepts(const Update& part) const noexcept { return part.keys != nullptr; }

BufferWords EmbeddingShard::buffer_words(std::size_t number) const noexcept {
  const Buffer& parts = assembly_[number];
  return {accumulator_[number].n, parts.n, parts.has_base, 0};
}

void EmbeddingShard::set_buffer_words(std::size_t number, const BufferWords& words) {
  Buffer& sum = accumulator_[number];
  sum.n = words[0];
  sum.keys.taken(sum.n);
  sum.values.taken(sum.n * dim_);
  rows_.resize(sum.n);
  sum.index.clear();
  sum.index.find_or_insert(sum.keys.data(), sum.n, rows_.data());
  Buffer& parts = assembly_[number];
  parts.n = words[1];
  parts.has_base = words[2] != 0;
  parts.keys.taken(parts.n);
  parts.values.taken(parts.n * dim_);
  if (parts.has_base) parts.base.taken(parts.n * dim_);
}

// Rebuild the map from the keys of the rows.
void EmbeddingShard::take_over() {
  const Journal& journal = *durable_.journal;
  const std::size_t n = journal.word(journal.of_table(durable_.table, Journal::n_rows));
  const auto* stored = reinterpret_cast<const std::int64_t*>(key_memory_.data());
  if (n * sizeof(std::int64_t) > key_memory_.size() ||
      n * stride_ * sizeof(float) > row_memory_.size())
    throw RecoveryError("a table has fewer rows in memory than in its journal (" +
                        std::to_string(n) + ")");
  rows_.resize(n);
  map_.find_or_insert(stored, n, rows_.data());
  if (map_.size() != n)
    throw RecoveryError("the keys of a table in memory are damaged: one appears twice");
}

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
  const std::size_t before = map_.size();
  const std::size_t most = before + n_new;
  const std::size_t row_bytes = stride_ * sizeof(float);
  if (most * row_bytes <= row_memory_.size() && most * sizeof(std::int64_t) <= key_memory_.size())
    return;
  const std::size_t step =
      std::clamp(before / 16, least_growth_bytes / row_bytes, growth_bytes / row_bytes);
  const std::size_t wanted = std::max(most, before + step);
  row_memory_.grow(wanted * row_bytes);
  key_memory_.grow(wanted * sizeof(std::int64_t));
  if (durable_.journal != nullptr)
    durable_.journal->set_segment(durable_.row_segment(), row_memory_.data());
}

// Find or make the rows of all keys. Memory is reserved first: if there is not enough, nothing has
// changed.
void EmbeddingShard::find_rows(const std::int64_t* keys, std::size_t n) {
  rows_.resize(n);
  take_memory(n);
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
    float* r = row(next);
    stored_keys[next] = keys[i];
    initialize_row(initializer_, keys[i], r, dim_);
    for (std::size_t k = 0; k < rule_.n_state; ++k)
      std::fill_n(r + (1 + k) * dim_, dim_,
                  rule_.python ? 0.0F : initial_state(rule_.optimizer, k));
    if (counts_steps_) std::memset(r + stride_ - 1, 0, sizeof(float));
    ++next;
  }
  if (durable_.journal == nullptr) return;
  fault::at(fault::Point::rows_made);
  durable_.journal->set(durable_.journal->of_table(durable_.table, Journal::n_rows), next);
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

void EmbeddingShard::apply_expected(std::size_t worker, const Update& part, const Weight& weight,
                                    std::uint64_t step) {
  apply_rows(expected_[worker].data() + part.offset, part, weight, step);
}

void EmbeddingShard::load(const std::int64_t* keys, std::size_t n, const float* rows) {
  find_rows(keys, n);
  for (std::size_t i = 0; i < n; ++i) std::copy_n(rows + i * stride_, stride_, row(rows_[i]));
}

void EmbeddingShard::apply(const Update& update, const Weight& weight, std::uint64_t step) {
  if (rule_.python) {
    apply_python(update, weight, step);
  } else {
    find_rows(update.keys, update.count);
    apply_rows(rows_.data(), update, weight, step);
  }
  if (notes_changes_) note_changes(update);
}

// Note that the rows of an update, which both ways of applying leave in `rows_`, have changed.
void EmbeddingShard::note_changes(const Update& update) {
  changed_.resize(map_.size(), next_version_);
  for (std::size_t i = 0; i < update.count; ++i) changed_[rows_[i]] = next_version_;
}

void EmbeddingShard::find_changes(const std::int64_t* keys, std::size_t n, std::uint64_t since,
                                  std::uint64_t now, float* out) {
  if (!notes_changes_) changed_.assign(map_.size(), now);
  notes_changes_ = true;
  rows_.resize(n);
  map_.find(keys, n, rows_.data());
  // A key without a row has its initial value, which no update has changed.
  for (std::size_t i = 0; i < n; ++i)
    out[i] = rows_[i] != RowMap::npos && changed_[rows_[i]] > since ? 1.0F : 0.0F;
}

template <int for_writing>
inline void EmbeddingShard::prefetch(std::uint32_t index, std::size_t n_lines) const noexcept {
  const auto* at = reinterpret_cast<const char*>(row(index));
  for (std::size_t line = 0; line < n_lines; ++line)
    __builtin_prefetch(at + line * line_bytes, for_writing);
}

RowsToChange EmbeddingShard::rows_of(const std::uint32_t* rows, const Update& update,
                                     std::size_t from) noexcept {
  const std::size_t left = update.count - from;
  return {row(0),    rows + from, std::min(progress_rows, left), left,
          stride_,   dim_,        update.values + from * dim_,   ahead_,
          row_lines_};
}

// Return true for rows whose rule counts their steps or whose updates are compensated: each is
// changed by its own call of a kernel.
bool EmbeddingShard::one_by_one(const Update& update, float lambda) const noexcept {
  return counts_steps_ || (update.base != nullptr && lambda != 0.0F);
}

void EmbeddingShard::apply_rows(const std::uint32_t* rows, const Update& update,
                                const Weight& weight, std::uint64_t step) {
  if (durable_.journal != nullptr) return apply_logged(rows, update, weight, step);
  UpdateArgs args = prepare(rule_.optimizer, step, weight.factors);
  const auto kind = static_cast<std::size_t>(rule_.optimizer.kind);
  const UpdateFn change = kernels().update[kind];
  const bool single = one_by_one(update, weight.lambda);
  for (std::size_t i = 0; i < std::min(ahead_, update.count); ++i) prefetch<1>(rows[i], row_lines_);
  for (std::size_t i = 0; single && i < update.count; ++i) {
    if (i + ahead_ < update.count) prefetch<1>(rows[i + ahead_], row_lines_);
    float* r = row(rows[i]);
    if (counts_steps_) set_step(rule_.optimizer, count_step(r), &args);
    const float* base = update.base != nullptr ? update.base + i * dim_ : nullptr;
    const float* gradient = compensated(r, update.values + i * dim_, base, weight.lambda);
    float* s0 = rule_.n_state > 0 ? r + dim_ : nullptr;
    float* s1 = rule_.n_state > 1 ? r + 2 * dim_ : nullptr;
    change(r, s0, s1, gradient, dim_, args);
    if (progress_ && i % progress_rows == progress_rows - 1) progress_();
  }
  for (std::size_t i = 0; !single && i < update.count; i += progress_rows) {
    kernels().update_rows[kind](rows_of(rows, update, i), args);
    if (progress_) progress_();
  }
}

// Apply an update with kernels that save what they change. Elements are numbered through the whole
// update. A repeated operation may continue in the middle of a row; that row's step is not counted
// yet.
void EmbeddingShard::apply_logged(const std::uint32_t* rows, const Update& update,
                                  const Weight& weight, std::uint64_t step) {
  Journal& journal = *durable_.journal;
  const auto kind = static_cast<std::size_t>(rule_.optimizer.kind);
  const std::uint64_t part = journal.enter_part();
  journal.begin();
  journal.keep_pieces(durable_.row_segment(), dim_ * sizeof(float), 1 + rule_.n_state,
                      counts_steps_);
  UpdateArgs args = prepare(rule_.optimizer, step, weight.factors);
  const std::uint64_t n = update.count * dim_, left = journal.first_left(part, n);
  // Do not set the position again if everything is done: it must not move backwards.
  if (left == n) return;
  const bool single = fault::armed() || one_by_one(update, weight.lambda);
  const LoggedUpdateFn change = kernels().update_logged[kind];
  for (std::size_t i = 0; i < std::min(ahead_, update.count); ++i) prefetch<1>(rows[i], row_lines_);
  std::size_t i = left / dim_, done = left % dim_;  // elements of the first row that are done
  for (; i < update.count && (single || done != 0); ++i, done = 0) {
    if (i + ahead_ < update.count) prefetch<1>(rows[i + ahead_], row_lines_);
    float* r = row(rows[i]);
    const std::uint64_t first = i * dim_, element = Journal::unit(part, first);
    const std::uint64_t at = rows[i] * stride_ * sizeof(float);
    if (counts_steps_) {
      const std::uint32_t steps = steps_of(r);
      journal.place(i, at, first, at + (stride_ - 1) * sizeof(float), steps);
      set_step(rule_.optimizer, steps + 1, &args);
    } else {
      journal.place(i, at, first);
    }
    fault::at(fault::Point::unit_saved);
    const float* base = update.base != nullptr ? update.base + first : nullptr;
    const float* gradient = compensated(r, update.values + first, base, weight.lambda);
    fault::in_two(
        dim_ - done, 2, 2,
        [&](std::size_t skipped, std::size_t count) {
          const std::size_t from = done + skipped;
          const std::uint64_t slot = skipped == 0 ? 0 : 1;
          change_logged(change, r, from, from + count, gradient, args,
                        Journal::at(element, i, slot));
        },
        [] { fault::at(fault::Point::unit_changing); });
    if (counts_steps_) count_step(r);
    Journal::barrier();
    fault::at(fault::Point::unit_done);
    if (progress_ && i % progress_rows == progress_rows - 1) progress_();
  }
  for (; i < update.count; i += progress_rows) {
    kernels().update_rows_logged[kind](rows_of(rows, update, i), args, journal.undo_slots(), part,
                                       i);
    if (progress_) progress_();
  }
  journal.reached(Journal::unit(part, n));
}

inline void EmbeddingShard::change_logged(LoggedUpdateFn change, float* r, std::size_t from,
                                          std::size_t to, const float* gradient,
                                          const UpdateArgs& args, std::uint64_t at) {
  float* s0 = rule_.n_state > 0 ? r + dim_ + from : nullptr;
  float* s1 = rule_.n_state > 1 ? r + 2 * dim_ + from : nullptr;
  change(r + from, s0, s1, gradient + from, to - from, args, durable_.journal->undo_slots(),
         Journal::unit(at, from));
}

std::uint32_t EmbeddingShard::steps_of(const float* r) const noexcept {
  std::uint32_t step = 0;
  std::memcpy(&step, r + stride_ - 1, sizeof step);
  // Count no further at the end of 32 bits: after 0 the bias correction would begin again.
  return std::min(step, std::numeric_limits<std::uint32_t>::max() - 1);
}

std::uint32_t EmbeddingShard::count_step(float* r) const noexcept {
  const std::uint32_t step = steps_of(r) + 1;
  std::memcpy(r + stride_ - 1, &step, sizeof step);
  return step;
}

inline const float* EmbeddingShard::compensated(const float* r, const float* update,
                                                const float* base, float lambda) {
  if (base == nullptr || lambda == 0.0F) return update;
  kernels().compensate(scratch_.data(), update, r, base, lambda, dim_);
  return scratch_.data();
}

// Apply a user's rule, which sees the touched rows as one flat array: gather them, run it, scatter.
void EmbeddingShard::apply_python(const Update& update, const Weight& weight, std::uint64_t step) {
  find_rows(update.keys, update.count);
  const std::size_t n = update.count * dim_;
  std::vector<float> values(n * (1 + rule_.n_state)), scaled(update.values, update.values + n);
  std::vector<float*> state;
  for (std::size_t k = 0; k < rule_.n_state; ++k) state.push_back(values.data() + (1 + k) * n);
  for (std::size_t i = 0; i < update.count; ++i)
    for (std::size_t k = 0; k <= rule_.n_state; ++k)
      std::copy_n(row(rows_[i]) + k * dim_, dim_, values.data() + k * n + i * dim_);
  if (update.base != nullptr && weight.lambda != 0.0F)
    kernels().compensate(scaled.data(), update.values, values.data(), update.base, weight.lambda,
                         n);
  const Factors& factors = weight.factors;
  if (factors.gradient != 1.0F) kernels().scale(scaled.data(), factors.gradient, n);
  std::vector<float> before;
  if (factors.rate != 1.0F) before.assign(values.data(), values.data() + n);
  rule_.python(values.data(), state.data(), state.size(), scaled.data(), n, step);
  if (!before.empty()) take_share(values.data(), before.data(), n, factors.rate);
  Journal* journal = durable_.journal;
  const std::uint64_t unit = journal != nullptr ? journal->enter_part() : 0;
  if (journal != nullptr) {
    if (journal->past(unit)) return;
    journal->save_start(update.count, stride_ * sizeof(float));
    for (std::size_t i = 0; i < update.count; ++i)
      journal->save(durable_.row_segment(), row(rows_[i]));
    journal->saved(unit);
  }
  for (std::size_t i = 0; i < update.count; ++i)
    for (std::size_t k = 0; k <= rule_.n_state; ++k)
      std::copy_n(values.data() + k * n + i * dim_, dim_, row(rows_[i]) + k * dim_);
  if (journal != nullptr) journal->done(unit);
}

void EmbeddingShard::add(Buffer* sum, const std::int64_t* keys, const float* values,
                         std::size_t n) {
  rows_.resize(n);
  const std::size_t before = sum->n;
  sum->n += sum->index.find_or_insert(keys, n, rows_.data());
  sum->values.need(sum->n * dim_);
  sum->keys.need(sum->n);
  if (durable_.journal != nullptr) {
    for (std::size_t i = 0; i < n; ++i) sum->keys[rows_[i]] = keys[i];
    return add_units(sum, before, values, n);
  }
  std::fill(sum->values.data() + before * dim_, sum->values.data() + sum->n * dim_, 0.0F);
  for (std::size_t i = 0; i < n; ++i) {
    sum->keys[rows_[i]] = keys[i];
    kernels().add(sum->values.data() + rows_[i] * dim_, values + i * dim_, dim_);
  }
}

// Set the new rows of the sum to zero in a part of its own. That part may be done twice, but not
// after the next part has begun.
void EmbeddingShard::add_units(Buffer* sum, std::size_t before, const float* values,
                               std::size_t n) {
  Journal& journal = *durable_.journal;
  float* to = sum->values.data();
  const std::uint64_t zeroing = journal.enter_part();
  if (!journal.past(zeroing)) {
    std::fill(to + before * dim_, to + sum->n * dim_, 0.0F);
    journal.begin();
    journal.done(zeroing);
  }
  const std::uint64_t part = journal.enter_part();
  const std::size_t row_bytes = dim_ * sizeof(float), most = unit_rows_for(row_bytes);
  for (std::size_t from = 0; from < n; from += most) {
    const std::uint64_t unit = Journal::unit(part, from / most);
    if (journal.past(unit)) continue;
    const std::size_t stop = std::min(from + most, n);
    journal.save_start(stop - from, row_bytes);
    for (std::size_t i = from; i < stop; ++i)
      journal.save(durable_.buffer_segment(), to + rows_[i] * dim_);
    journal.saved(unit);
    for (std::size_t i = from; i < stop; ++i) {
      if (i == from + (stop - from) / 2) fault::at(fault::Point::unit_changing);
      kernels().add(to + rows_[i] * dim_, values + i * dim_, dim_);
    }
    journal.done(unit);
  }
}

void EmbeddingShard::accumulate(std::size_t buffer, const Update& part) {
  add(&accumulator_[buffer], part.keys, part.values, part.count);
}

bool EmbeddingShard::apply_accumulated(const std::vector<std::size_t>& buffers,
                                       const Weight& weight, std::uint64_t step) {
  Buffer* total = nullptr;
  for (const std::size_t b : buffers) {
    Buffer& part = accumulator_[b];
    if (part.n == 0) continue;
    if (total == nullptr)
      total = &part;
    else
      add(total, part.keys.data(), part.values.data(), part.n);
  }
  if (total == nullptr) return false;
  Update update;
  update.count = total->n;
  update.keys = total->keys.data();
  update.values = total->values.data();
  apply(update, weight, step);
  for (const std::size_t b : buffers) discard(b);
  return true;
}

void EmbeddingShard::discard(std::size_t buffer) {
  Buffer& b = accumulator_[buffer];
  b.n = 0;
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
