#pragma once

#include <memory>
#include <vector>

#include "kernels/kernel_types.hpp"

namespace mpips {

// Adam's corrections of the moments' bias towards their zero start, one entry a step.
struct BiasCorrection {
  double first;      // 1 - beta1^step
  float root_scale;  // 1 / sqrt(1 - beta2^step)
};
using BiasTable = std::vector<BiasCorrection>;

// Hyperparameters as the user gave them; a rule reads those that it has.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::sgd;
  double lr = 0, momentum = 0, beta1 = 0, beta2 = 0, rho = 0, eps = 0, l1 = 0, l2 = 0;
  double beta = 0;  // ftrl
  double weight_decay = 0;
  double clip_value = 0;  // 0: off
  double initial_accumulator = 0;
  // Optional, from `make_bias_table`: lets `prepare` look corrections up. Null: it computes them.
  std::shared_ptr<const BiasTable> bias_table;
};

// The name that users write: "sgd", "momentum", ...
const char* name_of(OptimizerKind kind) noexcept;
// Number of float32 state values per parameter: 0, 1 or 2.
std::size_t n_state(OptimizerKind kind) noexcept;
// True if the update depends on the number of updates so far (adam, adamw).
bool uses_step(OptimizerKind kind) noexcept;
float initial_state(const OptimizerConfig& config, std::size_t slot) noexcept;

// Corrections from step 1 until they no longer change, or for the first 32768 steps. Null for rules
// that have none. A table belongs to the config's beta1 and beta2: make it anew if these change.
std::shared_ptr<const BiasTable> make_bias_table(const OptimizerConfig& config);

// What one update is multiplied with.
struct Factors {
  float gradient = 1.0F;  // the sum of pushes: BSP's mean
  float rate = 1.0F;      // the learning rate: the policy for stale pushes
};

// Rounds what the inner loop needs to float32, once. `step` counts this update from 1. With and
// without a bias table the result has the same bits.
UpdateArgs prepare(const OptimizerConfig& config, std::uint64_t step,
                   const Factors& factors) noexcept;

// Adam's corrections at a step, wherever they come from; computed if they are in no table.
BiasCorrection bias_correction(const OptimizerConfig& config, std::uint64_t step) noexcept;

// Changes what depends on the step, as if `prepare` had been given this one: for rows that count
// their own steps, where `prepare` for each row would cost as much as a short row's update. What
// rules without steps need never changes.
inline void set_step(const OptimizerConfig& config, std::uint64_t step, UpdateArgs* args) noexcept {
  const BiasTable* table = config.bias_table.get();
  const BiasCorrection bias = table != nullptr && step - 1 < table->size()
                                  ? (*table)[step - 1]
                                  : bias_correction(config, step);
  args->lr = static_cast<float>(config.lr / bias.first * static_cast<double>(args->rate));
  args->root_scale = bias.root_scale;
}

}  // namespace mpips
