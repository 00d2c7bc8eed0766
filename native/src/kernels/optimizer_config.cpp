#include "kernels/optimizer_config.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mpips {
namespace {

struct KindTraits {
  const char* name;
  std::size_t n_state;
};

constexpr KindTraits traits[n_optimizers] = {{"sgd", 0},     {"momentum", 1}, {"nesterov", 1},
                                             {"adagrad", 1}, {"rmsprop", 1},  {"adam", 2},
                                             {"adamw", 2},   {"ftrl", 2}};

constexpr std::size_t longest_table = 32768;  // steps
constexpr double infinity = std::numeric_limits<double>::infinity();
// Bound of gradients whose squares enter a mean: the square is finite in float32, and so is a mean
// of such squares, however it is rounded.
constexpr double largest_root = 1.8e19;
// Bound of gradients whose squares enter a sum that never decays: the sum is finite for 2^28 of
// them.
constexpr double largest_root_of_sum = 1125899906842624.0;  // 2^50

const KindTraits& traits_of(OptimizerKind kind) noexcept {
  return traits[static_cast<std::size_t>(kind)];
}

// Return the bound to which a rule with a second moment clips larger gradients; infinity for
// others.
double gradient_bound(OptimizerKind kind) noexcept {
  switch (kind) {
    case OptimizerKind::sgd:
    case OptimizerKind::momentum:
    case OptimizerKind::nesterov:
      return infinity;
    case OptimizerKind::adagrad:
    case OptimizerKind::ftrl:
      return largest_root_of_sum;
    default:
      return largest_root;
  }
}

BiasCorrection correction(const OptimizerConfig& c, std::uint64_t step) noexcept {
  const auto t = static_cast<double>(step);
  const double second = 1.0 - std::pow(c.beta2, t);
  return {1.0 - std::pow(c.beta1, t), static_cast<float>(1.0 / std::sqrt(second))};
}

// Return true if later corrections are the same: beta < 1, so once both powers have vanished beside
// 1 they remain so.
bool is_final(const BiasCorrection& b) noexcept { return b.first == 1.0 && b.root_scale == 1.0F; }

}  // namespace

const char* name_of(OptimizerKind kind) noexcept { return traits_of(kind).name; }

std::size_t n_state(OptimizerKind kind) noexcept { return traits_of(kind).n_state; }

bool uses_step(OptimizerKind kind) noexcept {
  return kind == OptimizerKind::adam || kind == OptimizerKind::adamw;
}

float initial_state(const OptimizerConfig& config, std::size_t slot) noexcept {
  const bool is_accumulator = config.kind == OptimizerKind::adagrad && slot == 0;
  return is_accumulator ? static_cast<float>(config.initial_accumulator) : 0.0F;
}

std::shared_ptr<const BiasTable> make_bias_table(const OptimizerConfig& config) {
  if (!uses_step(config.kind)) return nullptr;
  auto table = std::make_shared<BiasTable>();
  do {
    table->push_back(correction(config, table->size() + 1));
  } while (!is_final(table->back()) && table->size() < longest_table);
  return table;
}

UpdateArgs prepare(const OptimizerConfig& c, std::uint64_t step, const Factors& factors) noexcept {
  const bool decoupled = c.kind == OptimizerKind::adamw;
  const bool rms = c.kind == OptimizerKind::rmsprop;
  const double decay2 = rms ? c.rho : c.beta2;
  const auto rate = static_cast<double>(factors.rate);

  // In momentum and nesterov, the rate scales what a gradient adds to the velocity.
  const bool velocity = c.kind == OptimizerKind::momentum || c.kind == OptimizerKind::nesterov;
  const double entry = velocity ? rate : 1.0;
  const double bound = gradient_bound(c.kind);

  UpdateArgs a;
  a.rate = velocity ? 1.0F : factors.rate;
  a.gradient_scale = static_cast<float>(static_cast<double>(factors.gradient) * entry);
  a.clip_value =
      static_cast<float>(std::min(c.clip_value > 0 ? c.clip_value : infinity, bound) * entry);
  a.coupled_decay = decoupled ? 0.0F : static_cast<float>(c.weight_decay * entry);
  a.decoupled_decay = decoupled ? static_cast<float>(c.lr * c.weight_decay * rate) : 0.0F;
  a.momentum = static_cast<float>(c.momentum);
  a.decay1 = static_cast<float>(c.beta1);
  a.rest1 = static_cast<float>(1.0 - c.beta1);
  a.decay2 = static_cast<float>(decay2);
  a.rest2 = static_cast<float>(1.0 - decay2);
  a.eps = static_cast<float>(c.eps);
  a.inverse_lr = static_cast<float>(1.0 / c.lr);
  a.l1 = static_cast<float>(c.l1);
  a.l2 = static_cast<float>(c.l2);
  a.beta = static_cast<float>(c.beta);
  set_step(c, step, &a);
  return a;
}

BiasCorrection bias_correction(const OptimizerConfig& c, std::uint64_t step) noexcept {
  if (!uses_step(c.kind)) return {1.0, 1.0F};
  const BiasTable* table = c.bias_table.get();
  if (table == nullptr || table->empty()) return correction(c, step);
  if (step - 1 < table->size()) return (*table)[step - 1];
  return is_final(table->back()) ? table->back() : correction(c, step);
}

}  // namespace mpips
