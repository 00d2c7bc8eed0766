#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/kernel_types.hpp"

namespace mpips {

// Adam's correction of the moments' bias towards their start at zero, for one step.
struct BiasCorrection {
  double first;      // 1 - beta1^step
  float root_scale;  // 1 / sqrt(1 - beta2^step)
};
using BiasTable = std::vector<BiasCorrection>;

// Hyperparameters as the user set them; a rule reads only its own.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::sgd;
  double lr = 0, momentum = 0, beta1 = 0, beta2 = 0, rho = 0, eps = 0, l1 = 0, l2 = 0;
  double beta = 0;  // ftrl
  double weight_decay = 0;
  double clip_value = 0;  // gradients are clipped to it; 0: off
  double initial_accumulator = 0;
  double every = 0;  // delayed_nesterov: updates between two changes of the momentum
  // Optional, from `make_bias_table`: `prepare` looks corrections up here. Null: it computes them.
  std::shared_ptr<const BiasTable> bias_table;
};

// All hyperparameters, in the order of ConfigWords.
constexpr double OptimizerConfig::* hyperparameters[] = {
    &OptimizerConfig::lr,         &OptimizerConfig::momentum,
    &OptimizerConfig::beta1,      &OptimizerConfig::beta2,
    &OptimizerConfig::rho,        &OptimizerConfig::eps,
    &OptimizerConfig::l1,         &OptimizerConfig::l2,
    &OptimizerConfig::beta,       &OptimizerConfig::weight_decay,
    &OptimizerConfig::clip_value, &OptimizerConfig::initial_accumulator,
    &OptimizerConfig::every,
};

// A config without its bias table, as records and the journal have it: the kind, then the bits of
// each hyperparameter.
using ConfigWords = std::array<std::uint64_t, 1 + std::size(hyperparameters)>;
ConfigWords words_of(const OptimizerConfig& config) noexcept;
// Return the config of these words, without a bias table. `kind`: of the rule that the words are
// for. Throw std::invalid_argument, with the name of what is wrong, for another kind and for a
// value outside the range that the rule accepts (mpips/model/optimizer.py).
OptimizerConfig config_of(const ConfigWords& words, OptimizerKind kind);

// Workers have set different hyperparameters for one clock.
class RuleMismatch : public std::runtime_error {
 public:
  RuleMismatch(std::size_t worker, std::size_t other, const std::string& table,
               std::uint64_t clock);
};

// Return the name that users write: "sgd", "momentum", ...
const char* name_of(OptimizerKind kind) noexcept;
// Return the number of float32 state values per parameter: 0, 1 or 2.
std::size_t n_state(OptimizerKind kind) noexcept;
// Return the number of float32 state values per row: 0 or 1.
std::size_t n_row_state(OptimizerKind kind) noexcept;
// Return true if the update depends on the number of updates so far (adam, adamw,
// delayed_nesterov).
bool uses_step(OptimizerKind kind) noexcept;
// Return the value with which all elements of state `slot` begin. The state of a row is slot 0.
float initial_state(const OptimizerConfig& config, std::size_t slot) noexcept;

// Return the corrections of steps 1, 2, ... until they no longer change, at most 32768 of them;
// null for rules that have none. The table depends on the config's beta1 and beta2 only; configs
// with the same two share one table for as long as any of them has it. Safe for several threads.
std::shared_ptr<const BiasTable> make_bias_table(const OptimizerConfig& config);

// Factors of one update.
struct Factors {
  float gradient = 1.0F;  // of the sum of pushes: 1 / number of workers for BSP's mean
  float rate = 1.0F;      // of the learning rate: set by the policy for stale pushes
};

// Compute the constants of the inner loop in double and round them to float32 once. `step` is the
// number of this update, from 1. The result has the same bits with and without a bias table.
UpdateArgs prepare(const OptimizerConfig& config, std::uint64_t step,
                   const Factors& factors) noexcept;

// Return Adam's corrections at a step, from the table or computed.
BiasCorrection bias_correction(const OptimizerConfig& config, std::uint64_t step) noexcept;

// Change the fields that depend on the step, as `prepare` with this step would. This is for rows
// that count their own steps: calling `prepare` for each row would cost as much as the update of a
// short row. Fields that rules without steps need do not change.
inline void set_step(const OptimizerConfig& config, std::uint64_t step, UpdateArgs* args) noexcept {
  const BiasTable* table = config.bias_table.get();
  const BiasCorrection bias = table != nullptr && step - 1 < table->size()
                                  ? (*table)[step - 1]
                                  : bias_correction(config, step);
  args->lr = static_cast<float>(config.lr / bias.first * static_cast<double>(args->rate));
  args->root_scale = bias.root_scale;
  args->is_due = config.every > 0 && step % static_cast<std::uint64_t>(config.every) == 0;
}

}  // namespace mpips
