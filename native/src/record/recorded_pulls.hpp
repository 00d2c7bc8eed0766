#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "record/pull_log.hpp"
#include "record/recorded_order.hpp"
#include "ring/layout.hpp"

// The recorded pulls of dense tables by one worker: the worker repeats them, and the servers wait
// for them before they change what a pull still has to read.
//
// Each server has a word for each pair of table and worker: the number of blocks of the table that
// the worker has read since the start. Only the worker writes it (release, after the block's copy).
// Before the server writes a block it waits until every worker has read all recorded earlier states
// of that block (acquire). So a reader finds each block as it was, without a look at it before and
// after, and the word orders its loads before the stores of the server. A recorded read of a block
// happened before the next write of that block and after the one before; replay keeps that order
// and those of workers' and server's programs, and all of these follow from the times of the
// recorded run. So they have no cycle, and a replay of the same program does not deadlock.
namespace mpips {

struct PullOfBlocks {
  std::size_t server = 0, table = 0;
  std::uint64_t own = 0;      // records of the worker to the server before it
  std::uint64_t clock = 0;    // of the worker
  std::uint64_t version = 0;  // of the table's head
  // Blocks and their updates; empty: all have `version`.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> runs = {};

  std::uint64_t updates_of(std::size_t block) const;
  std::uint64_t highest() const noexcept;
};

struct PullStep {
  PullEntry kind = PullEntry::tick;
  PullOfBlocks pull = {};   // whole, mixed
  std::uint64_t clock = 0;  // tick, end
  // tick, end: records of the worker to each server before it
  std::vector<std::uint64_t> own = {};
};

// Return a worker's pulls of dense tables, its ticks and its end, in order, as far as clock `stop`.
std::vector<PullStep> read_pull_log(const std::vector<std::uint8_t>& bytes, std::size_t n_servers,
                                    std::size_t n_tables, std::uint64_t stop);

// The words of one server.
class PullWords {
 public:
  PullWords(std::uint8_t* memory, std::size_t n_workers) noexcept
      : words_(reinterpret_cast<std::uint64_t*>(memory)), n_workers_(n_workers) {}
  static std::size_t bytes(std::size_t n_tables, std::size_t n_workers) noexcept {
    return n_tables * n_workers * sizeof(std::uint64_t);
  }
  std::uint64_t* of(std::size_t table, std::size_t worker) const noexcept {
    return words_ + table * n_workers_ + worker;
  }

 private:
  std::uint64_t* words_;
  std::size_t n_workers_;
};

// The end of a server: it holds writes back. Only the server's thread uses it.
class PullGate {
 public:
  PullGate(PullWords words, std::size_t n_tables, std::size_t n_workers, std::size_t server,
           double timeout_s);

  // Add the recorded pulls of a worker. Call it once for each worker, after all tables. `cuts`:
  // sequences of the worker's records of cuts in the recorded run.
  void add_pulls(std::size_t worker, const std::vector<PullStep>& steps,
                 const std::vector<std::uint64_t>& cuts);
  // Add a dense table of which the server has a part.
  void add_table(std::size_t table, const PairWord* versions, std::size_t n_blocks,
                 std::string name);

  // Throw RecordDifference if a worker has not made all recorded pulls before its record `place`,
  // counted without records of cuts. `record`: what it is. Call it in the order of the records, and
  // when the record is in the ring: the worker reads before it writes.
  void require(std::size_t worker, std::uint64_t place, const std::string& record);
  // Return true if no worker has to read the present state of all blocks of a table any more.
  bool may_write(std::size_t table);
  // Wait until no worker has to read the present state of a block. Throw RecordDifference after
  // the timeout.
  void wait(std::size_t table, std::size_t block);

 private:
  struct Reader {
    std::vector<PullOfBlocks> pulls = {};
    std::size_t passed = 0;                  // pulls of states up to the one that `may_write` saw
    std::size_t required = 0;                // pulls before the last record of `require`
    std::vector<std::size_t> by_block = {};  // pulls that read the block up to its present state
  };
  struct GatedTable {
    const PairWord* versions = nullptr;  // null: not gated
    std::size_t n_blocks = 0;
    std::string name = {};
    std::vector<Reader> readers = {};
  };

  PullWords words_;
  std::size_t server_;
  double timeout_s_;
  std::vector<GatedTable> tables_;
};

// The end of a worker: it reads what its pulls have read. Not thread-safe.
//
// It compares how many records the worker has written before each pull, tick and end with the
// recorded run. So it finds a record that is missing before the worker waits for its effect.
class RecordedPulls {
 public:
  // `records`: those of the worker at each server. `ends_early`: the worker goes on behind the last
  // step, and its pulls wait there for the end of the job.
  RecordedPulls(std::vector<PullStep> steps, std::size_t worker, std::vector<std::string> names,
                std::vector<WorkerOrder> records, bool ends_early);

  // Throw RecordDifference if the worker has written another number of records to a server than the
  // recorded run has before the next step. `own`: that number; `written`: the number that it has
  // written now; both without records of cuts. `recent`: returns the newest ones; the message names
  // the first that differs.
  void require_written(std::size_t server, std::uint64_t own, std::uint64_t written,
                       const std::function<std::vector<WrittenRecord>()>& recent) const;
  // Go on with the next pull of a part, for `max_s` seconds; return true when it is complete. Throw
  // RecordDifference if the recorded run has no such pull here.
  bool read(std::size_t server, std::size_t table, std::uint64_t clock, const PairWord* versions,
            const float* values, std::size_t n, float* out, const PullWords& words, double max_s,
            bool oversubscribed);
  // Return the version of the table's head that the last complete pull had.
  std::uint64_t version() const noexcept { return version_; }
  // Pass the end of a clock, or of the worker.
  void tick(std::uint64_t clock, bool is_end);

 private:
  std::string described() const;
  [[noreturn]] void differ(const std::string& found) const;

  std::vector<PullStep> steps_;
  std::size_t worker_;
  std::vector<std::string> names_;
  std::vector<WorkerOrder> records_;
  bool ends_early_;
  std::size_t next_ = 0, block_ = 0;
  std::uint64_t version_ = 0;
  std::vector<std::uint64_t> read_;  // by server and table: blocks
};

}  // namespace mpips
