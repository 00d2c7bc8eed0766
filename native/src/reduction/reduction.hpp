#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_table.hpp"
#include "reduction/node_layout.hpp"
#include "ring/ring_writer.hpp"

// One worker's end of the replicated tables of a job: it sums contributions and applies the
// optimizer, together with the other workers of its node, in memory that they share.
//
// Definition. A table's update of clock c is the sum of all pushes of clock c, in the order of the
// workers and, for each worker, of its pushes: ((p0 + p1) + p2) + ... . Kernels apply it with the
// factor 1 / number of workers that end clock c (mean), or 1. If no worker pushes, nothing changes
// and the optimizer's count of updates stays. This is what a server does under BSP without backup
// workers, element by element, so both give the same bits.
//
// A contribution of worker w to (table t, clock c) is its pushes. It is final when w has closed t
// in c, has ended c, or has finished before c. All three are words that only grow, each with one
// writer.
//
// Steps of (t, c), which every worker of the node that ends c does for every t, in the order of c:
//   1. wait until the contributions of all workers of the job to (t, c) are final
//   2. sum and apply the own slice
//   3. store `done` = c + 1
// (t, c) is complete on a node when all its workers that end c have done step 3. `advance` does all
// steps that need no wait; waits call it repeatedly.
//
// What lies in shared memory, who writes it and who reads it:
// - Pushes of w to t, with `pushed`, `pushes` and `rule`. Worker w writes them in clock c; all
//   workers of the node read them in step 2 of (t, c).
// - `closed`, `ticked`, `finished`. Worker w stores them with release behind its pushes. Step 1
//   reads them with acquire, so step 2 sees the pushes.
// - Values and state of t. Written in step 2, each element by one worker; read by pulls, and by
//   step 2 of later clocks.
// - `done`. Stored with release behind step 2; read with acquire by pushes and pulls.
//
// Why nothing is overwritten while it is read:
// - Pushes. A push to t in clock c + 1 is written only when (t, c) is complete on this node, so no
//   worker of the node reads the pushes of c any more. `pushed`, `pushes` and `rule` change with
//   them. A word of an older clock than c means: no push in c.
// - Values. Step 2 of (t, c) begins when all workers have closed t in c. A worker does not read t
//   between its close and its next clock, and in clock c + 1 it reads only when (t, c) is complete.
//   So readers of the values before (t, c) have ended, and later readers wait.
// - Slices. The workers that do (t, c + 1) may be fewer than those that did (t, c), so that an
//   element changes its worker. If step 2 of (t, c + 1) changes anything, there is a push of c + 1.
//   It was written when (t, c) was complete here: its writer read `done` of all workers of the
//   node before it closed t.
// It follows that the workers of a node are never more than one clock apart in a table to which
// any worker pushes.
//
// Progress. Step 1 of clock c waits for workers that have not closed t in c, so for workers at
// clock c or before; they wait, in pushes and pulls, for (t, c - 1) at most. The lowest clock
// therefore goes on whenever its workers call into this module or end it. A worker does its slice
// only in such calls; all its waits call `advance`.
//
// Finish. A worker finishes when all its clocks are complete here, so it owes no slice. Then it
// takes part in no later clock: the others divide the elements among themselves.
//
// Workers of other nodes have words and pushes here, too. The worker of this node that receives
// them writes them like the worker itself would, and under the same rules (`room_for`).
//
// Durable memory (NodeLayout) outlives the launch. Its rules are those above and the following
// ones; mpips/recovery/node_tables.py shows why a later launch can continue from it.
// - Values and state have two versions. Step 2 of (t, c) reads the one and writes the other, so a
//   kill leaves the one that is complete. If no worker pushes, the version stays. VersionLine says
//   what a version contains; it is stored before the first byte of the version changes.
// - `sent` of worker w counts the clocks whose ticks are in the memory of all servers. A push to a
//   table in clock c is written, and step 2 of (t, c) begins, only when `all_sent(c)`: the ticks of
//   all clocks before c of all workers that have not finished are at all servers.
// - RuleLine: each change of hyperparameters.
namespace mpips {

struct ReplicatedRule {
  std::string name;  // of the table, for errors
  OptimizerConfig optimizer;
  bool mean = true;
  std::uint64_t steps = 0;  // updates of the table before this launch; not of durable memory
  bool replaces = false;    // no optimizer: the sum, scaled, replaces the values
};

// Where a worker begins in durable memory of which the words are set (LeftTables, set_words).
struct ReductionStart {
  std::uint64_t clock = 0;  // clock of the worker
  std::uint64_t base = 0;   // number of clocks whose updates are in the values
  // The worker's pushes of `clock` are in the memory. What it pushes in this clock is not written.
  bool repeats = false;
  bool finished = false;  // it had finished; then it repeats the clock in which it makes no push
};

class Reduction {
 public:
  // The contribution for which an update waits, or (`summed`) the slice that a worker has not done.
  struct Awaited {
    std::size_t worker = 0, table = 0;
    std::uint64_t clock = 0, ticked = 0;  // the clock of the update, and that of the worker
    bool summed = false;
    bool unsent = false;  // the worker's ticks before `clock` are not at all servers
  };

  // `local`: the workers of this node, ascending; `worker` is one of them.
  Reduction(std::uint8_t* memory, NodeLayout layout, std::size_t worker,
            std::vector<std::size_t> local, std::vector<ReplicatedRule> rules, bool oversubscribed,
            const ReductionStart& start = {});

  std::uint64_t clock() const noexcept { return clock_; }
  const NodeLayout& layout() const noexcept { return layout_; }
  std::uint64_t steps(std::size_t table) const { return tables_.at(table).steps; }
  // Values (slot 0) or a state, with the updates that this worker has done.
  const float* array(std::size_t table, std::size_t slot) const {
    return values(tables_.at(table), slot);
  }
  // Let updates of the worker's clock and of later ones use these hyperparameters.
  void configure(std::size_t table, const OptimizerConfig& config);

  // Return the number of the worker's pushes to a table in its clock.
  std::size_t pushes(std::size_t table) const noexcept;
  // Write a push of the table's length; `complete(table)` must hold. Return false, without a push,
  // if `check_finite` and a value is NaN or infinite. Throws ReplayMismatch.
  bool push(std::size_t table, const float* update, bool check_finite);
  void close(std::size_t table) noexcept;
  // Throws ReplayMismatch: the worker repeats the clock and has not made the pushes that are known.
  void tick();
  // All clocks must be complete (`settled`).
  void finish() noexcept;

  // Do all steps that need no wait. Throws RuleMismatch.
  void advance();
  // Return true if the updates of all clocks before the worker's are in the values on this node.
  bool complete(std::size_t table) const noexcept { return complete_before(table, clock_); }
  // Return true if a push of the worker's clock may be written.
  bool may_push(std::size_t table) const noexcept { return room_for(table, clock_); }
  // True while the worker repeats a clock whose contributions are in the memory.
  bool repeats() const noexcept { return repeats_; }
  // Durable memory: see above.
  bool all_sent(std::uint64_t clocks) const noexcept;
  void note_sent(std::size_t worker, std::uint64_t clocks) noexcept;
  void note_rule(std::size_t worker, std::size_t table, std::uint64_t clock,
                 const ConfigWords& config) noexcept;
  bool settled() const noexcept;
  // Return one more than the clock of the newest update of a table that this worker has done and to
  // which any worker has pushed; 0: there was none.
  std::uint64_t updated(std::size_t table) const { return tables_.at(table).updated; }
  // Words of a worker; see ReducerLine.
  std::uint64_t ticked(std::size_t worker) const noexcept {
    return load_acquire(&line(worker)->ticked);
  }
  std::uint64_t sent(std::size_t worker) const noexcept {
    return load_acquire(&line(worker)->sent);
  }
  std::uint64_t finished(std::size_t worker) const noexcept {
    return load_acquire(&line(worker)->finished);
  }
  // Advance until `complete(table)`, for `max_s` seconds at most.
  bool wait_complete(std::size_t table, double max_s);
  // Advance until `may_push(table)`, for `max_s` seconds at most.
  bool wait_room(std::size_t table, double max_s);
  // Return what the oldest update that is not complete waits for.
  std::optional<Awaited> awaited() const;
  // Return number and count of this worker among those that end the clock before its own. In clock
  // 0 the count is 0. `complete(0)` must hold.
  std::pair<std::size_t, std::size_t> place() const;

  // Contributions of workers of other nodes. `room_for`: a push to (table, clock) may be written.
  bool room_for(std::size_t table, std::uint64_t clock) const noexcept {
    return complete_before(table, clock) && (!layout_.durable() || all_sent(clock));
  }
  void note_push(std::size_t worker, std::size_t table, std::uint64_t clock, std::uint64_t pushes,
                 std::uint64_t rule) noexcept;
  void note_close(std::size_t worker, std::size_t table, std::uint64_t clock) noexcept;
  void note_tick(std::size_t worker, std::uint64_t clock) noexcept;
  void note_finish(std::size_t worker, std::uint64_t clock) noexcept;
  // Hyperparameters in force in the worker's clock, and their hash.
  ConfigWords rule_words(std::size_t table) const noexcept {
    return words_of(tables_[table].configs.back().optimizer);
  }
  std::uint64_t rule_hash(std::size_t table) const noexcept;

 private:
  struct Config {
    std::uint64_t clock;  // from which it is in force
    OptimizerConfig optimizer;
    std::uint64_t hash;
  };
  struct Table {
    std::string name;
    bool mean, replaces;
    std::uint64_t steps;
    std::vector<Config> configs;  // by clock; the first is in force for the next update
    float* arrays[2][3];          // values and state of each version
    std::size_t version = 0;      // the one that contains the updates before `next`
    std::uint64_t next = 0;       // clock of the next update
    std::uint64_t updated = 0;    // one more than the clock of the newest one with a push
    std::size_t n_final = 0;      // workers whose contributions to it are known to be final
  };

  float* values(const Table& t, std::size_t slot) const noexcept {
    return t.arrays[t.version][slot];
  }
  VersionLine* version_line(std::size_t table, std::size_t version) const noexcept;
  RuleLine* rule_lines(std::size_t worker, std::size_t table) const noexcept;
  void take_words(std::size_t table);
  std::uint64_t pushes_of(std::size_t worker, std::size_t table,
                          std::uint64_t clock) const noexcept;
  void compare_repeated() const;
  ReducerLine* line(std::size_t worker) const noexcept;
  ContributionLine* line(std::size_t worker, std::size_t table) const noexcept;
  bool ends(std::size_t worker, std::size_t table, std::uint64_t clock) const noexcept;
  bool is_final(std::size_t worker, std::size_t table, std::uint64_t clock) const noexcept;
  bool complete_before(std::size_t table, std::uint64_t clock) const noexcept;
  bool step(std::size_t table);
  void gather(std::size_t table);
  void apply(std::size_t table, std::size_t n_contributors);

  std::uint8_t* memory_;
  NodeLayout layout_;
  std::size_t worker_;
  std::vector<std::size_t> local_;
  bool oversubscribed_;
  std::uint64_t clock_ = 0;
  bool repeats_ = false, finished_before_ = false;
  std::vector<std::uint64_t> repeated_;  // pushes to each table in the clock that is repeated
  std::vector<Table> tables_;
  std::vector<const float*> sources_;  // pushes of the update under way, in order
  std::vector<float> sum_;
};

}  // namespace mpips
