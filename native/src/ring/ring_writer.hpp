#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "keys/key_plan.hpp"
#include "ring/layout.hpp"
#include "ring/push_tag.hpp"

// The worker's end of a ring. Writes records into the slots of its mailbox and reads what the
// server says about them. The mailbox is the server's memory (same node, same process) or a private
// mirror of it that a remote transport copies over: this class does not know which.
//
// Who writes what, and what orders it. Slot and stamp of sequence q are written by this worker
// only, and only while q - applied < n_slots, that is after the server has published (release) that
// it is done with q - n_slots, which the worker has read (acquire). The stamp q+1 is stored
// (release) after the record, and the server reads the record only after it has seen the stamp
// (acquire). Ack line, results and replies are written by the server only, results and replies
// before `applied`.
namespace mpips {

struct PushCounters {
  std::uint64_t pushed = 0;  // complete pushes written
  std::array<std::uint64_t, 9> outcomes{};
  std::uint64_t max_staleness = 0, staleness_sum = 0;
  std::uint64_t pushed_bytes = 0;  // keys, values and base values
  std::uint64_t pulled_bytes = 0;  // values
  std::uint64_t credit_stalls = 0;
};

// A worker repeats a clock with other pushes than the server has of it, so nothing tells which of
// its updates count already.
class ReplayMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a server has of a worker when the worker goes on after a warm restart.
struct Replay {
  std::uint64_t clock = 0;  // that the worker was in
  bool finished = false;
  std::uint64_t pushes = 0, tag = no_pushes;  // complete pushes of that clock (push_tag.hpp)
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ended;  // (clock, tag) of clocks before it
  bool skips_clocks = false;  // with backup workers a worker may pass over clocks
};

// Rows to push to one server. With a plan, `rows` and `base` are the whole batch, and the keys are
// those of the plan from `from` on; rows of equal keys are summed on their way into the slot.
struct RowsToPush {
  const std::int64_t* keys;
  const float* rows;
  const float* base;  // or null
  std::size_t n, dim;
  const KeyPlan* plan = nullptr;
  std::size_t from = 0;
};

// Rows to pull from one server. With a plan, `out` is the whole batch, and rows go from the reply
// slot to all their places in it; plan and `out` must stay as they are until `collect` is past.
struct RowsToPull {
  const std::int64_t* keys;
  float* out;
  std::size_t n, dim;
  const KeyPlan* plan = nullptr;
  std::size_t from = 0;
};

class RingWriter {
 public:
  RingWriter(std::uint8_t* mailbox, const RingGeometry& geometry, std::uint16_t worker,
             std::uint32_t generation, bool checksums, std::size_t n_tables);

  // Goes on behind the records of an earlier launch, of which the server has consumed `applied` and
  // has `before`. What the worker repeats of that is not written again: the server has it. All
  // pushes of one worker reach one server in the order of its program, so those that are there are
  // the first ones of their clock. Each call that writes a push, a tick or the end throws
  // ReplayMismatch if what is repeated differs from what is there in number, tables, lengths or
  // keys.
  void resume(std::uint64_t sequence, std::uint64_t applied, Replay before);
  // True while something may still be repeated.
  bool replays() const noexcept { return replays_; }
  // True if the server has pushes of a worker that is at `clock`, or later ones.
  bool is_ahead_of(std::uint64_t clock) const noexcept {
    return replays_ && (before_.finished || clock < before_.clock ||
                        (clock == before_.clock && before_.pushes != 0));
  }
  std::uint64_t next_sequence() const noexcept { return next_; }
  std::uint64_t published() const noexcept { return published_; }
  void set_published(std::uint64_t sequence) noexcept { published_ = sequence; }
  const RingGeometry& geometry() const noexcept { return box_.geometry; }
  const Mailbox& mailbox() const noexcept { return box_; }

  // Records consumed by the server whose result is known, as far as this memory tells.
  std::uint64_t applied() noexcept;
  // Records that have arrived at the server's partner, as far as this memory tells.
  std::uint64_t received() noexcept {
    return received_ = read_pair_spin(&box_.ack->received, received_);
  }
  // Slots that may be written now. A slot whose reply has not been collected is not free.
  std::size_t credits() noexcept;

  bool write_tick(RecordKind kind, std::uint64_t clock);
  // The place of cut `id` among this worker's records, and a text for its manifest that describes
  // where the worker stands at clock `described`.
  bool write_cut(std::uint64_t clock, std::uint64_t id, std::uint64_t described,
                 const void* payload, std::size_t bytes);
  // Each continues from element (row) `done` and returns how far it came before credits ran out.
  std::size_t push_dense(std::uint16_t table, std::uint64_t clock, const float* update,
                         const float* base, std::size_t n, std::size_t done);
  // A push that fits into one record, copied as it is checked. False, with nothing written: there
  // is no credit, or (with `check_finite`) it holds NaN or infinity.
  bool push_whole(std::uint16_t table, std::uint64_t clock, const float* update, std::size_t n,
                  bool check_finite);
  // Takes the lines of the next slot into this core's cache, for a record as long as the last; best
  // called while there is nothing else to do.
  void warm_next_slot(std::size_t at_most) const noexcept;
  bool push_staged(std::uint16_t table, std::uint64_t clock, StagedPayload where, std::size_t n);
  // Elements [done, done + count) of a push of n; they lie where `where` says, or, unless they have
  // `arrived`, soon will.
  bool push_area(std::uint16_t table, std::uint64_t clock, AreaPayload where, bool arrived,
                 std::size_t done, std::size_t count, std::size_t n);
  std::size_t push_rows(std::uint16_t table, std::uint64_t clock, const RowsToPush& push,
                        std::size_t done);
  // Rows arrive in `out` (which must stay) when `collect` has passed the record.
  std::size_t pull_rows(std::uint16_t table, std::uint64_t clock, const RowsToPull& pull,
                        std::size_t done);

  // Copies the replies that are there, in order; returns the number of pulls still open.
  std::size_t collect();
  // Sequence and bytes of the reply of every open pull, oldest first. A remote transport brings
  // replies into the mirror before it calls `collect`.
  std::vector<std::pair<std::uint64_t, std::size_t>> open_pulls() const;
  std::uint64_t open_pulls_end() const noexcept;

  // One more than the number of the record that ended the last push to a table; 0: no push yet.
  std::uint64_t pushed_before(std::uint16_t table) const { return pushed_before_.at(table); }

  std::uint64_t base_version(std::uint16_t table) const { return base_.at(table); }
  void set_base_version(std::uint16_t table, std::uint64_t v) { base_.at(table) = v; }
  // Pushes count as computed on the newest version that has arrived here, or, while one is named,
  // on that.
  static constexpr std::uint64_t unnamed = ~std::uint64_t{0};
  void name_base(std::uint16_t table, std::uint64_t version) { named_.at(table) = version; }
  // The version that the pull whose first record this is has brought; `unnamed` if it has not, or
  // too long ago.
  std::uint64_t pulled_version(std::uint64_t sequence) const noexcept;

  // The result word of a consumed record; 0 if it is not consumed yet or too long ago.
  std::uint64_t result(std::uint64_t sequence) noexcept;
  const PushCounters& counters() noexcept;
  // As known from the last look at what the server says; never looks itself.
  const PushCounters& known_counters() const noexcept { return counters_; }
  std::uint64_t known_queue() const noexcept { return next_ - consumed_; }
  void count_credit_stall() noexcept { ++counters_.credit_stalls; }
  // Values that were read without a record.
  void count_pulled(std::uint64_t bytes) noexcept { counters_.pulled_bytes += bytes; }

 private:
  struct OpenPull {
    std::uint64_t sequence;
    std::size_t dim;
    std::uint32_t count;
    std::uint16_t table;
    bool first;  // of the records of one pull
    const KeyPlan* plan;
    std::size_t from;  // in the plan
    float* out;        // with a plan: the whole batch

    std::size_t floats() const noexcept { return count * dim; }
  };
  struct Past {
    std::uint64_t sequence = ~std::uint64_t{0};
    std::uint64_t result = 0;
  };

  RecordHeader header(RecordKind kind, std::uint16_t table, std::uint64_t clock) const noexcept;
  RecordHeader push_header(RecordKind kind, std::uint16_t table, std::uint64_t clock,
                           bool first) noexcept;
  void finish_record(RecordHeader* h, std::uint8_t role) noexcept;
  bool skips_push(std::uint16_t table, std::uint64_t clock, std::uint64_t n,
                  const std::int64_t* keys);
  bool skips_tick(RecordKind kind, std::uint64_t clock);
  bool follows(std::uint64_t clock);
  bool has_ended(std::uint64_t clock) const noexcept;
  void compare_ended(std::uint64_t clock);
  void compare_pushes(std::uint64_t clock);
  [[noreturn]] void mismatch(std::uint64_t clock, const std::string& what);
  void reply_is_late(std::uint64_t sequence);
  std::uint64_t result_word(std::uint64_t sequence) const noexcept;
  void retire(std::uint64_t sequence, std::uint64_t result) noexcept;

  Mailbox box_;
  std::uint16_t worker_;
  std::uint32_t generation_;
  bool checksums_;
  std::uint64_t next_ = 0, published_ = 0, consumed_ = 0, retired_ = 0, received_ = 0;
  std::vector<std::uint64_t> base_, named_, pushed_before_;
  std::uint64_t push_base_ = 0;  // of the push that is being written
  std::deque<OpenPull> pulls_;
  std::vector<Past> past_;
  std::vector<Past> pulled_;        // versions, by the first record of a pull
  std::vector<std::uint8_t> role_;  // of the record in each slot: 1 end of a push, 2 tick
  std::size_t last_bytes_ = 0;      // of the last record's payload
  PushCounters counters_;
  double bad_reply_since_ = 0.0;
  bool replays_ = false;
  Replay before_;
  std::string mismatch_;              // the first one; nothing is written after it
  std::uint64_t repeated_clock_ = 0;  // being repeated; of it:
  std::uint64_t repeated_ = 0, repeated_tag_ = no_pushes;
};

}  // namespace mpips
