#include "reduction/left_tables.hpp"

#include <algorithm>
#include <cstring>

#include "reduction/sum_and_apply.hpp"
#include "ring/checksum.hpp"
#include "shm/fault.hpp"

namespace mpips {

LeftTables::LeftTables(const std::uint8_t* memory, NodeLayout layout,
                       std::vector<ReplicatedRule> rules, std::vector<LeftWorker> workers,
                       std::uint64_t base)
    : memory_(memory),
      layout_(std::move(layout)),
      rules_(std::move(rules)),
      workers_(std::move(workers)),
      base_(base),
      sum_(update_block) {}

bool LeftTables::has_ended(std::size_t worker, std::size_t table,
                           std::uint64_t clock) const noexcept {
  return at<ReducerLine>(layout_.words(worker))->ticked > clock ||
         line(worker, table)->closed > clock;
}

// Return true if the node's workers have done their slices of all updates of these clocks.
bool LeftTables::is_complete(std::size_t table, std::uint64_t clocks) const noexcept {
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    const std::uint64_t end = workers_[w].finished ? workers_[w].clock : clocks;
    if (is_local(w) && line(w, table)->done < std::min(clocks, end)) return false;
  }
  return true;
}

// Return the version with the updates of these clocks and no later one; -1: there is none.
int LeftTables::version_of(std::size_t table, std::uint64_t clocks) const noexcept {
  int found = -1;
  std::uint64_t newest = 0;
  for (int version = 0; version < 2; ++version) {
    const std::uint64_t after =
        at<VersionLine>(layout_.version_words(table, static_cast<std::size_t>(version)))->after;
    if (after <= newest || after > clocks + 1) continue;
    newest = after;
    found = version;
  }
  return found;
}

// Return the newest change of hyperparameters of a worker before clock `base`; null: none is known.
const RuleLine* LeftTables::rule_of(std::size_t worker, std::size_t table) const noexcept {
  const RuleLine* found = nullptr;
  for (std::size_t i = 0; i < NodeLayout::n_rules; ++i) {
    const auto* rule = at<RuleLine>(layout_.rule_words(worker, table, i));
    if (rule->after == 0 || rule->after > base_) continue;
    if (found == nullptr || rule->after > found->after) found = rule;
  }
  return found;
}

OptimizerConfig LeftTables::config_of_update(std::size_t worker, std::size_t table) const {
  const RuleLine* rule = rule_of(worker, table);
  const OptimizerConfig& declared = rules_[table].optimizer;
  return rule == nullptr ? declared : config_of(rule->config, declared.kind);
}

std::string LeftTables::lacks() const {
  // A node whose workers had finished waits for no update any more before it takes later pushes.
  bool goes_on = false;
  for (std::size_t w = 0; w < workers_.size(); ++w)
    goes_on = goes_on || (is_local(w) && (!workers_[w].finished || workers_[w].clock >= base_));
  if (!goes_on) return "all workers had finished before clock " + std::to_string(base_);
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    if (!is_ahead(w)) continue;
    const std::string name = "worker " + std::to_string(w);
    if (workers_[w].ahead > base_ + 1)
      return name + " is at clock " + std::to_string(workers_[w].ahead) +
             ", and another worker is at " + std::to_string(base_);
    if (at<ReducerLine>(layout_.words(w))->ticked <= base_)
      return "the updates of " + name + " in clock " + std::to_string(base_) + " are missing";
  }
  for (std::size_t t = 0; t < layout_.n_tables(); ++t) {
    std::string why = lacks(t);
    if (!why.empty()) return "table '" + rules_[t].name + "': " + why;
  }
  return "";
}

std::string LeftTables::lacks(std::size_t table) const {
  if (is_complete(table, base_))
    return version_of(table, base_) >= 0 ? "" : "the version is not there";
  const std::uint64_t last = base_ - 1;  // without a clock there is nothing to complete
  if (base_ == 0 || !is_complete(table, last) || version_of(table, last) < 0)
    return "the values at clock " + std::to_string(base_) + " are not complete";
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    const bool ends_before = workers_[w].finished && workers_[w].clock <= last;
    if (!has_ended(w, table, last) && !ends_before)
      return "the updates of worker " + std::to_string(w) + " in clock " + std::to_string(last) +
             " are missing";
    if (line(w, table)->pushed != last + 1) continue;
    const ConfigWords words = words_of(config_of_update(w, table));
    if (line(w, table)->rule != hash(words.data(), sizeof words))
      return "the hyperparameters of clock " + std::to_string(last) + " are not known";
  }
  return "";
}

void LeftTables::write(std::uint8_t* to) {
  write_words(to);
  for (std::size_t t = 0; t < layout_.n_tables(); ++t) {
    write_table(t, to);
    fault::at(fault::Point::recovering);
  }
}

void LeftTables::write_words(std::uint8_t* to) const {
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    auto* words = reinterpret_cast<ReducerLine*>(to + layout_.words(w));
    const LeftWorker& worker = workers_[w];
    words->ticked = worker.finished ? worker.clock : worker.ahead;
    words->finished = worker.finished ? worker.clock + 1 : 0;
    words->sent = worker.clock;
    for (std::size_t t = 0; t < layout_.n_tables(); ++t) {
      const ContributionLine* old = line(w, t);
      auto* line = reinterpret_cast<ContributionLine*>(to + layout_.table_words(w, t));
      if (is_ahead(w) && old->pushed == base_ + 1) {
        line->pushed = old->pushed;
        line->pushes = old->pushes;
        line->rule = old->rule;
      }
      // The worker repeats changes of the clock where it continues.
      auto* rules = reinterpret_cast<RuleLine*>(to + layout_.rule_words(w, t, 0));
      if (const RuleLine* rule = rule_of(w, t)) *rules++ = *rule;
      for (std::size_t i = 0; i < NodeLayout::n_rules; ++i) {
        const auto* rule = at<RuleLine>(layout_.rule_words(w, t, i));
        if (rule->after == base_ + 1 && worker.clock > base_) *rules = *rule;
      }
    }
  }
}

void LeftTables::write_table(std::size_t table, std::uint8_t* to) {
  const bool complete = is_complete(table, base_);
  const auto version = static_cast<std::size_t>(version_of(table, complete ? base_ : base_ - 1));
  const std::size_t n = layout_.n(table), n_state = layout_.n_state(table);
  const float* from[3] = {};
  float* target[3] = {};
  for (std::size_t slot = 0; slot <= n_state; ++slot) {
    from[slot] = at<float>(layout_.array(table, slot, version));
    target[slot] = reinterpret_cast<float*>(to + layout_.array(table, slot));
  }
  std::uint64_t steps = at<VersionLine>(layout_.version_words(table, version))->steps;
  std::vector<const float*> sources;
  std::size_t n_contributors = 0;
  OptimizerConfig config = rules_[table].optimizer;
  for (std::size_t w = 0; !complete && w < workers_.size(); ++w) {
    n_contributors += has_ended(w, table, base_ - 1);
    if (line(w, table)->pushed != base_) continue;
    config = config_of_update(w, table);
    for (std::size_t k = 0; k < line(w, table)->pushes; ++k)
      sources.push_back(at<float>(layout_.contribution(w, table, k)));
  }
  if (sources.empty()) {
    for (std::size_t slot = 0; slot <= n_state; ++slot)
      std::memcpy(target[slot], from[slot], n * sizeof(float));
  } else {
    ++steps;
    const float scale = rules_[table].mean ? 1.0F / static_cast<float>(n_contributors) : 1.0F;
    const UpdateOfTable update{config, steps, scale, rules_[table].replaces};
    sum_and_apply(update, sources, {0, n}, n_state, from, target, &sum_);
  }
  announce(reinterpret_cast<VersionLine*>(to + layout_.version_words(table, 0)), base_, steps);
}

std::vector<std::pair<std::size_t, std::size_t>> LeftTables::contributions() const {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t w = 0; w < workers_.size(); ++w)
    for (std::size_t t = 0; is_ahead(w) && t < layout_.n_tables(); ++t)
      for (std::size_t k = 0; line(w, t)->pushed == base_ + 1 && k < line(w, t)->pushes; ++k)
        found.emplace_back(layout_.contribution(w, t, k), layout_.n(t) * sizeof(float));
  return found;
}

void set_local(std::uint8_t* memory, const NodeLayout& layout,
               const std::vector<std::size_t>& local, std::uint64_t base) {
  for (const std::size_t w : local) {
    reinterpret_cast<ReducerLine*>(memory + layout.words(w))->local = 1;
    for (std::size_t t = 0; t < layout.n_tables(); ++t)
      reinterpret_cast<ContributionLine*>(memory + layout.table_words(w, t))->done = base;
  }
}

void set_start(std::uint8_t* memory, const NodeLayout& layout,
               const std::vector<std::uint64_t>& steps) {
  for (std::size_t t = 0; t < layout.n_tables(); ++t)
    announce(reinterpret_cast<VersionLine*>(memory + layout.version_words(t, 0)), 0, steps[t]);
}

}  // namespace mpips
