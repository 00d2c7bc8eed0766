#pragma once

#include "kernels/kernel_types.hpp"

// The loops of examples with negative samples, over the vector type V of loops.hpp. A dot product
// has 16 partial sums, of elements that are equal modulo 16, whatever the width of V; they are
// added in a fixed order. So all instruction sets give the same bits. The namespace is unnamed for
// the reason given in loops.hpp.
namespace mpips {
namespace {

// Compute the dot products of `h` with K rows.
template <class V, std::size_t K>
inline void dots_of(const float* h, const float* const* rows, std::size_t stride,
                    float* out) noexcept {
  constexpr std::size_t lanes = ExampleBatch::lanes, n = lanes / V::width;
  V sums[K][n];
  for (std::size_t k = 0; k < K; ++k)
    for (std::size_t j = 0; j < n; ++j) sums[k][j] = V::zero();
  for (std::size_t i = 0; i < stride; i += lanes)
    for (std::size_t j = 0; j < n; ++j) {
      const V input = V::load(h + i + j * V::width);
      for (std::size_t k = 0; k < K; ++k)
        sums[k][j] = sums[k][j] + input * V::load(rows[k] + i + j * V::width);
    }
  alignas(64) float partial[K][lanes];
  for (std::size_t k = 0; k < K; ++k)
    for (std::size_t j = 0; j < n; ++j) sums[k][j].store(partial[k] + j * V::width);
  for (std::size_t k = 0; k < K; ++k) {
    float* p = partial[k];
    for (std::size_t l = 0; l < 8; ++l) p[l] += p[l + 8];
    for (std::size_t l = 0; l < 4; ++l) p[l] += p[l + 4];
    out[k] = (p[0] + p[2]) + (p[1] + p[3]);
  }
}

template <class V>
inline void dots(const float* h, const float* const* rows, std::size_t n_rows, std::size_t stride,
                 float* out) noexcept {
  std::size_t k = 0;
  for (; k + 4 <= n_rows; k += 4) dots_of<V, 4>(h, rows + k, stride, out + k);
  for (; k + 2 <= n_rows; k += 2) dots_of<V, 2>(h, rows + k, stride, out + k);
  if (k < n_rows) dots_of<V, 1>(h, rows + k, stride, out + k);
}

// Return the place of a dot product in the tables of sigmoids and losses; NaN has place 0.
inline std::size_t place_of(float dot) noexcept {
  constexpr float last = ExampleBatch::n_places - 1;
  float at = (dot + ExampleBatch::bound) * ExampleBatch::places_per_unit;
  at = at > 0.0F ? at : 0.0F;
  at = at < last ? at : last;
  return static_cast<std::size_t>(static_cast<std::int32_t>(at));
}

// Turn dot products into the factors of the update, in place; return the loss.
inline double factors_of(const ExampleBatch& b, const std::uint32_t* rows, float* dot) noexcept {
  std::size_t place = place_of(dot[0]);
  double loss = b.losses[place];
  dot[0] = (1.0F - b.sigmoids[place]) * b.rate;
  for (std::size_t k = 1; k < b.n_outputs; ++k) {
    // A negative sample that is the word itself does not count.
    const bool counts = rows[k] != rows[0];
    place = place_of(dot[k]);
    loss += counts ? b.losses[ExampleBatch::n_places - 1 - place] : 0.0F;
    dot[k] = counts ? -b.sigmoids[place] * b.rate : 0.0F;
  }
  return loss;
}

// Change the output rows, and store h + change (`whole`) or the change of the input alone.
template <class V, bool whole>
inline void update_outputs(const float* h, float* const* rows, const float* factors,
                           std::size_t n_rows, std::size_t stride, float* to) noexcept {
  for (std::size_t i = 0; i < stride; i += V::width) {
    const V input = V::load(h + i);
    V change = V::zero();
    for (std::size_t k = 0; k < n_rows; ++k) {
      const V factor = V::set(factors[k]), output = V::load(rows[k] + i);
      change = change + factor * output;
      (output + factor * input).store(rows[k] + i);
    }
    (whole ? input + change : change).store(to + i);
  }
}

// Set h to the mean of the input rows of an example.
template <class V>
inline void mean_input(const ExampleBatch& b, const std::uint32_t* rows, std::size_t n,
                       float* h) noexcept {
  const V factor = V::set(1.0F / static_cast<float>(n));
  for (std::size_t i = 0; i < b.stride; i += V::width) {
    V sum = V::zero();
    for (std::size_t m = 0; m < n; ++m) sum = sum + V::load(b.inputs + rows[m] * b.stride + i);
    (sum * factor).store(h + i);
  }
}

[[gnu::always_inline]] inline void ask_for_rows(const ExampleBatch& b, std::size_t i) noexcept {
  if (i >= b.n) return;
  const std::uint32_t* rows = b.output_rows + i * b.n_outputs;
  for (std::size_t k = 1; k < b.n_outputs; ++k) {
    const char* at = reinterpret_cast<const char*>(b.outputs + rows[k] * b.stride);
    for (std::size_t line = 0; line < b.stride / 16; ++line) __builtin_prefetch(at + 64 * line, 1);
  }
}

template <class V>
double train_examples(const ExampleBatch& batch) noexcept {
  const ExampleBatch b = batch;  // a copy, so that it stays in registers
  float* rows[ExampleBatch::most_outputs];
  float factors[ExampleBatch::most_outputs];
  double loss = 0.0;
  for (std::size_t i = 0; i < b.n; ++i) {
    ask_for_rows(b, i + 1);
    const std::uint32_t* output_rows = b.output_rows + i * b.n_outputs;
    for (std::size_t k = 0; k < b.n_outputs; ++k) rows[k] = b.outputs + output_rows[k] * b.stride;
    if (b.input_starts == nullptr) {
      float* input = b.inputs + b.input_rows[i] * b.stride;
      dots<V>(input, rows, b.n_outputs, b.stride, factors);
      loss += factors_of(b, output_rows, factors);
      update_outputs<V, true>(input, rows, factors, b.n_outputs, b.stride, input);
      continue;
    }
    const std::uint32_t* input_rows = b.input_rows + b.input_starts[i];
    const std::size_t n = b.input_starts[i + 1] - b.input_starts[i];
    float *h = b.work, *change = b.work + b.stride;
    mean_input<V>(b, input_rows, n, h);
    dots<V>(h, rows, b.n_outputs, b.stride, factors);
    loss += factors_of(b, output_rows, factors);
    update_outputs<V, false>(h, rows, factors, b.n_outputs, b.stride, change);
    for (std::size_t m = 0; m < n; ++m) {
      float* input = b.inputs + input_rows[m] * b.stride;
      for (std::size_t j = 0; j < b.stride; j += V::width)
        (V::load(input + j) + V::load(change + j)).store(input + j);
    }
  }
  return loss;
}

}  // namespace
}  // namespace mpips
