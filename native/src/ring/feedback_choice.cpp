#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/kernel_table.hpp"
#include "ring/biased.hpp"
#include "ring/feedback.hpp"

// The choice of the values that a push sends: the greatest ones (topk) or random ones (randomk).
// Each of them adds the update to the residual on its way.
namespace mpips {
namespace {

constexpr std::size_t least_sample = 16384;  // values
constexpr double least_hits = 256.0;         // values of the sample that are above the threshold
constexpr std::size_t least_stride = 64;     // of a sample that is larger than that
constexpr std::size_t chunk_values = 4096;
constexpr std::size_t bin_bits = 16;  // of a magnitude, which one bin of the histogram joins

std::uint32_t magnitude_of(float value) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffffU;
}

float sum_of(float a, float b) noexcept {
  return std::max(std::min(a + b, __FLT_MAX__), -__FLT_MAX__);
}

// Return true if `count` is at most 30 % from the target; whole numbers only, so that it is the
// same everywhere.
bool is_near(std::size_t count, std::size_t target) noexcept {
  return 10 * count >= 7 * target && 10 * count <= 13 * target;
}

}  // namespace

// Take the chosen values from number `next` on out of `values`, the first of which is value `from`.
void Feedback::take_chosen(std::size_t next, float* values, std::size_t from) {
  for (; next < chosen_.size(); ++next) {
    float& value = values[chosen_[next] - from];
    taken_.push_back(value);
    value = 0.0F;
  }
}

void Feedback::choose_at_random(const float* update, std::uint64_t key) {
  const auto below = static_cast<std::uint32_t>(std::min(share_ * 0x1p32, 0x1p32 - 1.0));
  const auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (std::size_t from = 0; from < n_; from += chunk_values) {
    const std::size_t here = std::min(n_ - from, chunk_values), before = chosen_.size();
    float* sums = half(new_) + from;
    chosen_.resize(before + here + 1);
    const std::size_t found =
        kernels().list_random(chosen_.data() + before, static_cast<std::uint32_t>(first_ + from),
                              here, key0, key1, below, static_cast<std::uint32_t>(from));
    chosen_.resize(before + found);
    kernels().add_count(sums, residual() + from, update + from, here, 0);
    take_chosen(before, sums, from);
  }
}

// Take the threshold from a sample, one value at a random place of each stretch of `stride` values.
void Feedback::choose_greatest(const float* update) {
  const float* old = residual();
  const std::size_t target = target_of(share_, n_);
  const auto hits = static_cast<std::size_t>(least_hits / share_);
  const std::size_t wanted = std::max(least_sample, std::min(hits, n_ / least_stride));
  const std::size_t stride = std::max<std::size_t>(n_ / wanted, 1);
  sample_.clear();
  for (std::size_t from = 0; from < n_; from += stride) {
    std::size_t at = from;
    if (stride > 1) {
      // By a multiplicative hash, since a pattern of the tensor may have the same period.
      const auto number = static_cast<std::uint32_t>(sample_.size());
      at += static_cast<std::size_t>((std::uint64_t{number * 0x9e3779b1U} * stride) >> 32);
    }
    if (at >= n_) break;
    sample_.push_back(magnitude_of(sum_of(old[at], update[at])));
  }
  std::uint32_t low = 1;  // zeros are not sent
  if (!sample_.empty()) {
    const std::size_t rank = stride == 1 ? target : target_of(share_, sample_.size());
    const auto place = sample_.begin() + static_cast<std::ptrdiff_t>(rank - 1);
    std::nth_element(sample_.begin(), place, sample_.end(), std::greater<>());
    low = std::max<std::uint32_t>(*place, 1);
  }
  // Look for the values of a chunk while it is in the cache. With a threshold that is far too low
  // there are too many to list.
  const std::size_t most = 2 * target;
  std::size_t found = 0;
  for (std::size_t from = 0; from < n_; from += chunk_values) {
    const std::size_t here = std::min(n_ - from, chunk_values), before = chosen_.size();
    float* sums = half(new_) + from;
    found += kernels().add_count(sums, old + from, update + from, here, low);
    if (found <= most) {
      list_above(sums, from, here, low);
      take_chosen(before, sums, from);
    }
  }
  if (is_near(found, target) || (found < target && low == 1)) return;
  for (std::size_t i = 0; i < chosen_.size(); ++i) half(new_)[chosen_[i]] = taken_[i];
  chosen_.clear();
  taken_.clear();
  choose_by_histogram();
  take_chosen(0, half(new_), 0);
}

// List those of a chunk of values, the first of which is value `from`, whose magnitudes have at
// least the bits `low`.
void Feedback::list_above(const float* values, std::size_t from, std::size_t count,
                          std::uint32_t low) {
  const std::size_t before = chosen_.size();
  chosen_.resize(before + count + 1);
  const std::size_t found = kernels().list_above(chosen_.data() + before, values, count, low,
                                                 static_cast<std::uint32_t>(from));
  chosen_.resize(before + found);
}

// Take the threshold from a histogram of all values. Of the bin in which the target lies, the first
// values are sent until the target is reached.
void Feedback::choose_by_histogram() {
  const float* values = half(new_);
  const std::size_t target = target_of(share_, n_);
  std::vector<std::size_t> bins(std::size_t{1} << (31 - bin_bits), 0);
  for (std::size_t i = 0; i < n_; ++i) {
    const std::uint32_t magnitude = magnitude_of(values[i]);
    if (magnitude > 0) ++bins[magnitude >> bin_bits];
  }
  std::size_t above = 0, bin = bins.size() - 1;
  for (; bin > 0 && above + bins[bin] < target; --bin) above += bins[bin];
  const auto low = std::max<std::uint32_t>(static_cast<std::uint32_t>(bin << bin_bits), 1);
  const std::size_t whole = above + bins[bin];
  for (std::size_t from = 0; from < n_; from += chunk_values)
    list_above(values + from, from, std::min(n_ - from, chunk_values), low);
  if (whole <= target || is_near(whole, target)) return;
  const auto sure = static_cast<std::uint32_t>((bin + 1) << bin_bits);
  std::size_t quota = target - above;
  const auto is_too_many = [&](std::uint32_t at) {
    if (magnitude_of(values[at]) >= sure) return false;
    if (quota == 0) return true;
    --quota;
    return false;
  };
  std::size_t count = 0;
  for (const std::uint32_t at : chosen_)
    if (!is_too_many(at)) chosen_[count++] = at;
  chosen_.resize(count);
}

}  // namespace mpips
