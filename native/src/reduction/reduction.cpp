#include "reduction/reduction.hpp"

#include <cstring>

#include "reduction/sum_and_apply.hpp"
#include "ring/checksum.hpp"
#include "ring/worker_wait.hpp"
#include "shm/fault.hpp"

namespace mpips {
namespace {

std::uint64_t hash_of(const OptimizerConfig& config) noexcept {
  const ConfigWords words = words_of(config);
  return hash(words.data(), sizeof words);
}

}  // namespace

Reduction::Reduction(std::uint8_t* memory, NodeLayout layout, std::size_t worker,
                     std::vector<std::size_t> local, std::vector<ReplicatedRule> rules,
                     bool oversubscribed, const ReductionStart& start)
    : memory_(memory),
      layout_(std::move(layout)),
      worker_(worker),
      local_(std::move(local)),
      oversubscribed_(oversubscribed),
      clock_(start.clock),
      repeats_(start.repeats || start.finished),
      finished_before_(start.finished),
      repeated_(rules.size(), 0),
      sum_(update_block) {
  for (std::size_t t = 0; t < rules.size(); ++t) {
    ReplicatedRule& rule = rules[t];
    Table table{std::move(rule.name), rule.mean, rule.replaces, rule.steps, {}, {}};
    for (std::size_t version = 0; version < (layout_.durable() ? 2 : 1); ++version)
      for (std::size_t slot = 0; slot <= layout_.n_state(t); ++slot)
        table.arrays[version][slot] =
            reinterpret_cast<float*>(memory_ + layout_.array(t, slot, version));
    table.next = start.base;
    table.configs.push_back({0, rule.optimizer, hash_of(rule.optimizer)});
    tables_.push_back(std::move(table));
    if (layout_.durable()) take_words(t);
  }
}

VersionLine* Reduction::version_line(std::size_t table, std::size_t version) const noexcept {
  return reinterpret_cast<VersionLine*>(memory_ + layout_.version_words(table, version));
}

RuleLine* Reduction::rule_lines(std::size_t worker, std::size_t table) const noexcept {
  return reinterpret_cast<RuleLine*>(memory_ + layout_.rule_words(worker, table, 0));
}

// Take the count of updates and the hyperparameters from durable memory.
void Reduction::take_words(std::size_t table) {
  Table& t = tables_[table];
  t.steps = version_line(table, 0)->steps;
  std::vector<RuleLine> found;
  for (std::size_t i = 0; i < NodeLayout::n_rules; ++i)
    if (rule_lines(worker_, table)[i].after != 0) found.push_back(rule_lines(worker_, table)[i]);
  std::sort(found.begin(), found.end(),
            [](const RuleLine& a, const RuleLine& b) { return a.after < b.after; });
  for (const RuleLine& rule : found) {
    const OptimizerConfig config = config_of(rule.config, t.configs.front().optimizer.kind);
    t.configs.push_back({rule.after - 1, config, hash_of(config)});
  }
}

ReducerLine* Reduction::line(std::size_t worker) const noexcept {
  return reinterpret_cast<ReducerLine*>(memory_ + layout_.words(worker));
}

ContributionLine* Reduction::line(std::size_t worker, std::size_t table) const noexcept {
  return reinterpret_cast<ContributionLine*>(memory_ + layout_.table_words(worker, table));
}

void Reduction::configure(std::size_t table, const OptimizerConfig& config) {
  std::vector<Config>& configs = tables_.at(table).configs;
  if (configs.back().clock == clock_ && configs.size() > 1) configs.pop_back();
  configs.push_back({clock_, config, hash_of(config)});
  note_rule(worker_, table, clock_, words_of(config));
  if (pushes(table) != 0 && !repeats_)
    store_relaxed(&line(worker_, table)->rule, configs.back().hash);
}

std::uint64_t Reduction::rule_hash(std::size_t table) const noexcept {
  return tables_[table].configs.back().hash;
}

std::size_t Reduction::pushes(std::size_t table) const noexcept {
  return repeats_ ? repeated_[table] : pushes_of(worker_, table, clock_);
}

std::uint64_t Reduction::pushes_of(std::size_t worker, std::size_t table,
                                   std::uint64_t clock) const noexcept {
  const ContributionLine* words = line(worker, table);
  return load_relaxed(&words->pushed) == clock + 1 ? load_relaxed(&words->pushes) : 0;
}

bool Reduction::push(std::size_t table, const float* update, bool check_finite) {
  const std::size_t round = pushes(table);
  if (repeats_) {
    ++repeated_[table];
    if (repeated_[table] > pushes_of(worker_, table, clock_)) compare_repeated();
    return true;
  }
  auto* to = reinterpret_cast<float*>(memory_ + layout_.contribution(worker_, table, round));
  if (!kernels().copy_finite(to, update, layout_.n(table)) && check_finite) return false;
  note_push(worker_, table, clock_, round + 1, rule_hash(table));
  fault::at(fault::Point::contributed);
  return true;
}

void Reduction::close(std::size_t table) noexcept {
  if (!repeats_) note_close(worker_, table, clock_);
}

void Reduction::tick() {
  if (!repeats_) return note_tick(worker_, clock_++);
  compare_repeated();
  if (finished_before_)
    throw ReplayMismatch("worker " + std::to_string(worker_) + " repeats clock " +
                         std::to_string(clock_) +
                         " and ends it, but had finished before the restart");
  ++clock_;
  repeats_ = false;
}

void Reduction::compare_repeated() const {
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const std::uint64_t known = pushes_of(worker_, t, clock_);
    if (repeated_[t] != known)
      throw ReplayMismatch("worker " + std::to_string(worker_) + " repeats clock " +
                           std::to_string(clock_) + " and makes " + std::to_string(repeated_[t]) +
                           " pushes to the replicated table '" + tables_[t].name +
                           "', but had made " + std::to_string(known) + " before the restart");
  }
}

void Reduction::finish() noexcept { note_finish(worker_, clock_); }

void Reduction::note_push(std::size_t worker, std::size_t table, std::uint64_t clock,
                          std::uint64_t pushes, std::uint64_t rule) noexcept {
  // The store of `closed` or `ticked` that follows orders these words.
  ContributionLine* words = line(worker, table);
  store_relaxed(&words->pushed, clock + 1);
  store_relaxed(&words->pushes, pushes);
  store_relaxed(&words->rule, rule);
}

void Reduction::note_close(std::size_t worker, std::size_t table, std::uint64_t clock) noexcept {
  store_release(&line(worker, table)->closed, clock + 1);
}

void Reduction::note_tick(std::size_t worker, std::uint64_t clock) noexcept {
  store_release(&line(worker)->ticked, clock + 1);
}

void Reduction::note_finish(std::size_t worker, std::uint64_t clock) noexcept {
  store_release(&line(worker)->finished, clock + 1);
}

bool Reduction::all_sent(std::uint64_t clocks) const noexcept {
  for (std::size_t w = 0; w < layout_.n_workers(); ++w)
    if (load_acquire(&line(w)->sent) < clocks && load_acquire(&line(w)->finished) == 0)
      return false;
  return true;
}

void Reduction::note_sent(std::size_t worker, std::uint64_t clocks) noexcept {
  store_release(&line(worker)->sent, clocks);
}

// A change of the clock of the newest one replaces it.
void Reduction::note_rule(std::size_t worker, std::size_t table, std::uint64_t clock,
                          const ConfigWords& config) noexcept {
  if (!layout_.durable()) return;
  RuleLine* rules = rule_lines(worker, table);
  std::size_t newest = 0;
  for (std::size_t i = 1; i < NodeLayout::n_rules; ++i)
    if (rules[i].after > rules[newest].after) newest = i;
  const bool replaced = rules[newest].after == 0 || rules[newest].after == clock + 1;
  RuleLine* rule = &rules[replaced ? newest : (newest + 1) % NodeLayout::n_rules];
  rule->config = config;
  store_release(&rule->after, clock + 1);
}

// Return true if a worker is known to end a clock: it has ended it, or has closed the table in it.
bool Reduction::ends(std::size_t worker, std::size_t table, std::uint64_t clock) const noexcept {
  return load_acquire(&line(worker)->ticked) > clock ||
         load_acquire(&line(worker, table)->closed) > clock;
}

bool Reduction::is_final(std::size_t worker, std::size_t table,
                         std::uint64_t clock) const noexcept {
  if (ends(worker, table, clock)) return true;
  const std::uint64_t finished = load_acquire(&line(worker)->finished);
  return finished != 0 && finished - 1 <= clock;
}

// Return true if all workers of this node have done their slices of all clocks before `clock`. One
// that has finished did so before.
bool Reduction::complete_before(std::size_t table, std::uint64_t clock) const noexcept {
  for (const std::size_t w : local_)
    if (load_acquire(&line(w, table)->done) < clock && load_acquire(&line(w)->finished) == 0)
      return false;
  return true;
}

bool Reduction::settled() const noexcept {
  for (std::size_t t = 0; t < tables_.size(); ++t)
    if (!complete(t)) return false;
  return true;
}

void Reduction::advance() {
  for (std::size_t t = 0; t < tables_.size(); ++t)
    while (step(t)) {
    }
}

// Do the next update of a table if it can be done now; return true if it was.
bool Reduction::step(std::size_t table) {
  Table& t = tables_[table];
  const std::uint64_t clock = t.next;
  if (clock >= clock_ && line(worker_, table)->closed <= clock) return false;
  while (t.n_final < layout_.n_workers()) {
    if (!is_final(t.n_final, table, clock)) return false;
    ++t.n_final;
  }
  if (layout_.durable() && !all_sent(clock)) return false;
  std::size_t n_contributors = 0;
  for (std::size_t w = 0; w < layout_.n_workers(); ++w) n_contributors += ends(w, table, clock);
  while (t.configs.size() > 1 && t.configs[1].clock <= clock) t.configs.erase(t.configs.begin());
  gather(table);
  if (!sources_.empty()) {
    apply(table, n_contributors);
    ++t.steps;
    t.updated = clock + 1;
  }
  t.n_final = 0;
  t.next = clock + 1;
  fault::at(fault::Point::summed);
  store_release(&line(worker_, table)->done, clock + 1);
  return true;
}

// Set `sources_` to the pushes of a table's next update.
void Reduction::gather(std::size_t table) {
  const Table& t = tables_[table];
  sources_.clear();
  for (std::size_t w = 0; w < layout_.n_workers(); ++w) {
    const ContributionLine* words = line(w, table);
    if (load_relaxed(&words->pushed) != t.next + 1) continue;
    if (load_relaxed(&words->rule) != t.configs.front().hash)
      throw RuleMismatch(worker_, w, t.name, t.next);
    const std::size_t n_pushes = load_relaxed(&words->pushes);
    for (std::size_t k = 0; k < n_pushes; ++k)
      sources_.push_back(
          reinterpret_cast<const float*>(memory_ + layout_.contribution(w, table, k)));
  }
}

// Sum and apply this worker's slice. The slices are those of the node's workers that end the clock.
void Reduction::apply(std::size_t table, std::size_t n_contributors) {
  Table& t = tables_[table];
  std::size_t place = 0, n_local = 0;
  for (const std::size_t w : local_) {
    if (!ends(w, table, t.next)) continue;
    if (w == worker_) place = n_local;
    ++n_local;
  }
  const Slice slice = slice_of(layout_.n(table), place, n_local, table);
  UpdateOfTable update{t.configs.front().optimizer, t.steps + 1,
                       t.mean ? 1.0F / static_cast<float>(n_contributors) : 1.0F, t.replaces};
  const float* const* from = t.arrays[t.version];
  if (layout_.durable()) {
    t.version = 1 - t.version;
    announce(version_line(table, t.version), t.next + 1, t.steps + 1);
  }
  sum_and_apply(update, sources_, slice, layout_.n_state(table), from, t.arrays[t.version], &sum_);
}

bool Reduction::wait_complete(std::size_t table, double max_s) {
  const auto done = [&] {
    advance();
    return complete(table);
  };
  return wait_until(done, max_s, oversubscribed_);
}

bool Reduction::wait_room(std::size_t table, double max_s) {
  const auto done = [&] {
    advance();
    return may_push(table);
  };
  return wait_until(done, max_s, oversubscribed_);
}

std::optional<Reduction::Awaited> Reduction::awaited() const {
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const std::uint64_t clock = tables_[t].next;
    const auto found = [&](std::size_t w, std::uint64_t at, bool summed) {
      return Awaited{w, t, at, load_acquire(&line(w)->ticked), summed};
    };
    for (const std::size_t w : local_) {
      const bool late = clock >= clock_ && load_acquire(&line(w, t)->done) < clock_;
      if (late && load_acquire(&line(w)->finished) == 0) return found(w, clock_ - 1, true);
    }
    if (clock >= clock_) continue;
    for (std::size_t w = 0; w < layout_.n_workers(); ++w)
      if (!is_final(w, t, clock)) return found(w, clock, false);
  }
  for (std::size_t w = 0; layout_.durable() && w < layout_.n_workers(); ++w)
    if (load_acquire(&line(w)->sent) < clock_ && load_acquire(&line(w)->finished) == 0)
      return Awaited{w, 0, clock_, load_acquire(&line(w)->ticked), false, true};
  return std::nullopt;
}

// All contributions to that clock are final, so all workers find the same.
std::pair<std::size_t, std::size_t> Reduction::place() const {
  std::size_t place = 0, count = 0;
  for (std::size_t w = 0; clock_ != 0 && w < layout_.n_workers(); ++w) {
    if (!ends(w, 0, clock_ - 1)) continue;
    if (w == worker_) place = count;
    ++count;
  }
  return {place, count};
}

}  // namespace mpips
