#if MPIPS_X86

#include <immintrin.h>

#include "kernels/loops.hpp"

namespace mpips {
namespace {

// Sixteen words, eight of them set: a load at 8 - n gives a mask of the first n lanes.
alignas(64) constexpr std::int32_t mask_words[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

inline __m256i first_lanes(std::size_t n) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask_words + 8 - n));
}

// Eight floats in a register of AVX.
struct Avx2 {
  static constexpr std::size_t width = 8;
  __m256 v;
  static Avx2 set(float a) noexcept { return {_mm256_set1_ps(a)}; }
  static Avx2 zero() noexcept { return {_mm256_setzero_ps()}; }
  static Avx2 load(const float* p) noexcept { return {_mm256_loadu_ps(p)}; }
  static Avx2 load_first(const float* p, std::size_t n) noexcept {
    return {_mm256_maskload_ps(p, first_lanes(n))};
  }
  static bool all(Avx2 mask) noexcept { return _mm256_movemask_ps(mask.v) == 0xff; }
  void store(float* p) const noexcept { _mm256_storeu_ps(p, v); }
  void stream(float* p) const noexcept { _mm256_stream_ps(p, v); }
  static void fence() noexcept { _mm_sfence(); }
  void store_first(float* p, std::size_t n) const noexcept {
    _mm256_maskstore_ps(p, first_lanes(n), v);
  }
};

inline __m256 sign_bit() noexcept { return _mm256_set1_ps(-0.0F); }

inline Avx2 operator+(Avx2 a, Avx2 b) noexcept { return {_mm256_add_ps(a.v, b.v)}; }
inline Avx2 operator-(Avx2 a, Avx2 b) noexcept { return {_mm256_sub_ps(a.v, b.v)}; }
inline Avx2 operator*(Avx2 a, Avx2 b) noexcept { return {_mm256_mul_ps(a.v, b.v)}; }
inline Avx2 operator/(Avx2 a, Avx2 b) noexcept { return {_mm256_div_ps(a.v, b.v)}; }
inline Avx2 operator-(Avx2 a) noexcept { return {_mm256_xor_ps(a.v, sign_bit())}; }
inline Avx2 min(Avx2 a, Avx2 b) noexcept { return {_mm256_min_ps(a.v, b.v)}; }
inline Avx2 max(Avx2 a, Avx2 b) noexcept { return {_mm256_max_ps(a.v, b.v)}; }
inline Avx2 sqrt(Avx2 a) noexcept { return {_mm256_sqrt_ps(a.v)}; }
inline Avx2 abs(Avx2 a) noexcept { return {_mm256_andnot_ps(sign_bit(), a.v)}; }
inline Avx2 copysign(Avx2 a, Avx2 sign) noexcept {
  return {_mm256_or_ps(abs(a).v, _mm256_and_ps(sign.v, sign_bit()))};
}
inline Avx2 less_equal(Avx2 a, Avx2 b) noexcept { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
inline Avx2 equal(Avx2 a, Avx2 b) noexcept { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
inline Avx2 select(Avx2 mask, Avx2 yes, Avx2 no) noexcept {
  return {_mm256_blendv_ps(no.v, yes.v, mask.v)};
}

}  // namespace

extern const KernelTable avx2_kernels;
const KernelTable avx2_kernels = table_of<Avx2>("avx2");

}  // namespace mpips

#endif
