#include "kernels/optimizer_config.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace mpips {
namespace {

constexpr std::size_t longest_table = 32768;  // steps
constexpr double infinity = std::numeric_limits<double>::infinity();

const rules::Traits& traits_of(OptimizerKind kind) noexcept {
  return rules::traits[static_cast<std::size_t>(kind)];
}

bool has(OptimizerKind kind, rules::Property property) noexcept {
  return (traits_of(kind).properties & property) != 0;
}

BiasCorrection correction(const OptimizerConfig& c, std::uint64_t step) noexcept {
  const auto t = static_cast<double>(step);
  const double second = 1.0 - std::pow(c.beta2, t);
  return {1.0 - std::pow(c.beta1, t), static_cast<float>(1.0 / std::sqrt(second))};
}

// Return true if later corrections are the same: beta < 1, so once both powers have vanished beside
// 1 they remain so.
bool is_final(const BiasCorrection& b) noexcept { return b.first == 1.0 && b.root_scale == 1.0F; }

std::shared_ptr<const BiasTable> new_bias_table(const OptimizerConfig& config) {
  auto table = std::make_shared<BiasTable>();
  do {
    table->push_back(correction(config, table->size() + 1));
  } while (!is_final(table->back()) && table->size() < longest_table);
  return table;
}

struct Range {
  double least, most;  // both are accepted
};
// The ranges of mpips/model/optimizer.py: in these all products and quotients of hyperparameters
// are finite in float32.
constexpr Range rate{0.0, 1e18}, positive{1e-18, 1e18}, epsilon{1e-30, 1e18}, unused{0.0, 0.0},
    count{1.0, 2147483647.0};
// The largest double below 1.
constexpr Range fraction{0.0, 1.0 - std::numeric_limits<double>::epsilon() / 2};

// Return the range of a hyperparameter; that of one which the rule does not have is 0 alone.
Range range_of(double OptimizerConfig::* field, OptimizerKind kind) noexcept {
  using C = OptimizerConfig;
  using K = OptimizerKind;
  const auto only = [&](bool used, Range range) { return used ? range : unused; };
  const bool adam = has(kind, rules::bias_correction);
  if (field == &C::lr) return kind == K::ftrl ? positive : rate;
  if (field == &C::momentum) return only(has(kind, rules::velocity), fraction);
  if (field == &C::every) return only(kind == K::delayed_nesterov, count);
  if (field == &C::beta1 || field == &C::beta2) return only(adam, fraction);
  if (field == &C::rho) return only(kind == K::rmsprop, fraction);
  if (field == &C::eps)
    return only(adam || has(kind, rules::of_row) || kind == K::adagrad || kind == K::rmsprop,
                epsilon);
  if (field == &C::l1 || field == &C::l2) return only(kind == K::ftrl, rate);
  if (field == &C::beta) return only(kind == K::ftrl, positive);
  if (field == &C::initial_accumulator) return only(has(kind, rules::starts_positive), rate);
  return rate;  // weight_decay, clip_value
}

constexpr const char* hyperparameter_names[] = {
    "lr",   "momentum", "beta1", "beta2",        "rho",        "eps",
    "l1",   "l2",       "beta",  "weight_decay", "clip_value", "initial_accumulator",
    "every"};
static_assert(std::size(hyperparameter_names) == std::size(hyperparameters));

}  // namespace

RuleMismatch::RuleMismatch(std::size_t worker, std::size_t other, const std::string& table,
                           std::uint64_t clock)
    : std::runtime_error("workers " + std::to_string(worker) + " and " + std::to_string(other) +
                         " have different hyperparameters for table '" + table + "' at clock " +
                         std::to_string(clock) +
                         ": every worker must set the same values at the same clock, before its "
                         "pushes") {}

ConfigWords words_of(const OptimizerConfig& config) noexcept {
  ConfigWords words{static_cast<std::uint64_t>(config.kind)};
  for (std::size_t i = 0; i < std::size(hyperparameters); ++i)
    std::memcpy(&words[1 + i], &(config.*hyperparameters[i]), sizeof(double));
  return words;
}

OptimizerConfig config_of(const ConfigWords& words, OptimizerKind kind) {
  if (words[0] != static_cast<std::uint64_t>(kind))
    throw std::invalid_argument(
        "optimizer " +
        (words[0] < n_optimizers ? optimizer_names[words[0]] : std::to_string(words[0])) +
        ", expected " + name_of(kind));
  OptimizerConfig config;
  config.kind = kind;
  for (std::size_t i = 0; i < std::size(hyperparameters); ++i) {
    double value = 0;
    std::memcpy(&value, &words[1 + i], sizeof value);
    const Range range = range_of(hyperparameters[i], kind);
    // NaN fails both comparisons.
    if (!(value >= range.least && value <= range.most))
      throw std::invalid_argument(std::string(hyperparameter_names[i]) + " = " +
                                  std::to_string(value) + ", which " + name_of(kind) +
                                  " does not accept");
    config.*hyperparameters[i] = value;
  }
  return config;
}

const char* name_of(OptimizerKind kind) noexcept {
  return optimizer_names[static_cast<std::size_t>(kind)];
}

std::size_t n_state(OptimizerKind kind) noexcept { return traits_of(kind).n_state; }

std::size_t n_row_state(OptimizerKind kind) noexcept { return has(kind, rules::of_row) ? 1 : 0; }

bool uses_step(OptimizerKind kind) noexcept {
  return has(kind, rules::bias_correction) || has(kind, rules::counts_updates);
}

float initial_state(const OptimizerConfig& config, std::size_t slot) noexcept {
  const bool is_accumulator = has(config.kind, rules::starts_positive) && slot == 0;
  return is_accumulator ? static_cast<float>(config.initial_accumulator) : 0.0F;
}

std::shared_ptr<const BiasTable> make_bias_table(const OptimizerConfig& config) {
  if (!has(config.kind, rules::bias_correction)) return nullptr;
  static std::mutex mutex;
  static std::map<std::pair<double, double>, std::weak_ptr<const BiasTable>> made;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::pair<double, double> betas{config.beta1, config.beta2};
  if (const auto found = made.find(betas); found != made.end())
    if (auto table = found->second.lock()) return table;
  for (auto it = made.begin(); it != made.end();)
    it = it->second.expired() ? made.erase(it) : std::next(it);
  auto table = new_bias_table(config);
  made[betas] = table;
  return table;
}

UpdateArgs prepare(const OptimizerConfig& c, std::uint64_t step, const Factors& factors) noexcept {
  const bool decoupled = has(c.kind, rules::decoupled_decay);
  const double decay2 = has(c.kind, rules::second_is_rho) ? c.rho : c.beta2;
  const auto rate = static_cast<double>(factors.rate);

  // Momentum and both forms of nesterov: the rate scales what a gradient adds to the velocity.
  const bool velocity = has(c.kind, rules::velocity);
  const double entry = velocity ? rate : 1.0;
  const double bound = traits_of(c.kind).gradient_bound;

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
  a.share = static_cast<float>(c.every > 0 ? 1.0 / c.every : 1.0);
  a.past_caches = false;
  set_step(c, step, &a);
  return a;
}

BiasCorrection bias_correction(const OptimizerConfig& c, std::uint64_t step) noexcept {
  if (!has(c.kind, rules::bias_correction)) return {1.0, 1.0F};
  const BiasTable* table = c.bias_table.get();
  if (table == nullptr || table->empty()) return correction(c, step);
  if (step - 1 < table->size()) return (*table)[step - 1];
  return is_final(table->back()) ? table->back() : correction(c, step);
}

}  // namespace mpips
