#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "keys/mix.hpp"
#include "ring/layout.hpp"

// Rows that workers of one node have read from servers of other nodes, for each other: look-aheads,
// and pulls of workers in groups.
//
//   line[slot] ... | row[slot] ...
//
// `n_ways` slots in sequence are a set, and a key of a table may be in any slot of one set. A row
// has a stamp, from which its reader knows whether it may use it (mpips/worker/node_rows/rows.py).
//
// A worker that does not find a row claims it and reads it from the server. Another one that finds
// a newer claim than some clock need not read the row, and looks again later. Nobody relies on a
// claim: the row may never come, or the claim be lost. Then two workers read a row, or one reads it
// late.
//
// Who writes what, and what orders it:
// - All words of a line but `claimed`, and the row, have a seqlock with several writers. A writer
//   makes `version` odd by compare-and-swap, so there is one at a time; it issues a release fence,
//   writes, and makes the word even again (release store). A writer that finds an odd word does not
//   wait: it leaves the slot out. A reader loads the word (acquire), reads, issues an acquire
//   fence, and loads the word again: equal and even means that it has read what one writer left.
//   After H.-J. Boehm, "Can seqlocks get along with programming language memory models?", MSPC
//   2012.
// - `claimed` is changed by compare-and-swap, or cleared by the writer of the slot.
//
// A worker that dies while it writes leaves a slot that nobody uses any more. A new launch makes
// new memory.
namespace mpips {

class NodeRows {
 public:
  enum State : std::uint8_t { absent = 0, copied = 1, claimed = 2 };

  // Which rows a worker may use, and which claims it trusts.
  struct Need {
    std::int64_t least, most;  // stamps of rows that may be used
    std::int64_t clock;        // of the worker
    // The oldest clock of a claim by another worker that is trusted; the newest one is `most`.
    std::int64_t claims_from;
  };

  // `bytes`: of the memory. `stride`: length of the longest row. `worker`: below `n_workers`.
  NodeRows(std::uint8_t* memory, std::size_t bytes, std::size_t stride, std::size_t worker,
           std::size_t n_workers) noexcept
      : memory_(memory),
        n_sets_(bytes / (n_ways * (sizeof(Line) + stride * sizeof(float)))),
        stride_(stride),
        worker_(worker),
        n_workers_(n_workers) {}

  std::size_t n_slots() const noexcept { return n_sets_ * n_ways; }
  std::size_t stride() const noexcept { return stride_; }

  // Copy the rows that may be used, with their stamps and versions, and return the state of each
  // key. If `claims`, what is absent is claimed. Rows, stamps and versions of other states are left
  // as they are.
  void look(std::uint64_t table, const Need& need, bool claims, const std::int64_t* keys,
            std::size_t n, std::size_t dim, float* rows, std::int64_t* stamps,
            std::int64_t* versions, std::uint8_t* states) noexcept;

  // Store rows that this worker has read. A row with a later stamp stays, and so does one of
  // another key where all slots of a set are in use.
  void publish(std::uint64_t table, std::int64_t stamp, const std::int64_t* keys, std::size_t n,
               std::size_t dim, const float* rows, const std::int64_t* versions) noexcept;

 private:
  static constexpr std::size_t n_ways = 4, none = n_ways;
  static constexpr std::size_t ahead = 8;
  static constexpr int most_reads = 4;  // of a row that is written meanwhile

  struct Line {
    std::uint64_t version;  // odd: the slot is being written
    std::uint64_t table;    // one more than the table's index; 0: the slot is empty
    std::int64_t key;
    std::int64_t stamp;     // one more than the row's; 0: the row has not been written
    std::int64_t shard;     // version of the table's shard when the row was read
    std::uint64_t claimed;  // (one more than the clock) * workers + the worker that reads; 0: none
    std::uint64_t pad[2];
  };
  static_assert(sizeof(Line) == line_bytes);

  struct Found {
    float* row;
    std::int64_t *stamp, *version;
  };

  Line* line(std::size_t slot) const noexcept { return reinterpret_cast<Line*>(memory_) + slot; }
  float* row(std::size_t slot) const noexcept {
    return reinterpret_cast<float*>(memory_ + n_slots() * sizeof(Line)) + slot * stride_;
  }
  // Return the first slot of the set of a key.
  std::size_t home(std::uint64_t table, std::int64_t key) const noexcept {
    const std::uint64_t mixed =
        mix_splitmix(static_cast<std::uint64_t>(key) + (table + 1) * splitmix_step);
    return static_cast<std::size_t>((mixed >> 32) * n_sets_ >> 32) * n_ways;
  }
  void prefetch(std::size_t set) const noexcept {
    for (std::size_t way = 0; way < n_ways && n_sets_ > 0; ++way)
      __builtin_prefetch(line(set + way));
  }

  static bool has(const Line* at, std::uint64_t table, std::int64_t key) noexcept {
    return load_relaxed(&at->key) == key && load_relaxed(&at->table) == table + 1;
  }
  // Return the way of a key in its set; `none` if it is not there.
  std::size_t way_of(std::size_t set, std::uint64_t table, std::int64_t key) const noexcept {
    std::size_t way = 0;
    while (way < n_ways && !has(line(set + way), table, key)) ++way;
    return way;
  }
  static bool lock(Line* at, std::uint64_t* version) noexcept {
    *version = load_relaxed(&at->version);
    if ((*version & 1) != 0 ||
        !__atomic_compare_exchange_n(&at->version, version, *version + 1, false, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
      return false;
    fence_release();
    return true;
  }
  static void unlock(Line* at, std::uint64_t version) noexcept {
    store_release(&at->version, version + 2);
  }

  std::uint64_t claim_word(std::int64_t clock) const noexcept {
    return (static_cast<std::uint64_t>(clock) + 1) * n_workers_ + worker_;
  }
  // Return true if another worker has claimed a slot and is trusted to read its row.
  bool is_claimed(std::uint64_t word, const Need& need) const noexcept {
    const std::uint64_t clock = word / n_workers_;  // one more than it
    return word % n_workers_ != worker_ &&
           clock >= static_cast<std::uint64_t>(need.claims_from) + 1 &&
           clock <= static_cast<std::uint64_t>(need.most) + 1;
  }

  State look_one(std::uint64_t table, const Need& need, bool claims, std::int64_t key,
                 std::size_t dim, const Found& to) noexcept;

  // Return the way of a set with the oldest row; `none` if all are claimed or being written.
  std::size_t oldest(std::size_t set, std::int64_t claims_from) const noexcept;
  void claim_new(std::size_t set, std::uint64_t table, const Need& need, std::int64_t key) noexcept;
  static void name(Line* at, std::uint64_t table, std::int64_t key) noexcept {
    store_relaxed(&at->table, table + 1);
    store_relaxed(&at->key, key);
  }

  void publish_one(std::uint64_t table, std::int64_t stamp, std::int64_t key, std::size_t dim,
                   const float* from, std::int64_t shard) noexcept;

  std::uint8_t* memory_;
  std::size_t n_sets_, stride_, worker_, n_workers_;
};

}  // namespace mpips
