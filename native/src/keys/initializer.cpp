#include "keys/initializer.hpp"

#include <algorithm>
#include <cmath>

#include "keys/mix.hpp"

namespace mpips {

namespace {

// Tags that give rows and dense tensors of one seed different streams.
constexpr std::uint64_t row_tag = 0x6d706970732d726fULL;
constexpr std::uint64_t dense_tag = 0x6d706970732d6465ULL;

// Return element i of a stream: the output of SplitMix64 at its step i + 1.
inline std::uint64_t bits_at(std::uint64_t stream, std::uint64_t i) noexcept {
  return mix_splitmix(stream + (i + 1) * splitmix_step);
}

// Return a uniform value in [-limit, limit): a 24-bit integer scaled to [-1, 1), then rounded once.
inline float uniform_at(std::uint64_t bits, float limit) noexcept {
  const auto centred = static_cast<std::int32_t>(bits >> 40) - (1 << 23);
  return static_cast<float>(centred) * 0x1p-23f * limit;
}

// Return ln(x), x > 0, to 1e-9, by the series of 2 atanh((m - 1) / (m + 1)). The log of libm is not
// used: its bits differ between machines.
inline double log_plain(double x) noexcept {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) {
    m *= 2.0;
    exponent -= 1;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double sum = 1.0 / 13.0;
  for (const double term : {1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0})
    sum = sum * z + term;
  return exponent * 0.69314718055994531 + 2.0 * s * sum;
}

// Return the normal quantile of p = (n + 1/2) / 2^52, by algorithm AS 241, PPND7 (Wichura, Applied
// Statistics 37, 1988), with relative error 1e-7.
inline double normal_at(std::uint64_t bits) noexcept {
  const double p = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179) /
           (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0);
  }

  double r = std::sqrt(-log_plain(q < 0.0 ? p : 1.0 - p));
  double z = 0.0;
  if (r <= 5.0) {
    r -= 1.6;
    z = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
        ((0.12021132975 * r + 0.73700164250) * r + 1.0);
  } else {
    r -= 5.0;
    z = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) /
        ((0.012258202635 * r + 0.24197894225) * r + 1.0);
  }
  return q < 0.0 ? -z : z;
}

// Return the gain times sqrt(numerator / (fan_in + fan_out)).
inline float glorot(const Initializer& initializer, double numerator) noexcept {
  const double fans = static_cast<double>(initializer.fan_in) + initializer.fan_out;
  return static_cast<float>(static_cast<double>(initializer.scale) * std::sqrt(numerator / fans));
}

void fill_uniform(std::uint64_t stream, std::uint64_t first, float limit, float* out,
                  std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) out[i] = uniform_at(bits_at(stream, first + i), limit);
}

void fill_normal(std::uint64_t stream, std::uint64_t first, float deviation, float* out,
                 std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i)
    out[i] =
        static_cast<float>(static_cast<double>(deviation) * normal_at(bits_at(stream, first + i)));
}

// Write out[i] = element first + i of `stream`, with the initializer's distribution.
void fill(const Initializer& initializer, std::uint64_t stream, std::uint64_t first, float* out,
          std::size_t n) noexcept {
  switch (initializer.kind) {
    case Initializer::Kind::zeros:
      std::fill_n(out, n, 0.0f);
      return;
    case Initializer::Kind::constant:
      std::fill_n(out, n, initializer.scale);
      return;
    case Initializer::Kind::uniform:
      return fill_uniform(stream, first, initializer.scale, out, n);
    case Initializer::Kind::normal:
      return fill_normal(stream, first, initializer.scale, out, n);
    case Initializer::Kind::xavier_uniform:
      return fill_uniform(stream, first, glorot(initializer, 6.0), out, n);
    case Initializer::Kind::xavier_normal:
      return fill_normal(stream, first, glorot(initializer, 2.0), out, n);
  }
}

}  // namespace

void initialize_row(const Initializer& initializer, std::int64_t key, float* out,
                    std::size_t dim) noexcept {
  const std::uint64_t mixed_key = mix_splitmix(static_cast<std::uint64_t>(key));
  const std::uint64_t stream = mix_splitmix(mix_splitmix(initializer.seed ^ row_tag) + mixed_key);
  fill(initializer, stream, 0, out, dim);
}

void initialize_range(const Initializer& initializer, std::uint64_t first, float* out,
                      std::size_t n) noexcept {
  fill(initializer, mix_splitmix(initializer.seed ^ dense_tag), first, out, n);
}

}  // namespace mpips
