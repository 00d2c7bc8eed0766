#pragma once

#include <cstddef>

// Sums over float32 values, over the vector type V of loops.hpp. 32 partial sums, of elements that
// are equal modulo 32, are taken in float32 over a block of 512 values and added up in float64, in
// a fixed order whatever the width of V. So all instruction sets give the same bits. The namespace
// is unnamed for the reason given in loops.hpp.
namespace mpips {
namespace {

// Store the sum of src[i] - centre, and that of its square.
template <class V>
void centred_sums(const float* src, std::size_t n, float centre, double* out) noexcept {
  constexpr std::size_t lanes = 32, block = 512, parts = lanes / V::width;
  const V middle = V::set(centre);
  double sums[lanes] = {}, squares[lanes] = {};
  std::size_t i = 0;
  for (; i + block <= n; i += block) {
    V sum[parts], square[parts];
    for (std::size_t j = 0; j < parts; ++j) sum[j] = square[j] = V::zero();
    for (std::size_t k = 0; k < block; k += lanes)
      for (std::size_t j = 0; j < parts; ++j) {
        const V away = V::load(src + i + k + j * V::width) - middle;
        sum[j] = sum[j] + away;
        square[j] = square[j] + away * away;
      }
    alignas(64) float partial[2][lanes];
    for (std::size_t j = 0; j < parts; ++j) {
      sum[j].store(partial[0] + j * V::width);
      square[j].store(partial[1] + j * V::width);
    }
    for (std::size_t l = 0; l < lanes; ++l) sums[l] += static_cast<double>(partial[0][l]);
    for (std::size_t l = 0; l < lanes; ++l) squares[l] += static_cast<double>(partial[1][l]);
  }
  double sum = 0.0, square = 0.0;
  for (std::size_t l = 0; l < lanes; ++l) sum += sums[l];
  for (std::size_t l = 0; l < lanes; ++l) square += squares[l];
  for (; i < n; ++i) {
    const double away = static_cast<double>(src[i] - centre);
    sum += away;
    square += away * away;
  }
  out[0] = sum;
  out[1] = square;
}

}  // namespace
}  // namespace mpips
