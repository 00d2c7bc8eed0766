#pragma once

#include <cstddef>
#include <cstdint>

namespace mpips {

// The initial values of new parameters. `scale` is the value of `constant`, the half-width of
// `uniform` ([-scale, scale)), the standard deviation of `normal`, and a gain for the two of Glorot
// and Bengio (AISTATS 2010): half-width sqrt(6 / (fan_in + fan_out)), deviation sqrt(2 / (fan_in +
// fan_out)). For those two, fan_in + fan_out must be positive.
//
// Every element is a pure function of the seed and of its place, computed with IEEE +, -, *, / and
// sqrt alone. So its bits are the same on every machine, for every caller, and in whatever pieces a
// tensor is filled. The definition in NumPy is mpips/model/initializer.py.
struct Initializer {
  enum class Kind : std::uint8_t {
    zeros,
    constant,
    uniform,
    normal,
    xavier_uniform,
    xavier_normal
  };
  // by Kind: the names that users write
  static constexpr const char* kind_names[] = {"zeros",  "constant",       "uniform",
                                               "normal", "xavier_uniform", "xavier_normal"};
  Kind kind;
  float scale;
  std::uint64_t seed;
  std::uint32_t fan_in, fan_out;
};

// Write out[j], j < dim: element j of the row of `key`. It depends on (seed, key, j) only.
void initialize_row(const Initializer& initializer, std::int64_t key, float* out,
                    std::size_t dim) noexcept;

// Write out[i], i < n: element first + i of a dense tensor. It depends on (seed, first + i) only.
void initialize_range(const Initializer& initializer, std::uint64_t first, float* out,
                      std::size_t n) noexcept;

}  // namespace mpips
