#include <algorithm>
#include <string>

#include "server/embedding_rows.hpp"
#include "server/shard_faults.hpp"

// The rows of a shard with a journal: updates that can be undone, and what a later process takes
// over.
namespace mpips {

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
  if (limits_ != nullptr) finish_move();
  const Journal& journal = *durable_.journal;
  const std::size_t n = journal.word(journal.of_table(durable_.table, Journal::n_rows));
  const auto* stored = reinterpret_cast<const std::int64_t*>(key_memory_.data());
  const std::size_t n_frames = storage_ != nullptr ? storage_->frames_for(n) : n;
  if (n * sizeof(std::int64_t) > key_memory_.size() ||
      n_frames * stride_ * sizeof(float) > row_memory_.size())
    throw RecoveryError("a table has fewer rows in memory than in its journal (" +
                        std::to_string(n) + ")");
  rows_.resize(n);
  map_.find_or_insert(stored, n, rows_.data());
  if (map_.size() != n)
    throw RecoveryError("the keys of a table in memory are damaged: one appears twice");
  if (limits_ != nullptr) take_over_limits();
  if (storage_ != nullptr) storage_->take_over(n, row_memory_.size() / (stride_ * sizeof(float)));
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

}  // namespace mpips
