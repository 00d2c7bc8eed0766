#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/optimizer_config.hpp"
#include "ring/layout.hpp"

// Layout of the memory that the workers of a node share for replicated tables. It is pure
// arithmetic: every worker of the node computes the same offsets from the same numbers.
//
//   words[worker] | table words[worker][table] | values and state[table] ... | contributions
//
// Contributions lie in rounds: round k has the (k+1)-th push of each worker to each table in a
// clock. Only the first round has pages from the beginning; workers rarely push twice.
//
// Workers of which one at most contributes in a clock can have one place for their contributions
// (`places`). They have words of their own.
//
// Durable memory outlives a launch. It has two versions of the values and state of all tables, and
// further words (reduction.hpp):
//
//   words | table words | versions[table][2] | rules[worker][table][4] | version 0 | version 1 |
//   ...
namespace mpips {

// Words of one worker. It is the only writer; for a worker of another node, the worker of this node
// that receives its contributions is.
struct ReducerLine {
  std::uint64_t ticked;    // number of clocks that the worker has ended
  std::uint64_t finished;  // one more than the number of clocks that it has ended for good; 0: none
  // Number of clocks of the worker whose ticks are at all servers. Durable memory, and groups of
  // workers whose servers' memory outlives the launch (mpips/worker/groups/tables.py).
  std::uint64_t sent;
  std::uint64_t local;  // 1: a worker of this node
  std::uint64_t pad[4];
};
static_assert(sizeof(ReducerLine) == line_bytes);

// Words of one worker about one table.
struct ContributionLine {
  std::uint64_t closed;  // one more than the newest clock that is closed before its tick
  std::uint64_t pushed;  // one more than the newest clock with a push
  std::uint64_t pushes;  // number of pushes in that clock
  std::uint64_t rule;    // hash of the hyperparameters that are in force in that clock
  std::uint64_t done;    // number of clocks whose update the worker has applied to its slices
  std::uint64_t pad[3];
};
static_assert(sizeof(ContributionLine) == line_bytes);

// Words of one version of a table in durable memory. Every worker of the node that writes a part of
// the version stores them before, and all store the same.
struct VersionLine {
  std::uint64_t after;  // one more than the number of clocks whose updates it contains; 0: unused
  std::uint64_t steps;  // number of updates of the table that it contains
  std::uint64_t pad[6];
};
static_assert(sizeof(VersionLine) == line_bytes);

// A change of a table's hyperparameters by one worker, in durable memory. The writer is that of the
// worker's other words.
struct RuleLine {
  std::uint64_t after;  // one more than the clock of the change; 0: unused
  ConfigWords config;
  std::uint64_t pad[(line_bytes - (1 + std::tuple_size<ConfigWords>::value) * 8 % line_bytes) / 8];
};
static_assert(sizeof(RuleLine) % line_bytes == 0);

class NodeLayout {
 public:
  // Number of changes of hyperparameters that durable memory has, for each worker and table.
  static constexpr std::size_t n_rules = 4;

  // `tables`: elements and states of each table. `places`: number of the place of each worker's
  // contributions, from 0 without gaps; none: each worker has its own.
  NodeLayout(std::size_t n_workers, std::vector<std::pair<std::size_t, std::size_t>> tables,
             std::size_t rounds, bool durable = false, std::vector<std::size_t> places = {})
      : n_workers_(n_workers),
        tables_(std::move(tables)),
        rounds_(rounds),
        durable_(durable),
        places_(std::move(places)),
        n_places_(places_.empty() ? n_workers
                                  : 1 + *std::max_element(places_.begin(), places_.end())) {
    if (!places_.empty() && places_.size() != n_workers)
      throw std::invalid_argument("places: one for each worker is needed");
    const std::size_t n = tables_.size();
    std::size_t end = n_workers * (sizeof(ReducerLine) + n * sizeof(ContributionLine));
    versions_ = end;
    if (durable) end += n * 2 * sizeof(VersionLine);
    rules_ = end;
    if (durable) end += n_workers * n * n_rules * sizeof(RuleLine);
    first_array_ = end;
    std::size_t contribution = 0;
    for (const auto& [n_elements, n_state] : tables_) {
      const std::size_t bytes = round_up(n_elements * sizeof(float), line_bytes);
      arrays_.push_back(end);
      parts_.push_back(contribution);
      end += (1 + n_state) * bytes;
      contribution += bytes;
    }
    version_bytes_ = end - first_array_;
    if (durable) end += version_bytes_;
    shared_ = round_up(end, page_bytes);
    per_worker_ = round_up(contribution, page_bytes);
  }

  bool durable() const noexcept { return durable_; }
  std::size_t n_workers() const noexcept { return n_workers_; }
  std::size_t n_tables() const noexcept { return tables_.size(); }
  std::size_t rounds() const noexcept { return rounds_; }
  std::size_t n(std::size_t table) const { return tables_.at(table).first; }
  std::size_t n_state(std::size_t table) const { return tables_.at(table).second; }
  std::size_t words(std::size_t worker) const noexcept { return worker * sizeof(ReducerLine); }
  std::size_t table_words(std::size_t worker, std::size_t table) const noexcept {
    return n_workers_ * sizeof(ReducerLine) +
           (worker * tables_.size() + table) * sizeof(ContributionLine);
  }
  // Offset of the values (slot 0) or of a state of a table. `version`: 0, or 1 in durable memory.
  std::size_t array(std::size_t table, std::size_t slot, std::size_t version = 0) const {
    return arrays_.at(table) + version * version_bytes_ +
           slot * round_up(n(table) * sizeof(float), line_bytes);
  }
  // Of durable memory only.
  std::size_t version_words(std::size_t table, std::size_t version) const noexcept {
    return versions_ + (table * 2 + version) * sizeof(VersionLine);
  }
  std::size_t rule_words(std::size_t worker, std::size_t table, std::size_t i) const noexcept {
    return rules_ + ((worker * tables_.size() + table) * n_rules + i) * sizeof(RuleLine);
  }
  // Bytes in front of version 1: all words, and version 0.
  std::size_t head_bytes() const noexcept { return first_array_ + version_bytes_; }
  std::size_t contribution(std::size_t worker, std::size_t table, std::size_t round) const {
    const std::size_t place = places_.empty() ? worker : places_.at(worker);
    return shared_ + (round * n_places_ + place) * per_worker_ + parts_.at(table);
  }
  // Bytes that need pages from the beginning: all but later rounds.
  std::size_t first_bytes() const noexcept { return shared_ + n_places_ * per_worker_; }
  std::size_t total_bytes() const noexcept { return shared_ + rounds_ * n_places_ * per_worker_; }

 private:
  std::size_t n_workers_;
  std::vector<std::pair<std::size_t, std::size_t>> tables_;
  std::size_t rounds_;
  bool durable_;
  std::vector<std::size_t> places_;
  std::size_t n_places_;
  std::size_t versions_ = 0, rules_ = 0, first_array_ = 0, version_bytes_ = 0;
  std::vector<std::size_t> arrays_, parts_;  // offsets of values; of a table in a contribution
  std::size_t shared_ = 0, per_worker_ = 0;
};

// A range of elements.
struct Slice {
  std::size_t start = 0, stop = 0;
};

// Return the part of a table of `n` elements that falls to number `i` of `m` workers, in whole
// cache lines. A small table falls to one worker, another one for each table.
inline Slice slice_of(std::size_t n, std::size_t i, std::size_t m, std::size_t table) noexcept {
  constexpr std::size_t small = 1024;
  const std::size_t turn = (i + table) % m;
  if (n <= small) return turn == 0 ? Slice{0, n} : Slice{};
  const std::size_t lines = (n + line_floats - 1) / line_floats;
  const auto bound = [&](std::size_t k) { return std::min(n, lines * k / m * line_floats); };
  return {bound(turn), turn + 1 == m ? n : bound(turn + 1)};
}

}  // namespace mpips
