#pragma once

#include <cmath>
#include <cstddef>

#include "kernels/kernel_table.hpp"

// Rules with one state for a whole row. The state changes by a number of the whole row, so such a
// row is changed by one call: the pieces of a logged kernel could not compute that number again
// once the first of them is changed.
namespace mpips {

// Row-wise Adagrad: add the mean of the squared gradients to the row's accumulator, then divide all
// gradients by its root plus eps. Other rules have no such state: `accumulator` is null.
inline void update_row(const KernelTable& table, const OptimizerConfig& config, float* w, float* s0,
                       float* s1, float* accumulator, const float* g, std::size_t n,
                       UpdateArgs* args) noexcept {
  if (accumulator != nullptr) {
    *accumulator += table.mean_square(w, g, n, *args);
    args->root_scale = std::sqrt(*accumulator) + args->eps;
  }
  table.update[static_cast<std::size_t>(config.kind)](w, s0, s1, g, n, *args);
}

}  // namespace mpips
