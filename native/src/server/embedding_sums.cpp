#include <algorithm>
#include <vector>

#include "server/embedding_rows.hpp"
#include "server/shard_faults.hpp"

// Sums of pushes under BSP, which are applied when their clock closes.
namespace mpips {

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

}  // namespace mpips
