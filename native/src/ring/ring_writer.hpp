#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/optimizer_config.hpp"
#include "keys/key_plan.hpp"
#include "record/pull_log.hpp"
#include "ring/codec.hpp"
#include "ring/feedback.hpp"
#include "ring/layout.hpp"
#include "ring/push_tag.hpp"
#include "ring/record_history.hpp"
#include "ring/replay.hpp"
#include "shm/store_choice.hpp"
#include "trace/trace_ring.hpp"

// The worker's end of a ring. It writes records into the slots of its mailbox and reads the
// server's results. The mailbox is the server's memory (same node or same process) or a private
// copy of it that a remote transport synchronises: this class is the same for both.
//
// Who writes what, and what orders it:
// - Slot and stamp of sequence q are written by this worker only, and only while q - applied <
//   n_slots. That is after the server has published (release) that it has consumed record q -
//   n_slots, and after the worker has read that (acquire).
// - The worker stores the stamp q + 1 (release) after the record. The server reads the record only
//   after it has read the stamp (acquire).
// - Acknowledgement line, results and replies are written by the server only, results and replies
//   before `applied`.
namespace mpips {

struct PushCounters {
  std::uint64_t pushed = 0;  // complete pushes written
  std::array<std::uint64_t, 9> outcomes{};
  std::uint64_t max_staleness = 0, staleness_sum = 0;
  std::uint64_t pushed_bytes = 0;  // keys, values and base values
  std::uint64_t pulled_bytes = 0;  // values
  // bytes by which codecs have made pushes and replies shorter; below 0: longer
  std::int64_t push_saved_bytes = 0, pull_saved_bytes = 0;
  std::uint64_t credit_stalls = 0;
};

// Rows to push to one server. With a plan, `rows` and `base` are the whole batch, and `keys` are
// the plan's unique keys from `from` on; rows of equal keys are summed while they are copied into
// the slot.
struct RowsToPush {
  const std::int64_t* keys;
  const float* rows;
  const float* base;  // or null
  std::size_t n, dim;
  const KeyPlan* plan = nullptr;
  std::size_t from = 0;
  Codec codec = {};              // of the rows, which then have no base; its block is `dim`
  std::uint64_t random_key = 0;  // for stochastic rounding
};

// Rows to pull from one server. With a plan, `out` is the whole batch, and each row goes from the
// reply slot to all its places in it. Plan and `out` must stay unchanged until `collect` has passed
// the record.
struct RowsToPull {
  const std::int64_t* keys;
  float* out;
  std::size_t n, dim;
  const KeyPlan* plan = nullptr;
  std::size_t from = 0;
  Codec codec = {};  // of the replies
  // The rows are for a look-ahead: they do not become the base of the next pushes.
  bool ahead = false;
  // With a version, `dim` is 1 and each row's float is 1 if the row has changed after that version,
  // else 0.
  static constexpr std::uint64_t whole_rows = ~std::uint64_t{0};
  std::uint64_t changes_since = whole_rows;
};

// Rows to pull from one server by their places; see PlacesPayload. `out` gets the floats of each
// row that is there, or its key, and `n_rows` the number of rows in the shard. Both must stay valid
// until `collect` has passed the record.
struct PlacesToPull {
  PlacesPayload at;
  void* out;
  std::size_t n;  // places
  std::uint64_t* n_rows;
};

// Rows to pull from one server that have changed; see ChangesPayload. `entries` gets them one
// behind the other, `head` the head of the reply, and `n_entries` their number, all of which must
// stay valid until `collect` has passed the record.
struct ChangesToPull {
  ChangesPayload what;
  std::uint8_t* entries;
  std::size_t most;  // entries
  ChangesHead* head;
  std::uint64_t* n_entries;
};

// Result of a push: written now or before the restart; refused for want of a credit, or of finite
// values.
// A record that may not follow a push of which only a part is written.
class InterruptedPush : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Written : std::uint8_t { yes, no_room, not_finite };

class RingWriter {
 public:
  RingWriter(std::uint8_t* mailbox, const RingGeometry& geometry, std::uint16_t worker,
             std::uint32_t generation, bool checksums, std::size_t n_tables);

  // Continue behind the records of an earlier launch, of which the server has consumed `applied`
  // and has `before`. The server has what the worker repeats of that, so it is not written again.
  // All pushes of one worker reach one server in the order of the worker's program, so the pushes
  // that the server has are the first ones of their clock. Each call that writes a push, a tick or
  // the end throws ReplayMismatch if the repeated pushes differ from those in number, tables,
  // lengths or keys.
  void resume(std::uint64_t sequence, std::uint64_t applied, Replay before);
  // True while the worker may still repeat something.
  bool replays() const noexcept { return replays_; }
  // Return true if the server has pushes of clock `clock` or later ones.
  bool is_ahead_of(std::uint64_t clock) const noexcept {
    return replays_ && (before_.finished || clock < before_.clock ||
                        (clock == before_.clock && before_.pushes != 0));
  }
  std::uint64_t next_sequence() const noexcept { return next_; }
  // Return the number of records of cuts that this object has written.
  std::uint64_t n_cuts() const noexcept { return n_cuts_; }
  std::uint64_t published() const noexcept { return published_; }
  // Return start and end of the parts of the mailbox with the records that are not published:
  // stamp, header and payload. A part has several records where their ranges are at most `slack`
  // bytes apart and the part has at most `most` bytes.
  std::vector<std::pair<std::size_t, std::size_t>> new_parts(std::size_t most,
                                                             std::size_t slack) const;
  void set_published(std::uint64_t sequence) noexcept { published_ = sequence; }
  const RingGeometry& geometry() const noexcept { return box_.geometry; }
  const Mailbox& mailbox() const noexcept { return box_; }

  // Return the number of records that the server has consumed and whose results have arrived here.
  std::uint64_t applied() noexcept;
  // Return the number of records that have arrived at the server's replica, as far as known here.
  std::uint64_t received() noexcept {
    return received_ = read_pair_spin(&box_.ack->received, received_);
  }
  // Return the number of slots that may be written now. A slot whose reply is not collected is not
  // free.
  std::size_t credits() noexcept;

  // Write the tick of this clock before any other record, as soon as there is a free slot: now, or
  // at a later call that needs one. For the tick that the server lacks after a warm restart; its
  // ring may be full, and a worker that waited for room before it enters its program would keep
  // those waiting that it meets there.
  void owe_tick(std::uint64_t clock) noexcept {
    owed_tick_ = clock;
    credits();
  }
  bool owes_tick() const noexcept { return owed_tick_ != no_tick; }
  // Write a tick or the end. The functions that return bool return false, with nothing written, if
  // there is no credit.
  // `own_us`: the worker's own time in the clock, microseconds; 0: unknown.
  bool write_tick(RecordKind kind, std::uint64_t clock, std::uint32_t own_us = 0);
  // Write the place of cut `id` among this worker's records, with a text for the manifest that
  // describes the worker's position at clock `described`.
  bool write_cut(std::uint64_t clock, std::uint64_t id, std::uint64_t described,
                 const void* payload, std::size_t bytes);
  // Write new hyperparameters of a table's rule, in force from clock `clock` on. `ordinal`: number
  // of changes of this table that the worker has made in this clock before. After a warm restart
  // nothing is written to a server on which the worker has ended the clock: it has the record.
  bool configure(std::uint16_t table, std::uint64_t clock, std::uint64_t ordinal,
                 const OptimizerConfig& config);
  // Write elements of a replicated table that begin at element `offset` of the server's shard, from
  // `done` on; return the element reached when credits ran out. `slot`: 0 for values, else one more
  // than the number of the state. `steps`: number of updates of the table. After a warm restart
  // nothing is written to a server on which the worker has finished: it has the elements.
  std::size_t store(std::uint16_t table, std::uint64_t clock, std::uint16_t slot,
                    std::uint64_t steps, std::uint64_t offset, const float* values, std::size_t n,
                    std::size_t done);
  // Push from element (row) `done` on; return the element (row) reached when credits ran out.
  std::size_t push_dense(std::uint16_t table, std::uint64_t clock, const float* update,
                         const float* base, std::size_t n, std::size_t done);
  // Push elements [begin, begin + n) of a tensor of `whole` finite values, encoded; `done` and the
  // result count from `begin`.
  std::size_t push_encoded(std::uint16_t table, std::uint64_t clock, Codec codec,
                           const float* tensor, std::size_t whole, std::size_t begin, std::size_t n,
                           std::uint64_t random_key, std::size_t done);
  // Push an update of feedback.n() finite values with a residual; return how many are written,
  // fewer than all if credits ran out. A push that the server has already changes no residual.
  std::size_t push_feedback(std::uint16_t table, std::uint64_t clock, Feedback* feedback,
                            const float* update, std::uint64_t random_key);
  // Push an update that fits into one record, and check it while copying, with `check_finite`.
  // Nothing is written unless the result is `yes`. What the server has already needs no credit, and
  // an update that is refused is none of its pushes.
  Written push_whole(std::uint16_t table, std::uint64_t clock, const float* update, std::size_t n,
                     bool check_finite);
  // True if the server's core is far from this one.
  bool is_far() const noexcept { return distance_.is_far(); }
  // Set whether the next pushes are the worker's last ones to their tables in its clock
  // (flag_closes).
  void set_closing(bool closing) noexcept { closing_ = closing; }
  // Declare that the server adds records of a push to this table to the sum of the clock as they
  // come, so it cannot drop a part of a push. If an exception of the program leaves such a push
  // partly written, each later call that writes a record throws InterruptedPush, except pulls.
  void require_whole(std::uint16_t table, const std::string& name) { whole_.at(table) = name; }
  // Prefetch the lines of the next slot for a record as long as the last one, at most `at_most`
  // bytes; best called while there is nothing else to do.
  void warm_next_slot(std::size_t at_most) const noexcept;
  // Push an update of n elements in the staging memory by one record.
  bool push_staged(std::uint16_t table, std::uint64_t clock, StagedPayload where, std::size_t n);
  // Push elements [done, done + count) of an update of n. They lie in the rendezvous buffer where
  // `where` says, or will soon unless they have `arrived`.
  bool push_area(std::uint16_t table, std::uint64_t clock, AreaPayload where, bool arrived,
                 std::size_t done, std::size_t count, std::size_t n);
  std::size_t push_rows(std::uint16_t table, std::uint64_t clock, const RowsToPush& push,
                        std::size_t done);
  // Request rows from row `done` on. They arrive in `out`, which must stay valid, when `collect`
  // has passed the record.
  std::size_t pull_rows(std::uint16_t table, std::uint64_t clock, const RowsToPull& pull,
                        std::size_t done);

  // Request rows by their places, from the place `done` of the pull on; like `pull_rows`.
  std::size_t pull_places(std::uint16_t table, std::uint64_t clock, const PlacesToPull& pull,
                          std::size_t done);

  // Request the first changed rows by one record; return false, with nothing written, if there is
  // no credit. A reply has at most so many entries:
  std::size_t most_changes(std::size_t entry_bytes) const noexcept {
    return (box_.geometry.slot_bytes - sizeof(ReplyHeader) - sizeof(ChangesHead)) / entry_bytes;
  }
  bool pull_changes(std::uint16_t table, std::uint64_t clock, const ChangesToPull& pull);

  // Copy the replies that have arrived, in order; return the number of pulls that are still open.
  std::size_t collect();
  // Return the sequence and the reply's bytes of every open pull, oldest first. A remote transport
  // fetches the replies into its copy before it calls `collect`.
  std::vector<std::pair<std::uint64_t, std::size_t>> open_pulls() const;
  // Return the sequence of the oldest open pull, or the next sequence if there is none.
  std::uint64_t open_pulls_end() const noexcept;

  // Return one more than the sequence of the record that ended the last push to a table; 0: no push
  // yet.
  std::uint64_t pushed_before(std::uint16_t table) const { return pushed_before_.at(table); }

  std::uint64_t base_version(std::uint16_t table) const { return base_.at(table); }
  void set_base_version(std::uint16_t table, std::uint64_t v) { base_.at(table) = v; }
  // Set the bound of SSP("auto") at the worker's clock: each later pull of rows of the table names
  // the clock that all workers must have reached (base_version of its record).
  void set_bound(std::uint16_t table, std::uint64_t bound) { bounds_.at(table) = bound; }
  // Let each tick from here on name the clock of the run at which BSP ends; 0: not decided on.
  void set_switch(std::uint64_t at) noexcept { switch_at_ = at; }
  // Declare on which version of the values the next pushes were computed. `unnamed`: on the newest
  // version that has arrived here.
  static constexpr std::uint64_t unnamed = ~std::uint64_t{0};
  void name_base(std::uint16_t table, std::uint64_t version) { named_.at(table) = version; }
  // Return the version that a pull has brought; `sequence` is that of its first record. `unnamed`
  // if the reply is not collected yet, or was too long ago.
  std::uint64_t pulled_version(std::uint64_t sequence) const noexcept;
  // Return the lowest clock of all workers when a pull for a look-ahead was answered; else as
  // above.
  std::uint64_t pulled_clock(std::uint64_t sequence) const noexcept {
    return pulled_clock_.find(sequence, unnamed);
  }

  // Return the result word of a consumed record; 0 if it is not consumed yet or was too long ago.
  std::uint64_t result(std::uint64_t sequence) noexcept;
  const PushCounters& counters() noexcept;
  // Return the counters as of the last read of the server's results, without reading them now.
  const PushCounters& known_counters() const noexcept { return counters_; }
  std::uint64_t known_queue() const noexcept { return next_ - consumed_; }
  // Record ends of pushes in `trace` from here on; null: no longer. `server`: whose ring this is.
  void set_trace(TraceRing* trace, std::uint16_t server) noexcept {
    trace_ = trace;
    server_ = server;
  }
  // Note the versions of pulled rows in `log` from here on. `server`: whose ring this is.
  void set_pull_log(PullLog* log, std::size_t server) noexcept {
    log_ = log;
    log_server_ = server;
  }
  void count_credit_stall() noexcept { ++counters_.credit_stalls; }
  // Count values that were read without a record.
  void count_pulled(std::uint64_t bytes) noexcept { counters_.pulled_bytes += bytes; }

 private:
  struct OpenPull {
    std::uint64_t sequence;
    std::size_t dim;
    std::uint32_t count;
    std::uint16_t table;
    bool first;  // first record of its pull
    bool ahead;  // see RowsToPull
    const KeyPlan* plan;
    std::size_t from;  // in the plan
    float* out;        // with a plan: the whole batch
    Codec codec;       // of the reply
    // of a pull by places, whose `dim` is the floats of a row in the reply; else null
    std::uint64_t* n_rows = nullptr;
    std::uint64_t first_place = 0;

    // of a pull of changes, whose `dim` is the floats of an entry; else null
    ChangesHead* changes = nullptr;

    std::size_t floats() const noexcept { return count * dim; }
    std::size_t reply_bytes() const noexcept {
      return count * reply_row_bytes(codec, dim) + (changes != nullptr ? sizeof *changes : 0);
    }
    // Return the bytes of the reply to a pull by places of a shard with so many rows.
    std::size_t bytes_of(std::uint64_t n) const noexcept {
      if (changes != nullptr)
        return sizeof *changes + std::min<std::uint64_t>(count, n) * dim * sizeof(float);
      const std::uint64_t left = first_place < n ? n - first_place : 0;
      return std::min<std::uint64_t>(count, left) * dim * sizeof(float);
    }
  };

  RecordHeader header(RecordKind kind, std::uint16_t table, std::uint64_t clock) const noexcept;
  RecordHeader tick_header(RecordKind kind, std::uint64_t clock) const noexcept;
  RecordHeader pull_header(std::uint16_t table, std::uint64_t clock) const noexcept {
    RecordHeader h = header(RecordKind::pull_rows, table, clock);
    const std::uint64_t bound = bounds_[table];
    if (bound != no_bound) h.base_version = clock - (bound < clock ? bound : clock);
    return h;
  }
  RecordHeader push_header(RecordKind kind, std::uint16_t table, std::uint64_t clock, bool first);
  // Throw InterruptedPush if a push to a table of `require_whole` is partly written.
  void check_whole() const {
    if (open_push_ >= 0) interrupted();
  }
  [[noreturn]] void interrupted() const;
  void finish_record(RecordHeader* h, std::uint8_t role) noexcept;
  bool copy_with_hints(float* to, const float* update, std::size_t done, std::size_t stop,
                       std::size_t n) noexcept;
  void append_floats(float* to, const float* from, std::size_t n);
  const float* summed(const RowsToPush& push, std::size_t done, std::size_t count);
  // Return true for what the server has already, so that it is not written again.
  bool skips_push(std::uint16_t table, std::uint64_t clock, std::uint64_t n,
                  const std::int64_t* keys) {
    return replays_ && repeats_push(table, clock, n, keys);
  }
  bool skips_tick(RecordKind kind, std::uint64_t clock) {
    return replays_ && repeats_tick(kind, clock);
  }
  bool repeats_push(std::uint16_t table, std::uint64_t clock, std::uint64_t n,
                    const std::int64_t* keys);
  bool repeats_tick(RecordKind kind, std::uint64_t clock);
  bool follows(std::uint64_t clock);
  // Return true for clocks that this worker had ended before the restart.
  bool has_ended(std::uint64_t clock) const noexcept {
    return replays_ && (before_.finished || clock < before_.clock);
  }
  void compare_ended(std::uint64_t clock);
  void compare_pushes(std::uint64_t clock);
  [[noreturn]] void mismatch(std::uint64_t clock, const std::string& what);
  bool is_whole(const OpenPull& pull, const ReplyHeader& header, const std::uint8_t* rows) const;
  void reply_is_late(std::uint64_t sequence);
  void read_applied() noexcept;
  std::uint64_t result_word(std::uint64_t sequence) const noexcept;
  void retire(std::uint64_t sequence, std::uint64_t result) noexcept;

  Mailbox box_;
  std::uint16_t worker_;
  std::uint32_t generation_;
  bool checksums_;
  std::uint64_t next_ = 0, published_ = 0, consumed_ = 0, retired_ = 0, received_ = 0;
  std::vector<std::uint64_t> base_, named_, pushed_before_;
  static constexpr std::uint64_t no_bound = ~std::uint64_t{0};
  std::vector<std::uint64_t> bounds_;  // by table; no_bound: its pulls name no clock
  static constexpr std::uint64_t no_tick = ~std::uint64_t{0};
  std::uint64_t owed_tick_ = no_tick;  // see owe_tick
  std::uint64_t switch_at_ = 0;        // see set_switch
  std::uint64_t n_cuts_ = 0;
  std::uint64_t push_base_ = 0;  // of the push that is being written
  std::deque<OpenPull> pulls_;
  RecordHistory past_;              // results
  RecordHistory pulled_;            // versions, by the first record of a pull
  RecordHistory pulled_clock_;      // lowest clocks, by the first record of a look-ahead's pull
  std::vector<std::uint8_t> role_;  // of the record in each slot: 1 end of a push, 2 tick
  std::size_t last_bytes_ = 0;      // of the last record's payload
  CoreDistance distance_;           // of the server's, by its acknowledgements
  StoreChoice stores_;              // of payloads
  bool closing_ = false;
  std::vector<std::string> whole_;  // names of the tables of `require_whole`; others are empty
  std::int32_t open_push_ = -1;     // such a table, of which a push is partly written; -1: none
  PushCounters counters_;
  double bad_reply_since_ = 0.0;
  TraceRing* trace_ = nullptr;
  std::uint16_t server_ = 0;
  PullLog* log_ = nullptr;
  std::size_t log_server_ = 0;
  bool replays_ = false;
  Replay before_;
  std::vector<float> sums_;     // of rows, before they are encoded
  std::vector<float> decoded_;  // rows of a reply
  // the first mismatch; nothing is written after it, and `replays_` stays true
  std::string mismatch_;
  std::uint64_t repeated_clock_ = 0;  // the clock that is being repeated
  // of that clock: pushes repeated so far, and their tag
  std::uint64_t repeated_ = 0, repeated_tag_ = no_pushes;
};

}  // namespace mpips
