#include "ring/biased.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/kernel_table.hpp"
#include "ring/codec.hpp"

namespace mpips {
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

bool decode_biased(CodecKind kind, const std::uint8_t* from, std::size_t bytes, std::size_t count,
                   float* to) noexcept {
  return kind == CodecKind::onebit ? decode_onebit(from, bytes, count, to)
                                   : decode_sparse(from, bytes, count, to);
}

}  // namespace mpips
