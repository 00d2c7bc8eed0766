#include "server/dense_shard.hpp"

#include <algorithm>
#include <cstring>

#include "server/shard_faults.hpp"

namespace mpips {
namespace {

// Bytes that a unit of the journal saves: they and their copy stay in the first-level cache.
constexpr std::size_t unit_bytes = 16 << 10;

}  // namespace

DenseShard::DenseShard(std::uint8_t* region, const DenseExtent& extent, Rule rule,
                       std::size_t n_workers, Progress progress, const Durable& durable)
    : Shard(std::move(rule)),
      n_(extent.n),
      versions_(reinterpret_cast<PairWord*>(region + extent.versions)),
      values_(reinterpret_cast<float*>(region + extent.values)),
      extent_(extent),
      image_(extent.image != 0 ? region + extent.image : nullptr),
      progress_(std::move(progress)),
      assembly_(n_workers),
      accumulator_(n_workers),
      durable_(durable) {
  Stretches stretches(durable_, 3 * n_workers);
  for (std::size_t b = 0; b < n_workers; ++b) {
    stretches.place(&accumulator_[b].update);
    stretches.place(&assembly_[b].update);
    stretches.place(&assembly_[b].base);
  }
  const std::size_t stride = round_up(n_ * sizeof(float), page_bytes);
  for (std::size_t k = 0; k < rule_.n_state; ++k) {
    python_state_.push_back(reinterpret_cast<float*>(region + extent.state + k * stride));
    if (k < state_.size()) state_[k] = python_state_[k];
    if (!rule_.python && durable_.fresh)
      std::fill_n(python_state_[k], n_, initial_state(rule_.optimizer, k));
  }
  if (extent_.has_common())
    common_ = std::make_unique<CommonCopy>(region, extent_, durable_, progress_);
  // Pulls read the image or the common copy, which is made of the values here.
  if (image_ != nullptr || common_ != nullptr) stores_.stay_in_caches();
  if (!durable_.fresh) return;
  for (std::size_t b = 0; b < Layout::n_blocks(n_); ++b) publish(&versions_[b], 0);
}

std::size_t DenseShard::buffer_bytes(std::size_t n, std::size_t n_workers) noexcept {
  return 3 * n_workers * round_up(n * sizeof(float), page_bytes);
}

BufferWords DenseShard::buffer_words(std::size_t number) const noexcept {
  const Buffer& sum = accumulator_[number];
  return {sum.used, sum.filled, assembly_[number].used, 0};
}

void DenseShard::set_buffer_words(std::size_t number, const BufferWords& words) {
  accumulator_[number].used = words[0] != 0;
  accumulator_[number].filled = words[1];
  accumulator_[number].update.taken(words[0] != 0 ? n_ : 0);
  assembly_[number].used = words[2] != 0;
}

// Make the versions even: a block that was being written is complete, or recovery completes it.
void DenseShard::take_over() {
  for (std::size_t b = 0; b < Layout::n_blocks(n_); ++b)
    publish(&versions_[b], (versions_[b].value + 1) & ~std::uint64_t{1});
  if (common_) common_->take_over();
}

void DenseShard::refresh_image() noexcept {
  if (common_) common_->begin(values_);
  if (image_ == nullptr) return;
  for (std::size_t block = 0; block < Layout::n_blocks(n_); ++block) {
    BlockWriter guard(&versions_[block]);
    encode_image(block);
  }
}

// Encode the image of a block while its version word says that it changes. An operation with a
// journal does it before it says that the block is done: what finishes the operation after a kill
// then encodes the image again.
void DenseShard::encode_image(std::size_t block) noexcept {
  if (image_ == nullptr) return;
  const std::size_t from = block * block_floats;
  encode_nearest(extent_.pull, values_ + from, std::min(block_floats, n_ - from),
                 image_ + block * extent_.image_stride());
}

bool DenseShard::store(std::size_t slot, std::uint64_t offset, const float* values, std::size_t n) {
  if (slot > rule_.n_state || offset > n_ || n > n_ - offset) return false;
  for (std::size_t from = offset; from < offset + n;) {
    const std::size_t block = from / block_floats;
    const std::size_t stop = std::min((block + 1) * block_floats, offset + n);
    BlockWriter guard(&versions_[block]);
    std::copy_n(values + (from - offset), stop - from,
                (slot == 0 ? values_ : python_state_[slot - 1]) + from);
    encode_image(block);
    from = stop;
  }
  return true;
}

bool DenseShard::accepts(const Update& part) const noexcept {
  return part.keys == nullptr && part.offset <= n_ && part.count <= n_ - part.offset;
}

bool DenseShard::ends_push(const Update& part, bool) const noexcept {
  return part.offset + part.count == n_;
}

void DenseShard::assemble(std::size_t worker, const Update& part, bool first) {
  Buffer& buffer = assembly_[worker];
  if (first) buffer.update.need(n_);
  std::copy_n(part.values, part.count, buffer.update.data() + part.offset);
  buffer.used = part.base != nullptr;
  if (part.base == nullptr) return;
  buffer.base.need(n_);
  std::copy_n(part.base, part.count, buffer.base.data() + part.offset);
}

Update DenseShard::whole(std::size_t worker) const {
  const Buffer& buffer = assembly_[worker];
  Update update;
  update.count = n_;
  update.values = buffer.update.data();
  update.base = buffer.used ? buffer.base.data() : nullptr;
  return update;
}

void DenseShard::apply(const Update& update, const Weight& weight, std::uint64_t step) {
  if (rule_.python) return apply_python(update, weight, step);
  UpdateArgs args = prepare(rule_.optimizer, step, weight.factors);
  std::uint64_t part = 0;
  if (durable_.journal != nullptr) {
    part = durable_.journal->enter_part();
    durable_.journal->begin();
    const std::size_t distance = round_up(n_ * sizeof(float), page_bytes);
    durable_.journal->keep_pieces(Durable::region, distance, 1 + rule_.n_state, false);
    const std::uint8_t* start = durable_.journal->segment(Durable::region);
    durable_.journal->place(0, reinterpret_cast<std::uint8_t*>(values_) - start, 0);
  }
  for (std::size_t block = 0; block < Layout::n_blocks(n_); ++block) {
    if (durable_.journal != nullptr)
      apply_logged(block, update, &args, weight.lambda, part);
    else
      apply_block(block, update, &args, weight.lambda);
    if (progress_) progress_();
  }
}

void DenseShard::apply_block(std::size_t block, const Update& update, UpdateArgs* args,
                             float lambda) {
  const std::size_t from = block * block_floats;
  const std::size_t count = std::min(block_floats, n_ - from);
  const float* gradient = compensated(from, count, update, lambda);
  if (gate_ != nullptr) gate_->wait(gated_table_, block);
  BlockWriter guard(&versions_[block]);
  stores_.write(values_ + from, count, line_floats,
                [&](std::size_t first, std::size_t n, bool past) {
                  args->past_caches = past;
                  change(from + first, n, gradient + first, *args);
                });
  encode_image(block);
}

// Update one block with a kernel that saves what it changes. A repeated operation continues where
// it was, which may be in the middle of a block.
void DenseShard::apply_logged(std::size_t block, const Update& update, UpdateArgs* args,
                              float lambda, std::uint64_t part) {
  Journal& journal = *durable_.journal;
  const std::size_t stop = std::min((block + 1) * block_floats, n_);
  std::size_t from = std::max(block * block_floats, journal.first_left(part, n_));
  if (from >= stop) return;
  const float* gradient = compensated(from, stop - from, update, lambda);
  if (gate_ != nullptr) gate_->wait(gated_table_, block);
  BlockWriter guard(&versions_[block]);
  // Less than a piece of the kernel, which then uses one slot, and a whole line.
  constexpr std::size_t torn = line_floats;
  // A call of the kernel begins with slot 0, so the one before it must have ended with slot 1.
  constexpr std::size_t two_pieces = 2 * UndoSlots::slot_floats;
  fault::in_two(
      stop - from, torn, torn + 10,
      [&](std::size_t first, std::size_t count) {
        stores_.write(values_ + from + first, count, two_pieces,
                      [&](std::size_t next, std::size_t n, bool past) {
                        args->past_caches = past;
                        const std::size_t at = first + next;
                        change_logged(from + at, n, gradient + at, *args, part);
                      });
      },
      [&] {
        fault::tear(
            journal.undo_slots(), Journal::unit(part, from + torn), 1 + rule_.n_state,
            [&](std::size_t k) { return (k == 0 ? values_ : state_[k - 1]) + from + torn; });
      });
  encode_image(block);
  journal.reached(Journal::unit(part, stop));
  fault::at(fault::Point::unit_done);
}

void DenseShard::change_logged(std::size_t from, std::size_t count, const float* gradient,
                               const UpdateArgs& args, std::uint64_t part) {
  float* s0 = state_[0] != nullptr ? state_[0] + from : nullptr;
  float* s1 = state_[1] != nullptr ? state_[1] + from : nullptr;
  const auto kind = static_cast<std::size_t>(rule_.optimizer.kind);
  kernels().update_logged[kind](values_ + from, s0, s1, gradient, count, args,
                                durable_.journal->undo_slots(),
                                Journal::at(Journal::unit(part, from), 0));
}

const float* DenseShard::compensated(std::size_t from, std::size_t count, const Update& update,
                                     float lambda) {
  const float* u = update.values + from;
  if (update.base != nullptr && lambda != 0.0F) {
    scratch_.resize(block_floats);
    kernels().compensate(scratch_.data(), u, values_ + from, update.base + from, lambda, count);
    u = scratch_.data();
  }
  return u;
}

void DenseShard::change(std::size_t from, std::size_t count, const float* gradient,
                        const UpdateArgs& args) {
  float* s0 = state_[0] != nullptr ? state_[0] + from : nullptr;
  float* s1 = state_[1] != nullptr ? state_[1] + from : nullptr;
  const auto kind = static_cast<std::size_t>(rule_.optimizer.kind);
  kernels().update[kind](values_ + from, s0, s1, gradient, count, args);
}

// Mark all blocks as being changed while the user's rule runs, because it sees the whole shard.
void DenseShard::apply_python(const Update& update, const Weight& weight, std::uint64_t step) {
  scratch_.assign(update.values, update.values + n_);
  if (update.base != nullptr && weight.lambda != 0.0F)
    kernels().compensate(scratch_.data(), update.values, values_, update.base, weight.lambda, n_);
  const Factors& factors = weight.factors;
  if (factors.gradient != 1.0F) kernels().scale(scratch_.data(), factors.gradient, n_);
  for (std::size_t b = 0; b < Layout::n_blocks(n_) && gate_ != nullptr; ++b)
    gate_->wait(gated_table_, b);
  std::vector<std::unique_ptr<BlockWriter>> guards;
  for (std::size_t b = 0; b < Layout::n_blocks(n_); ++b)
    guards.push_back(std::make_unique<BlockWriter>(&versions_[b]));
  Journal* journal = durable_.journal;
  const std::uint64_t unit = journal != nullptr ? journal->enter_part() : 0;
  if (journal != nullptr) {
    if (journal->past(unit)) return;
    journal->save_start(1 + python_state_.size(), n_ * sizeof(float));
    journal->save(Durable::region, values_);
    for (const float* state : python_state_) journal->save(Durable::region, state);
    journal->saved(unit);
  }
  std::vector<float> before;
  if (factors.rate != 1.0F) before.assign(values_, values_ + n_);
  rule_.python(values_, python_state_.data(), python_state_.size(), scratch_.data(), n_, step);
  if (!before.empty()) take_share(values_, before.data(), n_, factors.rate);
  for (std::size_t b = 0; b < Layout::n_blocks(n_); ++b) encode_image(b);
  if (journal != nullptr) journal->done(unit);
}

float* DenseShard::opened_sum() {
  Buffer& sum = accumulator_[0];
  if (!sum.used) {
    sum.update.need(n_);
    std::fill_n(sum.update.data(), n_, 0.0F);
    sum.filled = n_;
    sum.used = true;
  }
  return sum.update.data();
}

void DenseShard::accumulate(std::size_t buffer, const Update& part) {
  // Copy the first push of a clock, segment by segment; add all later ones. Segments of pushes that
  // are taken in any order may alternate, so all of them are added. With a journal pushes are
  // whole.
  Buffer& sum = accumulator_[buffer];
  if (part.exponents != nullptr && part.count != n_) opened_sum();
  if (!sum.used) {
    sum.update.need(n_);
    sum.filled = 0;
  }
  sum.used = true;
  if (sum.filled == n_) return add_to(&sum.update, part.offset, part.values, part.count);
  std::memcpy(sum.update.data() + part.offset, part.values, part.count * sizeof(float));
  sum.filled += part.count;
}

void DenseShard::add_to(Array<float>* sum, std::size_t offset, const float* values,
                        std::size_t count) {
  float* to = sum->data() + offset;
  if (durable_.journal == nullptr) return kernels().add(to, values, count);
  Journal& journal = *durable_.journal;
  const std::uint64_t part = journal.enter_part();
  constexpr std::size_t most = unit_bytes / sizeof(float);
  for (std::size_t from = 0; from < count; from += most) {
    const std::uint64_t unit = Journal::unit(part, from / most);
    if (journal.past(unit)) continue;
    const std::size_t n = std::min(most, count - from);
    journal.save_start(1, n * sizeof(float));
    journal.save(durable_.buffer_segment(), to + from);
    journal.saved(unit);
    fault::in_two(
        n, n / 2, 0,
        [&](std::size_t first, std::size_t n_added) {
          kernels().add(to + from + first, values + from + first, n_added);
        },
        [] { fault::at(fault::Point::unit_changing); });
    journal.done(unit);
  }
}

bool DenseShard::apply_accumulated(const std::vector<std::size_t>& buffers, const Weight& weight,
                                   std::uint64_t step) {
  Buffer* total = nullptr;
  for (const std::size_t b : buffers) {
    if (!accumulator_[b].used) continue;
    if (total == nullptr)
      total = &accumulator_[b];
    else
      add_to(&total->update, 0, accumulator_[b].update.data(), n_);
  }
  if (total == nullptr) return false;
  Update update;
  update.count = n_;
  update.values = total->update.data();
  apply(update, weight, step);
  if (common_) common_->update(values_, step);
  for (const std::size_t b : buffers) discard(b);
  return true;
}

void DenseShard::discard(std::size_t buffer) { accumulator_[buffer].used = false; }

std::size_t DenseShard::memory_bytes() const { return n_ * sizeof(float) * (1 + rule_.n_state); }

}  // namespace mpips
