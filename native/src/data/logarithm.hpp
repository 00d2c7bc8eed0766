#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace mpips::data {

// sign(v) log(1 + |v|) as float32, with the bits of the double that std::log1p returns, rounded.
//
// Most numbers need no std::log1p, which takes several times as long. An approximation has a
// relative error below 2^-44: with u = 1 + |v| = 2^k m and c = 1 + i / 128 the greatest such number
// not above m, log(u) = k log(2) + log(c) + log(1 + r), where r = (m - c) / c < 2^-7.
// No term is negative, so none cancels another. The sum of six terms of the series of log(1 + r)
// lacks less than r^7 / 7 < 2^-51, and u differs from 1 + |v| by a factor of at most 1 + 2^-53.
// Results are at least log(1 + 2^-6) > 2^-6.1, so these are relative errors below 2^-44 and 2^-46;
// all rounding together is below 2^-49. std::log1p has an error below 2^-51. If a change by 2^-40
// in either direction leaves the rounded number as it is, that of std::log1p is this number, too.
// Otherwise, which happens once in 30,000 numbers, and for small numbers and NaN, it is asked.
class FloatLogarithm {
 public:
  FloatLogarithm() noexcept {
    for (int i = 0; i < kParts; ++i) {
      const double c = 1.0 + i / static_cast<double>(kParts);
      parts_[i] = {1.0 / c, std::log(c)};
    }
  }

  float operator()(double value) const noexcept {
    const double size = std::fabs(value);
    if (!(size >= kLeast && size <= kGreatest)) return exact(value);
    const double u = 1.0 + size;
    std::uint64_t bits;
    std::memcpy(&bits, &u, sizeof bits);
    const auto exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
    bits = (bits & ((1ULL << 52) - 1)) | 1023ULL << 52;
    const double m = from_bits(bits), c = from_bits(bits & ~((1ULL << kRest) - 1));
    const Part& part = parts_[(bits >> kRest) & (kParts - 1)];
    const double r = (m - c) * part.inverse, r2 = r * r;
    // r - r^2 / 2 + r^3 / 3 - r^4 / 4 + r^5 / 5 - r^6 / 6
    const double tail = (1.0 / 3 - r * 0.25) + r2 * (1.0 / 5 - r * (1.0 / 6));
    const double series = r - r2 * 0.5 + r2 * r * tail;
    const double found = static_cast<double>(exponent) * kLogOf2 + part.logarithm + series;
    const auto low = static_cast<float>(found - found * kDoubt);
    const auto high = static_cast<float>(found + found * kDoubt);
    return low == high ? std::copysign(low, static_cast<float>(value)) : exact(value);
  }

 private:
  struct Part {
    double inverse, logarithm;
  };

  static constexpr int kParts = 128, kRest = 45;  // kRest: bits of a mantissa behind the first 7
  static constexpr double kLeast = 0x1p-6, kGreatest = 0x1p1000, kDoubt = 0x1p-40;
  static constexpr double kLogOf2 = 0.693147180559945309417232121458;

  static double from_bits(std::uint64_t bits) noexcept {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  static float exact(double value) noexcept {
    return static_cast<float>(std::copysign(std::log1p(std::fabs(value)), value));
  }

  Part parts_[kParts];
};

}  // namespace mpips::data
