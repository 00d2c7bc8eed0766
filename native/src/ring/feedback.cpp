#include "ring/feedback.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernel_table.hpp"
#include "ring/layout.hpp"
#include "shm/fault.hpp"
#include "shm/memory_order.hpp"

namespace mpips {
namespace {

constexpr std::size_t least_sample = 16384;  // values
constexpr double least_hits = 256.0;         // values of the sample that are above the threshold
constexpr std::size_t least_stride = 64;     // of a sample that is larger than that
constexpr std::size_t chunk_values = 4096;
constexpr std::size_t bin_bits = 16;  // of a magnitude, which one bin of the histogram joins
constexpr std::size_t sign_block_values = 512, sign_words = 16;
constexpr std::size_t sign_block_bytes = sizeof(float) + sign_words * sizeof(std::uint32_t);

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

// Write a distance less 1; return the bytes.
std::size_t put_distance(std::uint8_t* to, std::size_t value) noexcept {
  std::size_t bytes = 0;
  for (; value >= 128; value >>= 7) to[bytes++] = static_cast<std::uint8_t>(value | 128);
  to[bytes++] = static_cast<std::uint8_t>(value);
  return bytes;
}

std::size_t target_of(double share, std::size_t n) noexcept {
  const auto k = static_cast<std::size_t>(std::floor(share * static_cast<double>(n) + 0.5));
  return std::min(std::max<std::size_t>(k, 1), n);
}

}  // namespace

std::size_t most_difference_bytes(Codec codec, std::size_t n) noexcept {
  const std::size_t parts = (n + most_covered - 1) / most_covered;
  if (codec.kind == CodecKind::onebit)
    return parts * sizeof(std::uint32_t) +
           (n + sign_block_values - 1) / sign_block_values * sign_block_bytes;
  // Of a part: its length, the number of its values, and the room that `encode_sparse` asks for
  // behind the last one. A distance takes 3 bytes, since a part has at most `most_covered` values.
  const std::size_t chosen = std::min(n, 13 * target_of(codec.share, n) / 10);
  return parts * (2 * sizeof(std::uint32_t) + 8) + chosen * (sizeof(float) + 3);
}

std::size_t Feedback::bytes(std::size_t n, std::size_t halves) noexcept {
  return line_bytes + halves * round_up(n * sizeof(float), line_bytes);
}

Feedback::Feedback(std::uint8_t* memory, std::size_t n, std::size_t first, std::size_t halves,
                   FeedbackKind kind, double share, std::uint32_t block) noexcept
    : memory_(memory),
      n_(n),
      first_(first),
      halves_(halves),
      kind_(kind),
      share_(share),
      block_(block) {}

std::uint64_t* Feedback::tag(std::size_t which) const noexcept {
  return reinterpret_cast<std::uint64_t*>(memory_) + which;
}

float* Feedback::half(std::size_t which) const noexcept {
  return reinterpret_cast<float*>(memory_ + bytes(n_, which));
}

bool Feedback::is_valid(std::uint64_t next) const noexcept {
  for (std::size_t i = 0; i < halves_; ++i)
    if (load_acquire(tag(i)) <= next) return true;
  return false;
}

bool Feedback::settle(std::uint64_t next) noexcept {
  open_ = false;
  std::size_t best = halves_;
  for (std::size_t i = 0; i < halves_; ++i) {
    const std::uint64_t at = load_acquire(tag(i));
    if (at > next)
      store_release(tag(i), no_tag);
    else if (best == halves_ || at > load_acquire(tag(best)))
      best = i;
  }
  if (best != halves_) {
    current_ = best;
    return true;
  }
  std::fill_n(half(0), n_, 0.0F);
  store_release(tag(0), std::uint64_t{0});
  current_ = 0;
  return false;
}

void Feedback::forget() noexcept {
  for (std::size_t i = 0; i < halves_; ++i) store_release(tag(i), no_tag);
}

void Feedback::fill(const float* values) noexcept {
  if (halves_ > 1) store_release(tag(1), no_tag);
  std::memcpy(half(0), values, n_ * sizeof(float));
  store_release(tag(0), std::uint64_t{0});
  current_ = 0;
}

std::uint64_t Feedback::pushed() const noexcept { return load_acquire(tag(current_)); }

void Feedback::begin(const float* update, std::uint64_t key) {
  new_ = halves_ > 1 ? 1 - current_ : current_;
  if (new_ != current_) store_release(tag(new_), no_tag);
  open_ = true;
  done_ = 0;
  update_ = update;
  key_ = key;
  scales_.resize(kind_ == FeedbackKind::shared ? n_scales() : 0);
  chosen_.clear();
  taken_.clear();
  next_chosen_ = 0;
  if (kind_ == FeedbackKind::topk)
    choose_greatest(update);
  else if (kind_ == FeedbackKind::randomk)
    choose_at_random(update, key);
}

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

std::pair<std::size_t, std::size_t> Feedback::encode(std::uint8_t* to, std::size_t cap) {
  const auto found = kind_ == FeedbackKind::shared   ? encode_shared(to, cap)
                     : kind_ == FeedbackKind::onebit ? encode_onebit(to, cap)
                                                     : encode_sparse(to, cap);
  done_ += found.first;
  return found;
}

std::pair<std::size_t, std::size_t> Feedback::encode_sparse(std::uint8_t* to, std::size_t cap) {
  constexpr std::size_t most_distance = 4;  // bytes; of a distance below most_covered it is 3
  const std::size_t stop = std::min(n_, done_ + most_covered);
  distances_.resize(cap);
  std::uint32_t count = 0;
  std::size_t bytes = sizeof count, coded = 0, from = done_, covered = stop;
  while (from < stop) {
    if (bytes + coded + sizeof(float) + most_distance > cap) {
      covered = from;
      break;
    }
    if (next_chosen_ == chosen_.size() || chosen_[next_chosen_] >= stop) break;
    std::memcpy(to + bytes, &taken_[next_chosen_], sizeof(float));
    const std::size_t at = chosen_[next_chosen_++];
    bytes += sizeof(float);
    coded += put_distance(distances_.data() + coded, at - from);
    ++count;
    from = at + 1;
  }
  std::memcpy(to, &count, sizeof count);
  std::memcpy(to + bytes, distances_.data(), coded);
  return {covered - done_, bytes + coded};
}

std::pair<std::size_t, std::size_t> Feedback::encode_onebit(std::uint8_t* to,
                                                            std::size_t cap) noexcept {
  const KernelTable& k = kernels();
  const std::size_t most = std::min(cap / sign_block_bytes * sign_block_values, most_covered);
  const std::size_t stop = std::min(n_, done_ + most);
  std::size_t bytes = 0;
  for (std::size_t at = done_; at < stop; at += sign_block_values, bytes += sign_block_bytes) {
    const std::size_t here = std::min(sign_block_values, stop - at);
    const float *old = residual() + at, *update = update_ + at;
    float* values = half(new_) + at;
    std::uint32_t words[sign_words];
    float magnitude;
    if (here == sign_block_values) {
      magnitude = k.add_fold(values, old, update);
      k.encode_signs(words, values, magnitude);
    } else {
      // Fill the last block with zeros; their signs are sent, too.
      float padded[sign_block_values] = {}, more[sign_block_values] = {};
      std::copy_n(old, here, padded);
      std::copy_n(update, here, more);
      const float sum = k.add_fold(padded, padded, more);
      const float factor = static_cast<float>(sign_block_values) / static_cast<float>(here);
      magnitude = std::min(sum * factor, __FLT_MAX__);
      k.encode_signs(words, padded, magnitude);
      std::copy_n(padded, here, values);
    }
    std::memcpy(to + bytes, &magnitude, sizeof magnitude);
    std::memcpy(to + bytes + sizeof magnitude, words, sizeof words);
  }
  return {stop - done_, bytes};
}

std::pair<std::size_t, std::size_t> Feedback::encode_shared(std::uint8_t* to,
                                                            std::size_t cap) noexcept {
  const Codec codec{CodecKind::shared, block_};
  const std::size_t count = std::min(encoded_capacity(codec, skew(), cap), n_ - done_);
  const std::size_t bytes = encoded_bytes(codec, skew(), count), stop = done_ + count;
  const std::size_t n_blocks = (bytes - count) / scale_bytes_of(codec.kind);
  std::uint8_t *used = to, *wanted = to + n_blocks;
  auto* codes = reinterpret_cast<std::int8_t*>(to + 2 * n_blocks);
  for (std::size_t at = done_; at < stop;) {
    const std::size_t number = at / block_, place = at % block_;
    const std::size_t here = std::min<std::size_t>(block_ - place, stop - at);
    const float scale = shared_scale(scales_[number]);
    const float factor = scale == 0.0F ? 0.0F : 1.0F / scale;
    const std::uint64_t key = block_key(key_, first_ / block_ + number);
    const float most = kernels().encode_shared(
        codes, half(new_) + at, residual() + at, update_ + at, here, factor, scale,
        static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32),
        static_cast<std::uint32_t>(place));
    *used++ = scales_[number];
    *wanted++ = exponent_for(most);
    codes += here;
    at += here;
  }
  return {count, bytes};
}

void Feedback::close(std::uint64_t sequence) noexcept {
  fault::at(fault::Point::residual_made);
  store_release(tag(new_), sequence + 1);
  current_ = new_;
  open_ = false;
  fault::at(fault::Point::residual_tagged);
}

namespace {

bool decode_sparse(const std::uint8_t* from, std::size_t bytes, std::size_t count,
                   float* to) noexcept {
  std::uint32_t n;
  if (bytes < sizeof n) return false;
  std::memcpy(&n, from, sizeof n);
  if (n > count || n > (bytes - sizeof n) / (sizeof(float) + 1)) return false;
  const std::uint8_t *values = from + sizeof n, *end = from + bytes;
  const std::uint8_t* at = values + n * sizeof(float);
  std::fill_n(to, count, 0.0F);
  std::size_t next = 0;  // first place behind the last value
  for (std::uint32_t i = 0; i < n; ++i) {
    std::size_t distance = 0, shift = 0;
    std::uint8_t byte = 0;
    do {
      if (at == end || shift > 21) return false;
      byte = *at++;
      distance |= static_cast<std::size_t>(byte & 127) << shift;
      shift += 7;
    } while ((byte & 128) != 0);
    if (distance >= count - next) return false;
    std::memcpy(to + next + distance, values + i * sizeof(float), sizeof(float));
    next += distance + 1;
  }
  return at == end;
}

bool decode_onebit(const std::uint8_t* from, std::size_t bytes, std::size_t count,
                   float* to) noexcept {
  const std::size_t blocks = (count + sign_block_values - 1) / sign_block_values;
  if (bytes != blocks * sign_block_bytes) return false;
  for (std::size_t at = 0; at < count; at += sign_block_values, from += sign_block_bytes) {
    float magnitude;
    std::uint32_t words[sign_words];
    std::memcpy(&magnitude, from, sizeof magnitude);
    std::memcpy(words, from + sizeof magnitude, sizeof words);
    if (count - at >= sign_block_values) {
      kernels().decode_signs(to + at, words, magnitude);
      continue;
    }
    float whole[sign_block_values];
    kernels().decode_signs(whole, words, magnitude);
    std::copy_n(whole, count - at, to + at);
  }
  return true;
}

}  // namespace

bool decode_biased(CodecKind kind, const std::uint8_t* from, std::size_t bytes, std::size_t count,
                   float* to) noexcept {
  return kind == CodecKind::onebit ? decode_onebit(from, bytes, count, to)
                                   : decode_sparse(from, bytes, count, to);
}

}  // namespace mpips
