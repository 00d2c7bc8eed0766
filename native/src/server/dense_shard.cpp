#include "server/dense_shard.hpp"

#include <algorithm>
#include <cstring>

namespace mpips {

DenseShard::DenseShard(std::uint8_t* region, const DenseExtent& extent, Rule rule,
                       std::size_t n_workers, Progress progress)
    : n_(extent.n),
      versions_(reinterpret_cast<PairWord*>(region + extent.versions)),
      values_(reinterpret_cast<float*>(region + extent.values)),
      rule_(std::move(rule)),
      progress_(std::move(progress)),
      assembly_(n_workers),
      accumulator_(n_workers) {
  const std::size_t stride = round_up(n_ * sizeof(float), page_bytes);
  for (std::size_t k = 0; k < rule_.n_state; ++k) {
    python_state_.push_back(reinterpret_cast<float*>(region + extent.state + k * stride));
    if (k < state_.size()) state_[k] = python_state_[k];
    if (!rule_.python) std::fill_n(python_state_[k], n_, initial_state(rule_.optimizer, k));
  }
  for (std::size_t b = 0; b < Layout::n_blocks(n_); ++b) publish(&versions_[b], 0);
}

bool DenseShard::accepts(const Update& part) const noexcept {
  return part.keys == nullptr && part.offset <= n_ && part.count <= n_ - part.offset;
}

bool DenseShard::ends_push(const Update& part, bool) const noexcept {
  return part.offset + part.count == n_;
}

void DenseShard::assemble(std::size_t worker, const Update& part, bool first) {
  Buffer& buffer = assembly_[worker];
  if (first) buffer.update.resize(n_);
  std::copy_n(part.values, part.count, buffer.update.begin() + static_cast<long>(part.offset));
  buffer.used = part.base != nullptr;
  if (part.base == nullptr) return;
  buffer.base.resize(n_);
  std::copy_n(part.base, part.count, buffer.base.begin() + static_cast<long>(part.offset));
}

Update DenseShard::whole(std::size_t worker) const {
  const Buffer& buffer = assembly_[worker];
  Update update;
  update.count = n_;
  update.values = buffer.update.data();
  update.base = buffer.used ? buffer.base.data() : nullptr;
  return update;
}

void DenseShard::apply(const Update& update, float scale, float lambda, std::uint64_t step) {
  if (rule_.python) return apply_python(update, scale, lambda, step);
  const UpdateArgs args = prepare(rule_.optimizer, step, scale);
  for (std::size_t block = 0; block < Layout::n_blocks(n_); ++block) {
    apply_block(block, update, args, lambda);
    if (progress_) progress_();
  }
}

void DenseShard::apply_block(std::size_t block, const Update& update, const UpdateArgs& args,
                             float lambda) {
  const std::size_t from = block * block_floats;
  const std::size_t count = std::min(block_floats, n_ - from);
  const float* u = update.values + from;
  if (update.base != nullptr && lambda != 0.0F) {
    scratch_.resize(block_floats);
    kernels().compensate(scratch_.data(), u, values_ + from, update.base + from, lambda, count);
    u = scratch_.data();
  }
  float* s0 = state_[0] != nullptr ? state_[0] + from : nullptr;
  float* s1 = state_[1] != nullptr ? state_[1] + from : nullptr;
  const auto kind = static_cast<std::size_t>(rule_.optimizer.kind);
  BlockWriter guard(&versions_[block]);
  kernels().update[kind](values_ + from, s0, s1, u, count, args);
}

// All blocks are held while the user's rule runs, since it sees the whole shard.
void DenseShard::apply_python(const Update& update, float scale, float lambda, std::uint64_t step) {
  scratch_.assign(update.values, update.values + n_);
  if (update.base != nullptr && lambda != 0.0F)
    kernels().compensate(scratch_.data(), update.values, values_, update.base, lambda, n_);
  if (scale != 1.0F) kernels().scale(scratch_.data(), scale, n_);
  std::vector<std::unique_ptr<BlockWriter>> guards;
  for (std::size_t b = 0; b < Layout::n_blocks(n_); ++b)
    guards.push_back(std::make_unique<BlockWriter>(&versions_[b]));
  rule_.python(values_, python_state_.data(), python_state_.size(), scratch_.data(), n_, step);
}

void DenseShard::accumulate(std::size_t buffer, const Update& part) {
  // The first push of a clock is copied, segment by segment; what comes after it is added.
  Buffer& sum = accumulator_[buffer];
  if (!sum.used) {
    sum.update.resize(n_);
    sum.filled = 0;
  }
  sum.used = true;
  float* to = sum.update.data() + part.offset;
  if (sum.filled == n_) return kernels().add(to, part.values, part.count);
  std::memcpy(to, part.values, part.count * sizeof(float));
  sum.filled += part.count;
}

bool DenseShard::apply_accumulated(const std::vector<std::size_t>& buffers, float scale,
                                   std::uint64_t step) {
  Buffer* total = nullptr;
  for (const std::size_t b : buffers) {
    if (!accumulator_[b].used) continue;
    if (total == nullptr)
      total = &accumulator_[b];
    else
      kernels().add(total->update.data(), accumulator_[b].update.data(), n_);
  }
  if (total == nullptr) return false;
  Update update;
  update.count = n_;
  update.values = total->update.data();
  apply(update, scale, 0.0F, step);
  for (const std::size_t b : buffers) discard(b);
  return true;
}

void DenseShard::discard(std::size_t buffer) { accumulator_[buffer].used = false; }

std::size_t DenseShard::memory_bytes() const { return n_ * sizeof(float) * (1 + rule_.n_state); }

}  // namespace mpips
