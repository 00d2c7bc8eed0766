#include <algorithm>
#include <cstring>

#include "kernels/row_rule.hpp"
#include "keys/mix.hpp"
#include "server/embedding_rows.hpp"
#include "server/shard_faults.hpp"

// Rows that are changed as a whole: rows of bf16, and rows of a rule that has one state for the
// whole row.
//
// Arithmetic is float32: the values are widened, changed by the kernel of the rule, and rounded to
// bf16 at random (stochastic rounding), so that updates smaller than the distance of two values of
// bf16 are not lost on average. The random numbers are a function of the row's key and of its own
// count of updates. So the bits of a row depend on its initial value and its updates alone: not on
// the server, its other rows, or on restarts.
//
// Journal. A row cannot be continued in the middle of an update as in apply_logged: the pieces that
// are rounded already would give another mean of squares and another gradient. So rows are saved
// whole, in units of many rows (Journal::save_start), with states and counts.
namespace mpips {

void EmbeddingShard::apply_whole(const std::uint32_t* rows, const Update& update,
                                 const Weight& weight, std::uint64_t step) {
  UpdateArgs args = prepare(rule_.optimizer, step, weight.factors);
  Journal* journal = durable_.journal;
  const std::uint64_t part = journal != nullptr ? journal->enter_part() : 0;
  const std::size_t row_bytes = stride_ * sizeof(float), most = unit_rows_for(row_bytes);
  for (std::size_t i = 0; i < std::min(ahead_, update.count); ++i) prefetch<1>(rows[i], row_lines_);
  for (std::size_t from = 0; from < update.count; from += most) {
    const std::uint64_t unit = Journal::unit(part, from / most);
    const std::size_t stop = std::min(from + most, update.count);
    if (journal != nullptr) {
      if (journal->past(unit)) continue;
      journal->save_start(stop - from, row_bytes);
      for (std::size_t i = from; i < stop; ++i) journal->save(durable_.row_segment(), row(rows[i]));
      journal->saved(unit);
    }
    for (std::size_t i = from; i < stop; ++i) {
      if (journal != nullptr && i == from + (stop - from) / 2)
        fault::at(fault::Point::unit_changing);
      if (i + ahead_ < update.count) prefetch<1>(rows[i + ahead_], row_lines_);
      const float* base = update.base != nullptr ? update.base + i * dim_ : nullptr;
      change_whole(row(rows[i]), update.keys[i], update.values + i * dim_, base, weight.lambda,
                   &args);
    }
    if (journal != nullptr) journal->done(unit);
    if (progress_) progress_();
  }
}

void EmbeddingShard::change_whole(float* r, std::int64_t key, const float* update,
                                  const float* base, float lambda, UpdateArgs* args) {
  const bool is_bf16 = dtype_ == RowDtype::bf16;
  auto* stored = reinterpret_cast<std::uint16_t*>(r);
  float* w = is_bf16 ? widened_.data() : r;
  if (is_bf16) kernels().decode_bf16(w, stored, dim_);
  const std::uint32_t steps = counts_steps_ ? count_step(r) : 0;
  if (uses_step(rule_.optimizer.kind)) set_step(rule_.optimizer, steps, args);
  float* states = r + value_floats_;
  float* s0 = rule_.n_state > 0 ? states : nullptr;
  float* s1 = rule_.n_state > 1 ? states + dim_ : nullptr;
  float* of_row = n_row_state(rule_.optimizer.kind) != 0 ? r + row_state_ : nullptr;
  update_row(kernels(), rule_.optimizer, w, s0, s1, of_row, compensated(w, update, base, lambda),
             dim_, args);
  if (!is_bf16) return;
  const std::uint64_t random =
      mix_splitmix(static_cast<std::uint64_t>(key) + splitmix_step * steps);
  kernels().round_bf16(stored, w, dim_, static_cast<std::uint32_t>(random),
                       static_cast<std::uint32_t>(random >> 32));
}

// Store values, those of bf16 rounded to the nearest; infinity and NaN stay as they are.
void EmbeddingShard::store_values(const float* values, float* r) noexcept {
  if (dtype_ == RowDtype::float32) {
    std::copy_n(values, dim_, r);
    return;
  }
  auto* stored = reinterpret_cast<std::uint16_t*>(r);
  kernels().encode_bf16(stored, values, dim_);
  for (std::size_t i = 0; i < dim_; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, values + i, sizeof bits);
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude < 0x7f800000U) continue;
    const std::uint32_t quiet = magnitude > 0x7f800000U ? 0x40U : 0U;
    stored[i] = static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | 0x7f80U | quiet);
  }
  if (dim_ % 2 != 0) stored[dim_] = 0;
}

// Compute the initial values of a key's row as a pull returns them.
void EmbeddingShard::make_initial(std::int64_t key, float* out) const noexcept {
  initialize_row(initializer_, key, out, dim_);
  if (dtype_ == RowDtype::float32) return;
  for (std::size_t i = 0; i < dim_; ++i) {
    std::uint16_t stored = 0;
    kernels().encode_bf16(&stored, out + i, 1);
    kernels().decode_bf16(out + i, &stored, 1);
  }
}

void EmbeddingShard::read(std::size_t index, std::size_t from, std::size_t n, float* out) const {
  read_content(storage_ == nullptr ? row(index) : content_of(index), from, n, out);
}

void EmbeddingShard::read_content(const float* r, std::size_t from, std::size_t n,
                                  float* out) const noexcept {
  if (dtype_ == RowDtype::float32) {
    std::memcpy(out, r + from, n * sizeof(float));
    return;
  }
  const std::size_t of_values = from < dim_ ? std::min(n, dim_ - from) : 0;
  kernels().decode_bf16(out, reinterpret_cast<const std::uint16_t*>(r) + from, of_values);
  if (of_values < n)
    std::memcpy(out + of_values, r + value_floats_ + (from + of_values - dim_),
                (n - of_values) * sizeof(float));
}

}  // namespace mpips
