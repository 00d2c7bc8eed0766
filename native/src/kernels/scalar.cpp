#include "kernels/loops.hpp"

namespace mpips {
namespace {

// One float as a vector of width 1. min and max return the second operand if one is NaN, as SSE
// does.
struct Scalar {
  using Half = Scalar;  // there is no narrower vector
  static constexpr std::size_t width = 1;
  float v;
  static Scalar set(float a) noexcept { return {a}; }
  static Scalar zero() noexcept { return {0.0F}; }
  static Scalar load(const float* p) noexcept { return {*p}; }
  static Scalar load_first(const float* p, std::size_t) noexcept { return {*p}; }
  static bool all(bool mask) noexcept { return mask; }
  void store(float* p) const noexcept { *p = v; }
  void stream(float* p) const noexcept { *p = v; }
  static void fence() noexcept {}
  void store_first(float* p, std::size_t) const noexcept { *p = v; }
};

inline Scalar operator+(Scalar a, Scalar b) noexcept { return {a.v + b.v}; }
inline Scalar operator-(Scalar a, Scalar b) noexcept { return {a.v - b.v}; }
inline Scalar operator*(Scalar a, Scalar b) noexcept { return {a.v * b.v}; }
inline Scalar operator/(Scalar a, Scalar b) noexcept { return {a.v / b.v}; }
inline Scalar operator-(Scalar a) noexcept { return {-a.v}; }
inline Scalar min(Scalar a, Scalar b) noexcept { return {a.v < b.v ? a.v : b.v}; }
inline Scalar max(Scalar a, Scalar b) noexcept { return {a.v > b.v ? a.v : b.v}; }
inline Scalar sqrt(Scalar a) noexcept { return {__builtin_sqrtf(a.v)}; }
inline Scalar abs(Scalar a) noexcept { return {__builtin_fabsf(a.v)}; }
inline Scalar copysign(Scalar a, Scalar sign) noexcept {
  return {__builtin_copysignf(a.v, sign.v)};
}
inline bool less_equal(Scalar a, Scalar b) noexcept { return a.v <= b.v; }
inline bool equal(Scalar a, Scalar b) noexcept { return a.v == b.v; }
inline Scalar select(bool mask, Scalar yes, Scalar no) noexcept { return mask ? yes : no; }

}  // namespace

extern const KernelTable scalar_kernels;
const KernelTable scalar_kernels = table_of<Scalar>("scalar");

}  // namespace mpips
