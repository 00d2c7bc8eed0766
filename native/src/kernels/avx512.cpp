#if MPIPS_X86

#include <immintrin.h>

#include "kernels/loops.hpp"
#include "kernels/vector8.hpp"

namespace mpips {
namespace {

inline __mmask16 first_lanes(std::size_t n) noexcept {
  return static_cast<__mmask16>((1U << n) - 1U);
}

// Sixteen floats in an AVX-512 register.
struct Avx512 {
  using Half = Vector8;
  static constexpr std::size_t width = 16;
  __m512 v;
  static Avx512 set(float a) noexcept { return {_mm512_set1_ps(a)}; }
  static Avx512 zero() noexcept { return {_mm512_setzero_ps()}; }
  static Avx512 load(const float* p) noexcept { return {_mm512_loadu_ps(p)}; }
  static Avx512 load_first(const float* p, std::size_t n) noexcept {
    return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
  }
  static bool all(__mmask16 mask) noexcept { return mask == 0xffff; }
  void store(float* p) const noexcept { _mm512_storeu_ps(p, v); }
  void stream(float* p) const noexcept { _mm512_stream_ps(p, v); }
  static void fence() noexcept { _mm_sfence(); }
  void store_first(float* p, std::size_t n) const noexcept {
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
  }
};

inline __m512 sign_bit() noexcept { return _mm512_set1_ps(-0.0F); }

inline Avx512 operator+(Avx512 a, Avx512 b) noexcept { return {_mm512_add_ps(a.v, b.v)}; }
inline Avx512 operator-(Avx512 a, Avx512 b) noexcept { return {_mm512_sub_ps(a.v, b.v)}; }
inline Avx512 operator*(Avx512 a, Avx512 b) noexcept { return {_mm512_mul_ps(a.v, b.v)}; }
inline Avx512 operator/(Avx512 a, Avx512 b) noexcept { return {_mm512_div_ps(a.v, b.v)}; }
inline Avx512 operator-(Avx512 a) noexcept { return {_mm512_xor_ps(a.v, sign_bit())}; }
inline Avx512 min(Avx512 a, Avx512 b) noexcept { return {_mm512_min_ps(a.v, b.v)}; }
inline Avx512 max(Avx512 a, Avx512 b) noexcept { return {_mm512_max_ps(a.v, b.v)}; }
inline Avx512 sqrt(Avx512 a) noexcept { return {_mm512_sqrt_ps(a.v)}; }
inline Avx512 abs(Avx512 a) noexcept { return {_mm512_andnot_ps(sign_bit(), a.v)}; }
inline Avx512 copysign(Avx512 a, Avx512 sign) noexcept {
  return {_mm512_or_ps(abs(a).v, _mm512_and_ps(sign.v, sign_bit()))};
}
inline __mmask16 less_equal(Avx512 a, Avx512 b) noexcept {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ);
}
inline __mmask16 equal(Avx512 a, Avx512 b) noexcept {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}
inline Avx512 select(__mmask16 mask, Avx512 yes, Avx512 no) noexcept {
  return {_mm512_mask_blend_ps(mask, no.v, yes.v)};
}

}  // namespace

extern const KernelTable avx512_kernels;
const KernelTable avx512_kernels = table_of<Avx512>("avx512");

}  // namespace mpips

#endif
