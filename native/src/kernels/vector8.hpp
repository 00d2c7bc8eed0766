#pragma once

#include <immintrin.h>

#include "kernels/kernel_types.hpp"

// Eight floats in an AVX register: the vector of avx2.cpp and the half vector of avx512.cpp. The
// namespace is unnamed for the reason given in loops.hpp.
namespace mpips {
namespace {

// Load and store the first n lanes without touching the memory of the others.
#if defined(__AVX512VL__)
inline __m256 load_lanes(const float* p, std::size_t n) noexcept {
  return _mm256_maskz_loadu_ps(static_cast<__mmask8>((1U << n) - 1U), p);
}
inline void store_lanes(float* p, std::size_t n, __m256 v) noexcept {
  _mm256_mask_storeu_ps(p, static_cast<__mmask8>((1U << n) - 1U), v);
}
#else
// Eight set words, then eight zeros: a load at offset 8 - n gives the mask of the first n lanes.
alignas(64) constexpr std::int32_t mask_words[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

inline __m256i first_lanes(std::size_t n) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask_words + 8 - n));
}
inline __m256 load_lanes(const float* p, std::size_t n) noexcept {
  return _mm256_maskload_ps(p, first_lanes(n));
}
inline void store_lanes(float* p, std::size_t n, __m256 v) noexcept {
  _mm256_maskstore_ps(p, first_lanes(n), v);
}
#endif

struct Vector8 {
  using Half = Vector8;  // there is no narrower vector
  static constexpr std::size_t width = 8;
  __m256 v;
  static Vector8 set(float a) noexcept { return {_mm256_set1_ps(a)}; }
  static Vector8 zero() noexcept { return {_mm256_setzero_ps()}; }
  static Vector8 load(const float* p) noexcept { return {_mm256_loadu_ps(p)}; }
  static Vector8 load_first(const float* p, std::size_t n) noexcept { return {load_lanes(p, n)}; }
  static bool all(Vector8 mask) noexcept { return _mm256_movemask_ps(mask.v) == 0xff; }
  void store(float* p) const noexcept { _mm256_storeu_ps(p, v); }
  void stream(float* p) const noexcept { _mm256_stream_ps(p, v); }
  static void fence() noexcept { _mm_sfence(); }
  void store_first(float* p, std::size_t n) const noexcept { store_lanes(p, n, v); }
};

inline __m256 sign_bit8() noexcept { return _mm256_set1_ps(-0.0F); }

inline Vector8 operator+(Vector8 a, Vector8 b) noexcept { return {_mm256_add_ps(a.v, b.v)}; }
inline Vector8 operator-(Vector8 a, Vector8 b) noexcept { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vector8 operator*(Vector8 a, Vector8 b) noexcept { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vector8 operator/(Vector8 a, Vector8 b) noexcept { return {_mm256_div_ps(a.v, b.v)}; }
inline Vector8 operator-(Vector8 a) noexcept { return {_mm256_xor_ps(a.v, sign_bit8())}; }
inline Vector8 min(Vector8 a, Vector8 b) noexcept { return {_mm256_min_ps(a.v, b.v)}; }
inline Vector8 max(Vector8 a, Vector8 b) noexcept { return {_mm256_max_ps(a.v, b.v)}; }
inline Vector8 sqrt(Vector8 a) noexcept { return {_mm256_sqrt_ps(a.v)}; }
inline Vector8 abs(Vector8 a) noexcept { return {_mm256_andnot_ps(sign_bit8(), a.v)}; }
inline Vector8 copysign(Vector8 a, Vector8 sign) noexcept {
  return {_mm256_or_ps(abs(a).v, _mm256_and_ps(sign.v, sign_bit8()))};
}
inline Vector8 less_equal(Vector8 a, Vector8 b) noexcept {
  return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)};
}
inline Vector8 equal(Vector8 a, Vector8 b) noexcept {
  return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)};
}
inline Vector8 select(Vector8 mask, Vector8 yes, Vector8 no) noexcept {
  return {_mm256_blendv_ps(no.v, yes.v, mask.v)};
}

}  // namespace
}  // namespace mpips
