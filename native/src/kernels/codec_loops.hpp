#pragma once

#include <cstddef>
#include <cstdint>

// The loops of codecs (ring/codec.hpp): float32 values to 16 or 8 bits and back. They are plain C++
// for the compiler to vectorise, so that all instruction sets do the same operations on an element.
// The namespace is unnamed for the reason given in loops.hpp.
namespace mpips {
namespace {

inline std::uint32_t bits_of(float value) noexcept {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(std::uint32_t bits) noexcept {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr std::uint32_t sign_mask = 0x80000000U;

// Without a branch, which GCC would not vectorise.
inline std::uint32_t select_bits(bool which, std::uint32_t yes, std::uint32_t no) noexcept {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(which);
  return (yes & mask) | (no & ~mask);
}

// Return the greatest magnitude; 0 for no values. Magnitudes are compared as integers, which have
// the same order: a NaN is greater than all numbers.
inline float max_abs(const float* src, std::size_t n) noexcept {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t magnitude = bits_of(src[i]) & ~sign_mask;
    most = magnitude > most ? magnitude : most;
  }
  return float_of(most);
}

// Round finite values to nearest, ties to even. Values that would round to infinity become the
// greatest number.
inline void encode_bf16(std::uint16_t* dst, const float* src, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = bits_of(src[i]);
    const std::uint32_t magnitude = bits & ~sign_mask;
    const std::uint32_t rounded = (magnitude + 0x7fffU + ((magnitude >> 16) & 1U)) >> 16;
    const std::uint32_t finite = rounded > 0x7f7fU ? 0x7f7fU : rounded;
    dst[i] = static_cast<std::uint16_t>(finite | ((bits & sign_mask) >> 16));
  }
}

inline void decode_bf16(float* dst, const std::uint16_t* src, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) dst[i] = float_of(static_cast<std::uint32_t>(src[i]) << 16);
}

// Encode src * factor, whose magnitude must be below 65520, as IEEE 754 half precision; round to
// nearest, ties to even. A denormal half is the integer that remains of 0.5 + value, since the last
// bit of a float between 0.5 and 1 is that of a denormal half.
inline void encode_fp16(std::uint16_t* dst, const float* src, std::size_t n,
                        float factor) noexcept {
  constexpr std::int32_t least_normal = 0x38800000;
  constexpr std::uint32_t rebias = (15U - 127U) << 23;
  constexpr std::uint32_t half_bits = 0x3f000000U;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = bits_of(src[i] * factor);
    const std::uint32_t magnitude = bits & ~sign_mask;
    const std::uint32_t normal = (magnitude + rebias + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    const std::uint32_t denormal = bits_of(float_of(magnitude) + float_of(half_bits)) - half_bits;
    const std::uint32_t half =
        select_bits(static_cast<std::int32_t>(magnitude) < least_normal, denormal, normal);
    dst[i] = static_cast<std::uint16_t>((half & 0x7fffU) | ((bits & sign_mask) >> 16));
  }
}

// Decode halves that encode_fp16 wrote, and multiply them by `factor`. A half that was rounded up
// from the greatest float would be infinite.
inline void decode_fp16(float* dst, const std::uint16_t* src, std::size_t n,
                        float factor) noexcept {
  constexpr std::uint32_t rebias = (127U - 15U) << 23, least_normal = 113U << 23;
  constexpr std::int32_t greatest = 0x7f7fffff;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t half = src[i], shifted = (half & 0x7fffU) << 13;
    const float normal = float_of(shifted + rebias);
    const float denormal = float_of(shifted + least_normal) - float_of(least_normal);
    const std::uint32_t magnitude =
        select_bits((half & 0x7c00U) == 0, bits_of(denormal), bits_of(normal));
    const auto product = static_cast<std::int32_t>(bits_of(float_of(magnitude) * factor));
    const std::int32_t finite = product > greatest ? greatest : product;
    dst[i] = float_of(static_cast<std::uint32_t>(finite) | ((half & 0x8000U) << 16));
  }
}

// Return a random number of 32 bits for a counter: the finaliser "lowbias32" (C. Wellons, public
// domain) with a second key between its two products.
inline std::uint32_t random_bits(std::uint32_t counter, std::uint32_t key0,
                                 std::uint32_t key1) noexcept {
  std::uint32_t x = counter + key0;
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= (x >> 15) ^ key1;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}

// Round to one of the two nearest values at random: to the greater magnitude with the probability
// of the part that is cut off, in steps of 2^-16, so that the mean of the result is the value.
// Element i uses the random number of counter i. Finite values stay finite, infinity and NaN stay
// as they are.
inline void round_bf16(std::uint16_t* dst, const float* src, std::size_t n, std::uint32_t key0,
                       std::uint32_t key1) noexcept {
  constexpr std::uint32_t infinity = 0x7f800000U, greatest = 0x7f7fU;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = bits_of(src[i]), magnitude = bits & ~sign_mask;
    const std::uint32_t random = random_bits(static_cast<std::uint32_t>(i), key0, key1) >> 16;
    const std::uint32_t rounded = (magnitude + random) >> 16;
    const std::uint32_t finite = rounded > greatest ? greatest : rounded;
    const std::uint32_t other = (infinity >> 16) | select_bits(magnitude > infinity, 0x40U, 0U);
    const std::uint32_t result = select_bits(magnitude >= infinity, other, finite);
    dst[i] = static_cast<std::uint16_t>(result | ((bits & sign_mask) >> 16));
  }
}

// Encode src * factor, whose magnitude must be at most 127 or little more, by stochastic rounding:
// floor(value + u) with u uniform in [0, 1). The mean of the result is the value, and whole numbers
// stay as they are: u has 16 bits, so that the sum is exact for them. Element i uses the random
// number of counter first + i.
inline void encode_int8(std::int8_t* dst, const float* src, std::size_t n, float factor,
                        std::uint32_t key0, std::uint32_t key1, std::uint32_t first) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t random = random_bits(first + static_cast<std::uint32_t>(i), key0, key1);
    const float u = static_cast<float>(static_cast<std::int32_t>(random >> 16)) * 0x1p-16F;
    const float value = src[i] * factor + u;
    const auto toward_zero = static_cast<std::int32_t>(value);
    const std::int32_t down = toward_zero - (static_cast<float>(toward_zero) > value ? 1 : 0);
    const std::int32_t low = down < -127 ? -127 : down;
    dst[i] = static_cast<std::int8_t>(low > 127 ? 127 : low);
  }
}

// Encode src * factor, as encode_int8, but round to nearest; halves are rounded up.
inline void round_int8(std::int8_t* dst, const float* src, std::size_t n, float factor) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const float value = src[i] * factor + 0.5F;
    const auto toward_zero = static_cast<std::int32_t>(value);
    const std::int32_t down = toward_zero - (static_cast<float>(toward_zero) > value ? 1 : 0);
    const std::int32_t low = down < -127 ? -127 : down;
    dst[i] = static_cast<std::int8_t>(low > 127 ? 127 : low);
  }
}

inline void decode_int8(float* dst, const std::int8_t* src, std::size_t n, float scale) noexcept {
  for (std::size_t i = 0; i < n; ++i)
    dst[i] = static_cast<float>(static_cast<std::int32_t>(src[i])) * scale;
}

// Codecs with a residual (ring/feedback.hpp). A sum beyond float32 becomes the greatest number.
inline float bounded(float value) noexcept {
  constexpr std::int32_t greatest = 0x7f7fffff;
  const auto magnitude = static_cast<std::int32_t>(bits_of(value) & ~sign_mask);
  const std::int32_t finite = magnitude > greatest ? greatest : magnitude;
  return float_of(static_cast<std::uint32_t>(finite) | (bits_of(value) & sign_mask));
}

// Encode sums a + b against a scale that was chosen before, and leave in `rest` what the codes do
// not contain; return the greatest magnitude of the sums. Sums beyond 127 scales become 127 or
// -127. `scale` is a power of two and `factor` its inverse, or both are 0. Rounding is that of
// encode_int8. `rest` may be a.
inline float encode_shared(std::int8_t* dst, float* rest, const float* a, const float* b,
                           std::size_t n, float factor, float scale, std::uint32_t key0,
                           std::uint32_t key1, std::uint32_t first) noexcept {
  std::int32_t most = 0;  // magnitudes are positive as signed numbers
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t random = random_bits(first + static_cast<std::uint32_t>(i), key0, key1);
    const float u = static_cast<float>(static_cast<std::int32_t>(random >> 16)) * 0x1p-16F;
    const float sum = bounded(a[i] + b[i]);
    const auto magnitude = static_cast<std::int32_t>(bits_of(sum) & ~sign_mask);
    most = magnitude > most ? magnitude : most;
    const float scaled = sum * factor;
    const float low = scaled < -127.0F ? -127.0F : scaled;
    const float value = (low > 127.0F ? 127.0F : low) + u;
    const auto toward_zero = static_cast<std::int32_t>(value);
    const std::int32_t code = toward_zero - (static_cast<float>(toward_zero) > value ? 1 : 0);
    dst[i] = static_cast<std::int8_t>(code);
    rest[i] = sum - static_cast<float>(code) * scale;
  }
  return float_of(static_cast<std::uint32_t>(most));
}

// dst = a + b; return how many magnitudes have at least the bits `low`. dst may be a.
inline std::size_t add_count(float* dst, const float* a, const float* b, std::size_t n,
                             std::uint32_t low) noexcept {
  constexpr std::size_t chunk = 4096;
  std::size_t total = 0;
  for (std::size_t from = 0; from < n; from += chunk) {
    const std::size_t stop = n - from < chunk ? n : from + chunk;
    std::uint32_t found = 0;
    for (std::size_t i = from; i < stop; ++i) {
      const float sum = bounded(a[i] + b[i]);
      dst[i] = sum;
      found += (bits_of(sum) & ~sign_mask) >= low ? 1U : 0U;
    }
    total += found;
  }
  return total;
}

constexpr std::size_t search_group = 32;  // values that a search compares at once

// Write the places of all values whose magnitudes have at least the bits `low`, plus `base`; return
// how many. `out` has room for n + 1.
inline std::size_t list_above(std::uint32_t* out, const float* src, std::size_t n,
                              std::uint32_t low, std::uint32_t base) noexcept {
  std::size_t found = 0;
  for (std::size_t from = 0; from < n; from += search_group) {
    const std::size_t here = n - from < search_group ? n - from : search_group;
    if (here == search_group) {
      std::int32_t most = 0;  // magnitudes are positive as signed numbers
      for (std::size_t j = 0; j < search_group; ++j) {
        const auto magnitude = static_cast<std::int32_t>(bits_of(src[from + j]) & ~sign_mask);
        most = magnitude > most ? magnitude : most;
      }
      if (static_cast<std::uint32_t>(most) < low) continue;
    }
    // Without a branch, which would often be predicted wrongly.
    for (std::size_t j = 0; j < here; ++j) {
      out[found] = base + static_cast<std::uint32_t>(from + j);
      found += (bits_of(src[from + j]) & ~sign_mask) >= low ? 1U : 0U;
    }
  }
  return found;
}

// Write the places, plus `base`, of those of the n counters first, first + 1, ... whose random
// numbers are below `below`; return how many. `out` has room for n + 1.
inline std::size_t list_random(std::uint32_t* out, std::uint32_t first, std::size_t n,
                               std::uint32_t key0, std::uint32_t key1, std::uint32_t below,
                               std::uint32_t base) noexcept {
  std::size_t found = 0;
  for (std::size_t from = 0; from < n; from += search_group) {
    const std::size_t here = n - from < search_group ? n - from : search_group;
    std::uint32_t random[search_group], least = ~0U;
    for (std::size_t j = 0; j < search_group; ++j) {
      random[j] = random_bits(first + static_cast<std::uint32_t>(from + j), key0, key1);
      least = random[j] < least ? random[j] : least;
    }
    if (least >= below) continue;
    for (std::size_t j = 0; j < here; ++j) {
      out[found] = base + static_cast<std::uint32_t>(from + j);
      found += random[j] < below ? 1U : 0U;
    }
  }
  return found;
}

constexpr std::size_t sign_lanes = 16, sign_rows = 32;
constexpr std::size_t sign_block = sign_lanes * sign_rows;  // values with one magnitude

// Add the upper half of n terms to the lower one until one is left, and return it. The length is a
// constant, since compilers do not vectorise the loop otherwise.
template <std::size_t n>
inline float folded(float* terms) noexcept {
  if constexpr (n == 1) {
    return terms[0];
  } else {
    float half[n / 2];
    for (std::size_t k = 0; k < n / 2; ++k) half[k] = terms[k] + terms[n / 2 + k];
    return folded<n / 2>(half);
  }
}

// dst = a + b for a block of `sign_block` values; return the sum of their magnitudes over
// `sign_block`. dst may be a.
inline float add_fold(float* dst, const float* a, const float* b) noexcept {
  float terms[sign_block];
  for (std::size_t i = 0; i < sign_block; ++i) {
    const float sum = bounded(a[i] + b[i]);
    dst[i] = sum;
    terms[i] = float_of(bits_of(sum) & ~sign_mask) * (1.0F / sign_block);
  }
  return folded<sign_block>(terms);
}

// Encode a block as its signs, and leave in `values` what the codes do not contain. Value
// 16 j + k is bit j of word k.
inline void encode_signs(std::uint32_t* words, float* values, float magnitude) noexcept {
  std::uint32_t found[sign_lanes] = {};
  const std::uint32_t bits = bits_of(magnitude);
  for (std::size_t j = 0; j < sign_rows; ++j) {
    float* row = values + j * sign_lanes;
    for (std::size_t k = 0; k < sign_lanes; ++k) {
      const std::uint32_t sign = bits_of(row[k]) & sign_mask;
      found[k] |= (sign >> 31) << j;
      row[k] -= float_of(bits | sign);
    }
  }
  __builtin_memcpy(words, found, sizeof found);
}

inline void decode_signs(float* dst, const std::uint32_t* words, float magnitude) noexcept {
  const std::uint32_t bits = bits_of(magnitude);
  for (std::size_t j = 0; j < sign_rows; ++j)
    for (std::size_t k = 0; k < sign_lanes; ++k)
      dst[j * sign_lanes + k] = float_of(bits ^ (((words[k] >> j) & 1U) << 31));
}

}  // namespace
}  // namespace mpips
