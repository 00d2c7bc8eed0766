#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "journal/journal.hpp"
#include "server/shard.hpp"
#include "shm/shared_memory.hpp"

// Which keys of an embedding table get a row, and which rows leave it.
//
// Everything here is decided when a clock closes, from the keys that were pushed in it. So under
// BSP the same rows are there on every server count, in every run and after every restart;
// `RowSets` names the one exception. Clocks are those of the run: they go on where a checkpoint
// ends.
//
// Use. Each row has the last clock in which it was pushed, and the number of such clocks since it
// was made. They lie in memory of their own (8 bytes a row), so a table without eviction has none.
// One store of 8 bytes changes both, so a kill leaves the old or the new pair. An update that is
// repeated after a kill finds its clock there and counts nothing twice.
//
// Admission. A key that is not admitted has no row: a pull returns its initial value, and its
// pushes are counted and dropped. The counts are a sketch: a block of one cache line for a key,
// chosen by its hash, and in it two cells. A cell has the clock (24 bits) of its last change and a
// count (8 bits), and changes once in a clock, so repeating is harmless here as well. The count of
// a key is the lower one of its cells. Other keys in both cells can only raise it, so a key may be
// admitted too early, never too late.
namespace mpips {

struct RowUse {
  std::uint32_t last;   // clock of the last push
  std::uint32_t count;  // clocks with a push since the row was made; 0: nothing is known of the row
};
static_assert(sizeof(RowUse) == sizeof(std::uint64_t));

// Return the number of clocks as a row's use has it.
inline std::uint32_t as_use_clock(std::uint64_t clock) noexcept {
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(clock < most ? clock : most);
}

enum class Admission : std::uint8_t { all, counted, random };
enum class Eviction : std::uint8_t { none, idle, recent, frequent };

constexpr const char* admission_names[] = {"all", "counted", "random"};           // by Admission
constexpr const char* eviction_names[] = {"none", "idle", "recent", "frequent"};  // by Eviction

struct LimitsConfig {
  Admission admission = Admission::all;
  std::uint32_t least_clocks = 2;  // counted: clocks with a push of a key before it gets a row,
  std::uint32_t within = 1;        // and clocks after which a key that was not pushed counts from 0
  double probability = 1.0;        // random: of a push of a key without a row
  std::uint64_t seed = 0;
  Eviction eviction = Eviction::none;
  std::uint64_t idle = 0;       // idle: clocks that a row stays after its last push
  std::uint64_t most_rows = 0;  // recent, frequent: rows of the table on all servers
};

// The rows of a shard by sets of keys. A limit of rows holds for each set by itself, so that the
// choice of the rows that leave costs the same for tables of any size. The leading bits of the
// partition's hash give a key's set, so a set lies on one server if the number of servers is a
// power of two; with another one, fewer sets than servers are divided between two.
class RowSets {
 public:
  explicit RowSets(std::uint64_t most_rows);

  std::size_t set_of(std::int64_t key) const noexcept;
  std::vector<std::uint32_t>& members(std::size_t set) { return members_[set]; }
  void add(std::size_t set, std::uint32_t row);
  void remove(std::size_t set, std::uint32_t row) noexcept;
  void rename(std::size_t set, std::uint32_t from, std::uint32_t to) noexcept;

  std::size_t most() const noexcept { return most_; }
  std::size_t overfull() const noexcept { return waiting_.size(); }
  bool waits(std::size_t set) const noexcept { return waits_[set] != 0; }
  // Return an overfull set and take it off the list.
  std::size_t next_overfull() noexcept;
  // The set that the next call returns, which must be there.
  std::size_t coming_overfull() const noexcept { return waiting_.back(); }
  // Prefetch the members of the sets behind the coming one.
  void prefetch_overfull() const noexcept;
  // Prefetch where a set's members are noted; with that in the cache, prefetch its members.
  void prefetch_place(std::size_t set) const noexcept { __builtin_prefetch(&members_[set]); }
  void prefetch_members(std::size_t set) const noexcept;
  std::size_t memory_bytes() const noexcept { return bytes_; }

 private:
  // Rows of a set, for tables of more than one.
  static constexpr std::size_t least_rows = 64;

  unsigned shift_ = 64;   // 64: there is one set
  std::size_t most_ = 0;  // rows of a set
  std::size_t bytes_ = 0;
  std::vector<std::vector<std::uint32_t>> members_;
  std::vector<std::uint8_t> waits_;  // by set: it is, or was, too large and is on the list
  std::vector<std::size_t> waiting_;
};

// The limits of one table on one server. Not thread-safe.
class RowLimits {
 public:
  // `uses`: memory that grows with the rows, null without eviction. `counts`: the sketch, null
  // without it. Their content is zeros, or that of an earlier process.
  RowLimits(const LimitsConfig& config, SharedMemory* uses, SharedMemory* counts);

  const LimitsConfig& config() const noexcept { return config_; }
  bool admits_all() const noexcept { return config_.admission == Admission::all; }
  bool evicts() const noexcept { return config_.eviction != Eviction::none; }
  bool has_idle() const noexcept { return config_.eviction == Eviction::idle; }
  bool has_sets() const noexcept { return !sets_.empty(); }
  RowSets& sets() noexcept { return sets_.front(); }
  const RowSets& sets() const noexcept { return sets_.front(); }

  // Clock of the run: of the update that is applied, or of the pull that is answered.
  std::uint64_t now = 0;
  std::uint64_t applied_at = 0;  // clock of the newest update
  std::size_t to_visit = 0;      // idle: rows that the search for rows to remove has yet to visit
  std::size_t cursor = 0;        // the row that it visits next
  // The newest version of the table from which on a row that has been removed has its initial
  // value.
  std::uint64_t removed_at = 0;

  RowUse use(std::size_t row) const noexcept {
    RowUse found;
    std::memcpy(&found, uses_->data() + row * sizeof found, sizeof found);
    return found;
  }
  void set_use(std::size_t row, RowUse use) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, &use, sizeof word);
    Journal::barrier();
    reinterpret_cast<std::uint64_t*>(uses_->data())[row] = word;
    Journal::barrier();
  }
  void move_use(std::size_t from, std::size_t to) noexcept { set_use(to, use(from)); }
  // Note a push of a row that is alive and has this use.
  void touch(std::size_t row, RowUse before) noexcept {
    const std::uint32_t clock = as_use_clock(now);
    if (before.last == clock && before.count != 0) return;
    const std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
    set_use(row, {clock, before.count < most ? before.count + 1 : most});
  }
  void prefetch_use(std::size_t row) const noexcept {
    __builtin_prefetch(uses_->data() + row * sizeof(RowUse), 1);
  }
  void grow_uses(std::size_t n_rows);
  void shrink_uses(std::size_t n_rows);

  // Return true if a row with this use has its initial value at a clock, because it was not pushed
  // for too long.
  bool is_dead(RowUse use, std::uint64_t at) const noexcept {
    return has_idle() && use.count != 0 && at > use.last + config_.idle;
  }
  bool is_dead(std::size_t row) const noexcept { return has_idle() && is_dead(use(row), now); }

  // A row that may leave its set; rows with a lower rank leave first.
  struct Candidate {
    std::uint64_t rank;
    std::uint32_t last, row;
  };
  // Memory for the candidates of one set.
  std::vector<Candidate>& candidates() noexcept { return candidates_; }
  // Keys whose rows are removed next.
  std::vector<std::int64_t>& leaving() noexcept { return leaving_; }

  // A part of an update all of whose keys have rows: the first key, and the number of keys.
  struct Run {
    std::size_t from, n;
  };
  std::vector<Run>& runs() noexcept { return runs_; }

  // Count a push of a key without a row; return true if it gets one.
  bool admit(std::int64_t key) noexcept;
  void prefetch(std::int64_t key) const noexcept;

  // Remember that a row was removed, and find out whether it was when its key gets a row again.
  // Only so many newest keys are remembered, as 32 bits each: an estimate for the statistics.
  void note_removed(std::int64_t key);
  bool comes_back(std::int64_t key) noexcept;

  std::size_t memory_bytes() const noexcept;

 private:
  static constexpr std::size_t remembered = std::size_t{1} << 16;
  static constexpr unsigned cells_per_block = 16, count_bits = 8;

  std::uint32_t* block_of(std::int64_t key, unsigned* first, unsigned* second) const noexcept;

  LimitsConfig config_;
  SharedMemory* uses_;
  SharedMemory* counts_;
  unsigned block_shift_ = 64;
  std::vector<RowSets> sets_;  // one, or none without a limit of rows
  std::vector<std::uint32_t> removed_;
  std::vector<Candidate> candidates_;
  std::vector<std::int64_t> leaving_;
  std::vector<Run> runs_;
};

}  // namespace mpips
