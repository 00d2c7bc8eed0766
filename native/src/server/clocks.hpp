#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ring/layout.hpp"
#include "server/decision.hpp"

namespace mpips {

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
        at_least_(n_workers) {}

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
  std::uint64_t min_clock() const noexcept { return least_; }

  // Return true if a worker's tick of the open clock may be consumed now.
  bool may_tick(std::size_t worker) const noexcept { return uses_backup() || worker == awaited_; }

  // Return true if a worker's push to a table may be consumed now. `turn`: all workers below it
  // have closed the table in the open clock (flag_closes), so that the next worker need not wait
  // for their ticks. The order stays that of the workers.
  bool may_push(std::size_t worker, std::size_t turn) const noexcept {
    return uses_backup() || worker == next_from(std::max(awaited_, turn));
  }

  // Return true if all workers have closed a table with this turn in the open clock, or ended it.
  bool all_closed(std::size_t turn) const noexcept {
    return next_from(std::max(awaited_, turn)) == clock_.size();
  }

  // Return the number of workers that contribute to the open clock if none of them finishes in it.
  std::size_t working() const noexcept { return working_; }

  // Record that a worker has sent everything of `clock`.
  void tick(std::size_t worker, std::uint64_t clock) noexcept {
    const std::uint64_t before = clock_[worker];
    clock_[worker] = clock + 1;
    if (clock == current_ && !ticked_[worker]) {
      ticked_[worker] = 1;
      ++n_ticked_;
    }
    if (!finished_[worker]) leave(before, clock + 1);
    advance();
  }

  void finish(std::size_t worker) noexcept {
    if (!finished_[worker]) {
      finished_[worker] = 1;
      if (!ticked_[worker]) --working_;
      leave(clock_[worker], finished_clock);
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
    if (!uses_backup()) awaited_ = next_from(awaited_);
  }

  // Return the first worker from `worker` on that has not sent everything of the open clock.
  std::size_t next_from(std::size_t worker) const noexcept {
    while (worker < clock_.size() && (finished_[worker] || ticked_[worker])) ++worker;
    return worker;
  }

  // Count that a worker goes from clock `from` to the later clock `to`.
  void leave(std::uint64_t from, std::uint64_t to) noexcept {
    if (from == least_ && to != from && --at_least_ == 0) find_least();
  }

  void find_least() noexcept {
    least_ = finished_clock;
    at_least_ = 0;
    for (std::size_t w = 0; w < clock_.size(); ++w) {
      if (finished_[w] || clock_[w] > least_) continue;
      at_least_ = clock_[w] == least_ ? at_least_ + 1 : 1;
      least_ = clock_[w];
    }
  }

  void count() noexcept {
    n_ticked_ = working_ = 0;
    for (std::size_t w = 0; w < clock_.size(); ++w) {
      n_ticked_ += ticked_[w];
      working_ += !finished_[w] || ticked_[w];
    }
    find_least();
  }

  std::vector<std::uint64_t> clock_;
  std::vector<std::uint8_t> finished_, ticked_;
  bool uses_backup_;
  NumberDecision backup_;  // on the number of backup workers
  std::uint64_t current_ = 0;
  std::size_t awaited_ = 0;
  std::size_t n_ticked_ = 0;
  std::size_t working_;      // workers that have not finished, or have ticked before they did
  std::uint64_t least_ = 0;  // lowest clock of all workers that have not finished
  std::size_t at_least_;     // workers that have not finished and are at that clock
};

}  // namespace mpips
