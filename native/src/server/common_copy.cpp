#include "server/common_copy.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "server/shard_faults.hpp"

namespace mpips {
namespace {

constexpr std::size_t unit_floats = 4096;  // they and their saved bytes stay in the cache
// Greatest magnitude of values and copy that have a difference. A code is then at most twice as
// great, and its sum with the copy is finite.
constexpr float most_encoded = __FLT_MAX__ / 4;

FeedbackKind feedback_kind(CodecKind kind) noexcept {
  return kind == CodecKind::onebit ? FeedbackKind::onebit : FeedbackKind::topk;
}

}  // namespace

CommonCopy::CommonCopy(std::uint8_t* region, const DenseExtent& extent, const Durable& durable,
                       Progress progress)
    : n_(extent.n),
      capacity_(extent.difference_bytes()),
      kind_(extent.pull.kind),
      head_(reinterpret_cast<CommonHead*>(region + extent.common_head)),
      difference_(region + extent.difference()),
      copy_(reinterpret_cast<float*>(region + extent.common)),
      durable_(durable),
      progress_(std::move(progress)),
      memory_(new std::uint8_t[Feedback::bytes(n_, 1)]),
      feedback_(memory_.get(), n_, 0, 1, feedback_kind(kind_), extent.pull.share) {
  if (durable_.fresh) publish(&head_->sequence, 0);
}

void CommonCopy::begin(const float* values) noexcept {
  BlockWriter guard(&head_->sequence);
  std::copy_n(values, n_, copy_);
}

void CommonCopy::take_over() noexcept {
  publish(&head_->sequence, (head_->sequence.value + 1) & ~std::uint64_t{1});
}

void CommonCopy::update(const float* values, std::uint64_t number) {
  Journal* journal = durable_.journal;
  const std::uint64_t made = journal != nullptr ? journal->enter_part() : 0;
  const std::uint64_t changed = journal != nullptr ? journal->enter_part() : 0;
  BlockWriter guard(&head_->sequence);
  if (journal == nullptr || !journal->past(made)) {
    if (journal != nullptr) journal->begin();
    // The comparison is false for NaN.
    if (kernels().max_abs(values, n_) <= most_encoded &&
        kernels().max_abs(copy_, n_) <= most_encoded)
      encode(values);
    else
      head_->bytes = no_difference;
    head_->number = number;
    if (journal != nullptr) journal->done(made);
  }
  if (head_->bytes == no_difference)
    return change(0, n_, changed, [&](std::size_t at, std::size_t count) {
      std::memcpy(copy_ + at, values + at, count * sizeof(float));
    });
  const auto add = [&](std::size_t first, const float* part, std::size_t count) {
    change(first, count, changed, [&](std::size_t at, std::size_t n) {
      kernels().add(copy_ + at, part + (at - first), n);
    });
    if (progress_) progress_();
  };
  const bool whole = each_part(kind_, difference_, head_->bytes, n_, &scratch_, add);
  if (!whole) throw std::logic_error("a difference for pulls is damaged");
}

// Encode values - copy. The sum of the negative copy as a residual and of the values as an update
// has the same bits.
void CommonCopy::encode(const float* values) {
  auto* negative = reinterpret_cast<float*>(memory_.get() + Feedback::bytes(n_, 0));
  for (std::size_t i = 0; i < n_; ++i) negative[i] = -copy_[i];
  feedback_.begin(values, 0);
  std::size_t bytes = 0, done = 0;
  while (done < n_) {
    const std::size_t at = bytes + sizeof(std::uint32_t);
    const auto found = feedback_.encode(difference_ + at, capacity_ - at);
    const auto length = static_cast<std::uint32_t>(found.second);
    done += found.first;
    if (found.first != most_covered && done != n_)
      throw std::logic_error("a difference for pulls is longer than its memory");
    std::memcpy(difference_ + bytes, &length, sizeof length);
    bytes = at + length;
    if (progress_) progress_();
  }
  head_->bytes = bytes;
}

// Change `count` values of the copy from `first` on, by apply(at, n) for a range of them.
template <class Apply>
void CommonCopy::change(std::size_t first, std::size_t count, std::uint64_t part,
                        const Apply& apply) {
  Journal* journal = durable_.journal;
  if (journal == nullptr) return apply(first, count);
  for (std::size_t at = first; at < first + count; at += unit_floats) {
    const std::uint64_t unit = Journal::unit(part, at / unit_floats);
    if (journal->past(unit)) continue;
    const std::size_t n = std::min(unit_floats, first + count - at);
    journal->save_start(1, n * sizeof(float));
    journal->save(Durable::region, copy_ + at);
    journal->saved(unit);
    fault::in_two(
        n, n / 2, 1, [&](std::size_t begin, std::size_t length) { apply(at + begin, length); },
        [] { fault::at(fault::Point::unit_changing); });
    journal->done(unit);
  }
}

}  // namespace mpips
