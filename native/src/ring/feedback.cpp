#include "ring/feedback.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/kernel_table.hpp"
#include "ring/biased.hpp"
#include "ring/layout.hpp"
#include "shm/fault.hpp"
#include "shm/memory_order.hpp"

namespace mpips {
namespace {

// Write a distance less 1; return the bytes.
std::size_t put_distance(std::uint8_t* to, std::size_t value) noexcept {
  std::size_t bytes = 0;
  for (; value >= 128; value >>= 7) to[bytes++] = static_cast<std::uint8_t>(value | 128);
  to[bytes++] = static_cast<std::uint8_t>(value);
  return bytes;
}

}  // namespace

Feedback::Feedback(std::uint8_t* memory, std::size_t n, std::size_t first, std::size_t halves,
                   FeedbackKind kind, double share, std::uint32_t block) noexcept
    : memory_(memory),
      n_(n),
      first_(first),
      halves_(halves),
      kind_(kind),
      share_(share),
      block_(block) {}

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

}  // namespace mpips
