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

}  // namespace
}  // namespace mpips
