#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ring/layout.hpp"
#include "server/decision.hpp"

namespace mpips {

// The workers that take part in a table: all of them, or those of one stage of the model, which are
// the workers w with w % n_stages == stage. Only they push to the table and pull from it.
struct Members {
  std::uint32_t stage = 0, n_stages = 1;

  bool all() const noexcept { return n_stages == 1; }
  bool has(std::size_t worker) const noexcept { return all() || worker % n_stages == stage; }
};

// The clocks of the workers as one server sees them, and the order of workers under BSP.
//
// Without backup workers, the updates of a clock are consumed worker by worker, in order of index,
// and the clock closes after the last worker. So the sum is formed in worker order whatever the
// timing. With b backup workers, every worker has a buffer of its own, and the clock closes when
// all but b workers have ticked. The sum is then formed in worker order over the workers that
// ticked in time (Chen et al., "Revisiting distributed synchronous SGD", 2016). The number b may
// change from clock to clock (server_backup.cpp); with b = 0 a clock waits for all workers.
//
// A tick costs the same for any number of workers: counts answer what would need a look at every
// worker. Only a change of the lowest clock looks at all of them, which is once for each clock of
// the slowest worker.
//
// Stages. The clock is one for all workers, and closes for all tables at once. A table of a stage
// looks at its members only: the order of its pushes, whether all have closed it, the number by
// which a mean is divided, and the lowest clock, which bounds the staleness of its values.
class Clocks {
 public:
  // `backup`: number of backup workers at every clock, or until `set_backup`.
  Clocks(std::size_t n_workers, std::uint32_t backup)
      : clock_(n_workers, 0),
        finished_(n_workers, 0),
        ticked_(n_workers, 0),
        uses_backup_(backup != 0),
        backup_{0, backup, backup},
        working_(n_workers),
        lowest_{{0, n_workers}} {}

  // Set the number of stages, before any tick. `members` of all calls below have this number or 1.
  void set_stages(std::uint32_t n_stages) {
    n_stages_ = n_stages;
    lowest_.resize(n_stages == 1 ? 1 : 1 + n_stages);
    for (std::size_t group = 0; group < lowest_.size(); ++group) find_lowest(group);
  }

  std::uint64_t current() const noexcept { return current_; }  // BSP: the clock that is open
  // The worker whose updates of the open clock are consumed now.
  std::size_t awaited() const noexcept { return awaited_; }
  // True if there are backup workers, or may be: their number may be 0 now.
  bool uses_backup() const noexcept { return uses_backup_; }
  const NumberDecision& backup() const noexcept { return backup_; }
  // Set the number of backup workers, which must stay the same at the open clock.
  void set_backup(const NumberDecision& backup) noexcept { backup_ = backup; }
  std::uint64_t clock(std::size_t worker) const noexcept { return clock_[worker]; }
  bool finished(std::size_t worker) const noexcept { return finished_[worker] != 0; }
  bool ticked(std::size_t worker) const noexcept { return ticked_[worker] != 0; }
  std::size_t size() const noexcept { return clock_.size(); }

  // Return the lowest clock of all workers that have not finished; the largest number if all have.
  std::uint64_t min_clock() const noexcept { return lowest_[0].clock; }
  // Return the same of a table's members.
  std::uint64_t min_clock(Members members) const noexcept {
    return lowest_[members.all() ? 0 : 1 + members.stage].clock;
  }

  // Return true if a worker's tick of the open clock may be consumed now.
  bool may_tick(std::size_t worker) const noexcept { return uses_backup() || worker == awaited_; }

  // Return true if a member's push to a table may be consumed now. `turn`: all members below it
  // have closed the table in the open clock (flag_closes), so that the next member need not wait
  // for their ticks. The order stays that of the workers.
  bool may_push(std::size_t worker, std::size_t turn, Members members) const noexcept {
    return uses_backup() || worker == next_from(std::max(awaited_, turn), members);
  }

  // Return true if all members have closed a table with this turn in the open clock, or ended it.
  bool all_closed(std::size_t turn, Members members) const noexcept {
    return next_from(std::max(awaited_, turn), members) == clock_.size();
  }

  // Return the number of members that contribute to the open clock if none of them finishes in it.
  std::size_t working(Members members) const noexcept {
    if (members.all()) return working_;
    std::size_t n = 0;
    for (std::size_t w = members.stage; w < clock_.size(); w += members.n_stages)
      n += !finished_[w] || ticked_[w];
    return n;
  }

  // Record that a worker has sent everything of `clock`.
  void tick(std::size_t worker, std::uint64_t clock) noexcept {
    const std::uint64_t before = clock_[worker];
    clock_[worker] = clock + 1;
    if (clock == current_ && !ticked_[worker]) {
      ticked_[worker] = 1;
      ++n_ticked_;
    }
    if (!finished_[worker]) leave(worker, before, clock + 1);
    advance();
  }

  void finish(std::size_t worker) noexcept {
    if (!finished_[worker]) {
      finished_[worker] = 1;
      if (!ticked_[worker]) --working_;
      leave(worker, clock_[worker], finished_clock);
    }
    advance();
  }

  // Return true if the open clock can be closed.
  bool complete() const noexcept {
    if (n_ticked_ == 0) return false;
    const std::size_t backup = backup_.at(current_);
    const std::size_t needed = working_ > backup ? working_ - backup : 1;
    return uses_backup() ? n_ticked_ >= needed : awaited_ == clock_.size();
  }

  // Return the workers whose updates belong to the open clock, in worker order.
  std::vector<std::size_t> contributors() const {
    std::vector<std::size_t> list;
    for (std::size_t w = 0; w < ticked_.size(); ++w)
      if (ticked_[w]) list.push_back(w);
    return list;
  }

  void next_clock() noexcept {
    ++current_;
    std::fill(ticked_.begin(), ticked_.end(), 0);
    count();
    awaited_ = 0;
    advance();
  }

  // Restore the state that an earlier process had: every worker first, then the open clock.
  void restore(std::uint64_t current) noexcept {
    current_ = current;
    count();
    awaited_ = 0;
    advance();
  }
  void restore(std::size_t worker, std::uint64_t clock, bool finished, bool ticked) noexcept {
    clock_[worker] = clock;
    finished_[worker] = finished;
    ticked_[worker] = ticked;
  }

 private:
  void advance() noexcept {
    if (!uses_backup()) awaited_ = next_from(awaited_, {});
  }

  // Return the first member from `worker` on that has not sent everything of the open clock.
  std::size_t next_from(std::size_t worker, Members members) const noexcept {
    while (worker < clock_.size() && (finished_[worker] || ticked_[worker] || !members.has(worker)))
      ++worker;
    return worker;
  }

  // Count that a worker goes from clock `from` to the later clock `to`.
  void leave(std::size_t worker, std::uint64_t from, std::uint64_t to) noexcept {
    leave_group(0, from, to);
    if (n_stages_ != 1) leave_group(1 + worker % n_stages_, from, to);
  }

  void leave_group(std::size_t group, std::uint64_t from, std::uint64_t to) noexcept {
    Lowest& lowest = lowest_[group];
    if (from == lowest.clock && to != from && --lowest.n_workers == 0) find_lowest(group);
  }

  // Find the lowest clock of a group: 0, all workers; 1 + s, those of stage s.
  void find_lowest(std::size_t group) noexcept {
    Lowest found{finished_clock, 0};
    const std::size_t step = group == 0 ? 1 : n_stages_;
    for (std::size_t w = group == 0 ? 0 : group - 1; w < clock_.size(); w += step) {
      if (finished_[w] || clock_[w] > found.clock) continue;
      found.n_workers = clock_[w] == found.clock ? found.n_workers + 1 : 1;
      found.clock = clock_[w];
    }
    lowest_[group] = found;
  }

  void count() noexcept {
    n_ticked_ = working_ = 0;
    for (std::size_t w = 0; w < clock_.size(); ++w) {
      n_ticked_ += ticked_[w];
      working_ += !finished_[w] || ticked_[w];
    }
    for (std::size_t group = 0; group < lowest_.size(); ++group) find_lowest(group);
  }

  struct Lowest {
    std::uint64_t clock;    // lowest clock of the workers of a group that have not finished
    std::size_t n_workers;  // of the group that have not finished and are at that clock
  };

  std::vector<std::uint64_t> clock_;
  std::vector<std::uint8_t> finished_, ticked_;
  bool uses_backup_;
  NumberDecision backup_;  // on the number of backup workers
  std::uint64_t current_ = 0;
  std::size_t awaited_ = 0;
  std::size_t n_ticked_ = 0;
  std::size_t working_;  // workers that have not finished, or have ticked before they did
  std::uint32_t n_stages_ = 1;
  std::vector<Lowest> lowest_;  // of all workers; with stages also of each stage
};

}  // namespace mpips
