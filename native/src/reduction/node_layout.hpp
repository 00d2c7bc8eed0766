#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ring/layout.hpp"

// Layout of the memory that the workers of a node share for replicated tables. It is pure
// arithmetic: every worker of the node computes the same offsets from the same numbers.
//
//   words[worker] | table words[worker][table] | values and state[table] ... | contributions
//
// Contributions lie in rounds: round k has the (k+1)-th push of each worker to each table in a
// clock. Only the first round has pages from the beginning; workers rarely push twice.
namespace mpips {

// Words of one worker. It is the only writer; for a worker of another node, the worker of this node
// that receives its contributions is.
struct ReducerLine {
  std::uint64_t ticked;    // number of clocks that the worker has ended
  std::uint64_t finished;  // one more than the number of clocks that it has ended for good; 0: none
  std::uint64_t pad[6];
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

class NodeLayout {
 public:
  // `tables`: elements and states of each table.
  NodeLayout(std::size_t n_workers, std::vector<std::pair<std::size_t, std::size_t>> tables,
             std::size_t rounds)
      : n_workers_(n_workers), tables_(std::move(tables)), rounds_(rounds) {
    std::size_t end = n_workers * (sizeof(ReducerLine) + tables_.size() * sizeof(ContributionLine));
    std::size_t contribution = 0;
    for (const auto& [n, n_state] : tables_) {
      const std::size_t bytes = round_up(n * sizeof(float), line_bytes);
      arrays_.push_back(end);
      parts_.push_back(contribution);
      end += (1 + n_state) * bytes;
      contribution += bytes;
    }
    shared_ = round_up(end, page_bytes);
    per_worker_ = round_up(contribution, page_bytes);
  }

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
  // Offset of the values (slot 0) or of a state of a table.
  std::size_t array(std::size_t table, std::size_t slot) const {
    return arrays_.at(table) + slot * round_up(n(table) * sizeof(float), line_bytes);
  }
  std::size_t contribution(std::size_t worker, std::size_t table, std::size_t round) const {
    return shared_ + (round * n_workers_ + worker) * per_worker_ + parts_.at(table);
  }
  // Bytes that need pages from the beginning: all but later rounds.
  std::size_t first_bytes() const noexcept { return shared_ + n_workers_ * per_worker_; }
  std::size_t total_bytes() const noexcept { return shared_ + rounds_ * n_workers_ * per_worker_; }

 private:
  std::size_t n_workers_;
  std::vector<std::pair<std::size_t, std::size_t>> tables_;
  std::size_t rounds_;
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
  constexpr std::size_t line_floats = line_bytes / sizeof(float), small = 1024;
  const std::size_t turn = (i + table) % m;
  if (n <= small) return turn == 0 ? Slice{0, n} : Slice{};
  const std::size_t lines = (n + line_floats - 1) / line_floats;
  const auto bound = [&](std::size_t k) { return std::min(n, lines * k / m * line_floats); };
  return {bound(turn), turn + 1 == m ? n : bound(turn + 1)};
}

}  // namespace mpips
