#include <algorithm>
#include <vector>

#include "server/embedding_rows.hpp"

// Updates of rows: by a kernel, or by a user's rule in Python. The updates of a shard with a
// journal are in embedding_journal.cpp.
namespace mpips {

void EmbeddingShard::apply(const Update& update, const Weight& weight, std::uint64_t step) {
  if (storage_ != nullptr) return apply_stored(update, weight, step);
  if (limits_ != nullptr) {
    apply_limited(update, weight, step);
  } else if (rule_.python) {
    apply_python(update, weight, step);
  } else {
    find_rows(update.keys, update.count);
    apply_rows(rows_.data(), update, weight, step);
  }
  if (notes_changes_ && limits_ == nullptr) note_changes(update);
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
  if (has_uses()) {
    make_room_in(keys, n);
    changed_.resize(map_.size(), now);
  }
  rows_.resize(n);
  map_.find(keys, n, rows_.data());
  if (has_uses()) {
    for (std::size_t i = 0; i < n; ++i) out[i] = is_changed(rows_[i], since, now) ? 1.0F : 0.0F;
    return;
  }
  // A key without a row has its initial value, which no update has changed.
  for (std::size_t i = 0; i < n; ++i)
    out[i] = rows_[i] != RowMap::npos && changed_[rows_[i]] > since ? 1.0F : 0.0F;
}

void EmbeddingShard::apply_rows(const std::uint32_t* rows, const Update& update,
                                const Weight& weight, std::uint64_t step) {
  if (changes_whole_) return apply_whole(rows, update, weight, step);
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

void EmbeddingShard::apply_expected(std::size_t worker, const Update& part, const Weight& weight,
                                    std::uint64_t step) {
  apply_rows(expected_[worker].data() + part.offset, part, weight, step);
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

}  // namespace mpips
