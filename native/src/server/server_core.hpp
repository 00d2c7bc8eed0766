#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "journal/journal.hpp"
#include "record/recorded_order.hpp"
#include "record/recorded_pulls.hpp"
#include "ring/codec.hpp"
#include "ring/layout.hpp"
#include "ring/push_tag.hpp"
#include "server/backup_times.hpp"
#include "server/clocks.hpp"
#include "server/delay_threshold.hpp"
#include "server/evenness.hpp"
#include "server/hot_rows.hpp"
#include "server/plateau.hpp"
#include "server/push_intervals.hpp"
#include "server/row_limits.hpp"
#include "server/shard.hpp"
#include "shm/backoff.hpp"
#include "trace/trace_ring.hpp"

// The server's end of all rings: it reads records, decides on updates, applies them and publishes
// the results.
//
// Exactly once. The sequences of a worker are contiguous, and the server reads only the slot of
// record `next`. A repeat of an older record lands in a slot that the server does not read, or it
// has an older stamp; it changes nothing. A stamp beyond the expected one is a gap and an error.
//
// Order. For a record the server writes results and replies, then `applied` (release). For a table
// it writes the values, then the table's head, then `applied`. So a worker that has read that its
// push is applied reads values that include the push.
//
// Pushes in several records (segments). They change nothing until the last segment is there.
// Segments of rows that all fit into the ring (flag_fits) stay in their slots until then. The
// server reads each of them and goes on (`deferred`). When it has read the last one, it applies and
// consumes all of them. Copying them elsewhere would cost more than applying them. The worker does
// not write a slot before it is consumed, so they cannot change meanwhile. If another record than
// the next segment follows, or if the ring is full of deferred segments, they are copied and
// consumed after all (`let_go`); all other segments are copied at once. So the server never waits
// for a segment for which the worker has no slot.
//
// A large dense push of a worker on another node lies in the worker's rendezvous buffer
// (flag_area), put there directly from the caller's array. Either the worker waits (by a flush)
// until all of the update is there, and then sends one record (flag_arrived). Or the worker goes on
// at once and sends after each segment a record with the segment's checksum; the server consumes
// such a record once its segment matches the checksum. With the last record the server applies the
// update where it lies. Only this worker writes its rendezvous buffer, and it writes no part of it
// again before the record that ends the push there is consumed.
//
// A record that may not be consumed yet (a BSP update before its worker's place in the order, a
// pull or a change of hyperparameters ahead of its clock) stays at the head of its ring. This
// cannot deadlock: within a clock a worker waits only for workers of lower index, and the worker of
// lowest index waits for none. Encoded updates with shared scales (scale_shard.hpp) have no order
// within their clock.
//
// Early sums. Under BSP the last push of a worker to a table in a clock may say so (flag_closes).
// The next worker's pushes to this table are then taken before the first one's tick. When all
// workers have closed a table, and there is no journal, the sum is applied and the table's version
// is raised, although the clock is still open. A worker that has closed a table reads it no more
// in that clock (the worker's side raises an error), and every worker has closed it, so no read is
// of the wrong clock. With a journal, a worker may have to repeat the clock with the values before
// it, so the sum is applied when the clock closes.
namespace mpips {

// A record that no correct worker or server sends.
class ProtocolViolation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The staging memory of a worker, mapped into this process.
struct StagingArea {
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
};

// The state in which a worker continues after recovery.
struct Position {
  std::uint64_t sequence = 0;  // of its first new record
  std::uint64_t clock = 0;
  bool finished = false;
  std::vector<std::uint64_t> taken;  // by table: complete pushes of this clock that the server has
  std::uint64_t pushes = 0, tag = no_pushes;  // complete pushes of this clock, to all tables
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ended;  // (clock, tag) of clocks before it
  std::vector<std::string> texts;  // texts of the worker's position, the newest last
};

struct ServerCounters {
  std::uint64_t records = 0;                  // records consumed
  std::uint64_t retries = 0;                  // reads of a record that was not complete yet
  std::uint64_t clocks = 0;                   // clocks closed
  std::uint64_t bytes_in = 0, bytes_out = 0;  // bytes of records, and of the rows in replies
};

// Records and bytes that a server has handed out for its replica.
struct PartnerCounters {
  std::uint64_t records = 0, bytes = 0;
};

class EmbeddingShard;
class LookUpPort;
class ScaleShard;
struct LookUpAnswer;

class ServerCore {
 public:
  ServerCore(std::uint8_t* region, Layout layout, std::uint32_t generation, std::uint32_t backup,
             bool oversubscribed);
  ~ServerCore();
  ServerCore(const ServerCore&) = delete;
  ServerCore& operator=(const ServerCore&) = delete;

  // Add every table once, before `start` or `attach`. `add_absent`: this server has no part of it.
  void add_dense(std::uint16_t table, std::unique_ptr<Shard> shard, ConsistencyConfig consistency);
  void add_embedding(std::uint16_t table, std::unique_ptr<EmbeddingShard> shard,
                     ConsistencyConfig consistency);
  void add_absent(std::uint16_t table, ConsistencyConfig consistency);
  // Set the codec of a table's pushes; no other one is accepted.
  void set_codec(std::uint16_t table, Codec codec) { tables_.at(table).codec = codec; }
  // Add the scales of a table with codec shared, which was added before; both are under BSP without
  // backup workers. No worker may push to `table`. See server/scale_shard.hpp.
  void add_scales(std::uint16_t table, std::uint16_t of, std::unique_ptr<ScaleShard> shard,
                  ConsistencyConfig consistency);
  // Set the codec of the replies to pulls of rows. Dense tables have theirs in the layout.
  void set_pull_codec(std::uint16_t table, Codec codec) { tables_.at(table).pull_codec = codec; }
  void set_staging(std::size_t worker, StagingArea area) { staging_.at(worker) = area; }
  // Set the staging memory of an earlier launch, for that launch's records that are still in the
  // ring.
  void set_old_staging(std::size_t worker, std::uint32_t generation, StagingArea area) {
    old_staging_[{worker, generation}] = area;
  }
  // Set the number of clocks of the run before those that this memory counts. Before any table is
  // added.
  void set_clocks_before(std::uint64_t n) noexcept { clocks_before_ = n; }
  // Apply the limits of a table of rows that was added before; see EmbeddingShard. The table is
  // under BSP without backup workers.
  void set_limits(std::uint16_t table, const LimitsConfig& config,
                  std::unique_ptr<SharedMemory> uses, std::unique_ptr<SharedMemory> counts);
  // Remove all rows that have left their tables, so that only those that count are there.
  void settle_rows();
  // Let only the workers of one stage of the model take part in a table that was added before; see
  // Members. Before `start` or `attach`; `n_stages` is the same in all calls, and divides the
  // number of workers. No such table has backup workers, shared scales, a bound or a threshold that
  // is decided on, or a switch of its model.
  void set_stage(std::uint16_t table, std::uint32_t stage, std::uint32_t n_stages);
  // Set the name of a table, for errors.
  void set_name(std::uint16_t table, const std::string& name) { tables_.at(table).name = name; }
  // Set the number of updates that a table had before this launch; optimizers continue to count
  // from there.
  void set_steps_before(std::uint16_t table, std::uint64_t n) {
    tables_.at(table).steps_before = n;
    publish_updates(tables_[table]);
  }
  // Return the number of updates of a table, including those before this launch.
  std::uint64_t steps(std::uint16_t table) const {
    return tables_.at(table).steps_before + tables_.at(table).stats.updates;
  }
  // Set how long a record may look damaged before it is an error.
  void set_patience(double seconds) { patience_s_ = seconds; }
  // Publish the state with which a new job begins.
  void start();

  // Use a journal (server_recovery.cpp); call this before any table is added. `begin_journal`
  // writes the whole state to it; from then on the server survives a kill. `attach` takes over the
  // state that an earlier process left, in place of `start` and `begin_journal`. `finish_operation`
  // must follow, once the staging memory that `old_staging` lists has been set.
  void set_journal(std::unique_ptr<Journal> journal);
  Journal* journal() const noexcept { return journal_.get(); }
  void begin_journal();
  void attach();
  std::vector<std::pair<std::size_t, std::uint32_t>> old_staging();
  void finish_operation();
  const Position& position(std::size_t worker) const { return positions_.at(worker); }
  // Drop what waits in a worker's ring of clock `clock` and later ones, because the worker repeats
  // this clock; change its position accordingly. After `finish_operation`, before any record of
  // this launch.
  void drop_repeated(std::size_t worker, std::uint64_t clock);

  // Consume records until `max_s` seconds have passed. With max_s = 0, until nothing more can be
  // consumed, which may be never while other threads or processes write. Return the number of
  // consumed records.
  std::size_t drain(double max_s, std::uint32_t max_sleep_us);
  // Consume without waiting, until nothing more can be consumed, but no longer than `max_s`
  // seconds.
  std::size_t consume(double max_s);

  // Cuts; see server_snapshot.cpp.
  void expect_cut(std::uint64_t id) { expected_cut_ = id; }
  bool cut_ready();
  bool holds_cut() const;
  void release_cut(std::uint64_t id);
  // Replicas; see server_replica.cpp.
  void begin_partnership();
  std::size_t outgoing(std::uint8_t* batch, std::size_t max_bytes);
  bool has_outgoing() const noexcept;
  void partner_has(std::size_t worker, std::uint64_t arrived, std::uint64_t applied);
  const PartnerCounters& partner_counters() const { return partner_counters_; }
  void become_copy();
  void accept(const std::uint8_t* batch, std::size_t bytes);
  std::uint64_t arrived(std::size_t worker) const { return rings_.at(worker).arrived; }
  // Return the payload of the worker's last cut record; empty if there was none.
  const std::string& position_text(std::size_t worker) const {
    return rings_.at(worker).position_text;
  }

  const TableStats& stats(std::uint16_t table) const { return tables_.at(table).stats; }
  const ServerCounters& counters() const { return counters_; }
  // Record consumed records in `trace` from here on; null: no longer.
  void set_trace(TraceRing* trace) noexcept { trace_ = trace; }
  // Record the order of consumed records in `log` from here on; null: no longer.
  void set_order_log(OrderLog* log) noexcept { order_log_ = log; }
  // Consume records in the recorded order, and change values only when `gate` lets it; call this
  // before any record. The job takes a checkpoint at the end of the order at most, and all pulls
  // are those of the gate.
  void follow(RecordedOrder* order, PullGate* gate) noexcept {
    recorded_ = order;
    gate_ = gate;
  }
  // Return the index of a break of the followed order that is reached: the server consumes nothing
  // more until it is removed. None: there is none.
  std::optional<std::size_t> reached_break() const;
  // Decide on the bound of SSP("auto") in this launch; see server_bound.cpp. Call it after `start`
  // or `attach`. `table`: the table whose head has the decisions; `most`: the greatest bound;
  // `bound`: the one with which the launch begins.
  void decide_bounds(std::uint16_t table, std::uint64_t most, std::uint64_t bound);
  // Set the bound from a later clock on, and return that clock; 0: the decision before is not in
  // force for all workers yet, or no worker is at work.
  std::uint64_t set_bound(std::uint64_t bound);
  const PushIntervals* intervals() const noexcept { return intervals_.get(); }
  std::vector<PushIntervals::Sum> take_intervals() { return intervals_->take(); }
  // Decide on the number of backup workers in this launch; see server_backup.cpp. Call it after
  // `start` or `attach`, before any record. `table`: the table whose head has the decisions;
  // `most`: the greatest number, with which this server was made; `backup`: the one with which the
  // launch begins.
  void decide_backups(std::uint16_t table, std::uint64_t most, std::uint64_t backup);
  // Begin instead with the decision of the process before, which has left this memory; return its
  // number.
  std::uint64_t resume_backups(std::uint16_t table, std::uint64_t most);
  // Set the number from the next clock on, and return that clock; 0: the decision before is not in
  // force yet.
  std::uint64_t set_backup(std::uint64_t backup);
  std::vector<std::vector<double>> take_backup_times() { return backup_times_->take(now_s()); }
  // Return the threshold of Reject("auto"); null: the table has no such policy here.
  const DelayThreshold* delay_threshold(std::uint16_t table) const {
    return tables_.at(table).delays.get();
  }
  // Begin with the threshold of an earlier launch, before any record.
  void set_delay_threshold(std::uint16_t table, std::uint64_t threshold);
  // Return the number of estimates of all such tables so far.
  std::uint64_t n_estimates() const noexcept { return n_estimates_; }
  // Count from here on which rows of embedding tables are pushed and pulled most.
  void observe_rows();
  // Return the counter of a table's rows; null: it is no embedding table, or none are counted.
  RowCounter* row_counter(std::uint16_t table) { return tables_.at(table).row_counter.get(); }
  // Answer look-ups of other processes from here on; null: no longer. See server_look_ups.cpp.
  void set_look_ups(std::unique_ptr<LookUpPort> port);
  // Return the clock of the run: the lowest of all workers that have not finished, else the
  // highest.
  std::uint64_t run_clock() const noexcept;
  // Return the number of records that are in the rings now.
  std::size_t queue() const noexcept;
  // Return the number of consumed records of a worker.
  std::uint64_t applied(std::size_t worker) const { return rings_.at(worker).next; }
  std::size_t n_workers() const { return rings_.size(); }
  std::uint64_t version(std::uint16_t table) const { return tables_.at(table).version; }
  // Return the hyperparameters in force; null if this server has no part of the table.
  const OptimizerConfig* optimizer(std::uint16_t table) const {
    const Shard* shard = tables_.at(table).shard.get();
    return shard != nullptr ? &shard->rule().optimizer : nullptr;
  }
  // Return one more than the clock of the change that set them; 0: they are as declared.
  std::uint64_t configured_at(std::uint16_t table) const {
    return tables_.at(table).change.configured_at;
  }
  const Clocks& clocks() const { return clocks_; }
  // Return true if tables that begin under BSP are under ASP now; see server_switch.cpp.
  bool has_switched() const noexcept { return has_switched_; }
  // Return the clock of the run at which BSP ends; 0: never, or it is not decided on.
  std::uint64_t switch_at() const noexcept { return switch_at_; }
  // Let this server decide on the clock of the switch, by the measure of a plateau. Call it after
  // all tables are added, before `start` or `attach`.
  void find_plateau(std::uint64_t every, std::uint64_t pairs, double ratio) {
    plateau_ = std::make_unique<Plateau>(tables_.size(), every, pairs, ratio);
  }
  // The same, by the own times of the workers.
  void find_uneven(std::uint64_t first, std::uint64_t longest, double least) {
    evenness_ = std::make_unique<Evenness>(rings_.size(), first, longest, least);
  }
  // Decide on nothing: this launch repeats a recorded one.
  void hold_switch() noexcept {
    plateau_.reset();
    evenness_.reset();
  }
  // Return the measure; null: this server does not decide by it.
  const Plateau* plateau() const noexcept { return plateau_.get(); }
  const Evenness* evenness() const noexcept { return evenness_.get(); }
  // Set the clock of the switch that an earlier launch has decided on, before any worker is at
  // work. A server whose tables have no switch that is decided on throws.
  void set_switch(std::uint64_t at);

 private:
  // The place of a change of hyperparameters in the worker's program; the later change counts.
  struct Change {
    std::uint64_t configured_at = 0;  // one more than its clock; 0: there was no change
    std::uint64_t ordinal = 0;        // number of changes before it in that clock

    bool operator<(const Change& other) const noexcept {
      return configured_at != other.configured_at ? configured_at < other.configured_at
                                                  : ordinal < other.ordinal;
    }
  };
  struct Table {
    std::unique_ptr<Shard> shard;  // null: this server has no part of the table
    EmbeddingShard* embedding = nullptr;
    ScaleShard* scales = nullptr;             // of codec shared: its scales,
    std::uint16_t scales_table = 0;           // which are the values of this table
    bool is_scales = false;                   // the values are the scales of another table
    std::unique_ptr<RowCounter> row_counter;  // null: rows are not counted
    ConsistencyConfig consistency;
    Members members;                         // the workers that take part in it
    std::unique_ptr<DelayThreshold> delays;  // null: no threshold is estimated
    Codec codec;                             // of pushes
    Codec pull_codec;                        // of replies to pulls of rows
    std::uint64_t version = 0;               // pushes applied in this launch; BSP: clocks closed
    std::uint64_t steps_before = 0;  // updates before this launch, if it started from a checkpoint
    TableStats stats;
    // The number of the next update, for the optimizer. A BSP clock without a push raises the
    // version but makes no update. The journal restores the count together with the other words.
    std::uint64_t next_step() const noexcept { return steps_before + stats.updates + 1; }
    Change change;  // of the hyperparameters, the one in force
    // The worker whose record of it was the last; none: another launch, or there was no change.
    std::optional<std::size_t> changed_by;
    std::string name;  // for errors
    TableHead* head = nullptr;
    std::vector<std::uint64_t> pending;  // by buffer: pushes of the open clock
    std::size_t turn = 0;  // BSP: all members below it have closed the table in the open clock
    std::vector<std::uint8_t> closed;  // by worker: the same, where pushes are taken in any order
    std::size_t n_closed = 0;          // of them
    void close(std::size_t worker) noexcept {
      closed[worker] = 1;
      ++n_closed;
    }
    void open_again() noexcept {
      turn = 0;
      early = false;
      if (n_closed != 0) std::fill(closed.begin(), closed.end(), std::uint8_t{0});
      n_closed = 0;
    }
    bool early = false;  // the sum of the open clock is applied: all members have closed the table
  };
  struct Ring {
    Mailbox box;
    std::uint64_t next = 0;
    std::vector<Update> deferred = {};  // segments that were read and stay in their slots
    std::size_t fetched = 0;  // bytes of the record at the head that were prefetched by its hint
    bool far = false;         // the worker's last record had flag_far
    double bad_since = 0.0;   // when the record at the head first looked damaged; 0: it does not
    bool open = false;        // the last push is not complete; the fields below describe it
    std::uint16_t open_table = 0, open_flags = 0;
    std::uint64_t open_clock = 0;
    std::uint64_t open_end = 0;                 // where its next segment starts
    std::uint64_t open_digest = 0;              // of its keys so far
    std::uint64_t pushes = 0, tag = no_pushes;  // complete pushes of the worker's clock
    std::uint64_t held_cut = 0;      // the cut whose record is at the head, not consumed; 0: none
    std::string position_text = {};  // payload of the last cut record
    std::uint64_t inherited = 0;     // records below this sequence are of an earlier launch
    // values of a record with a codec, and one more than its sequence; a record that must wait is
    // decoded once
    std::vector<float> decoded = {};
    std::uint64_t decoded_record = 0;
    std::uint16_t decoded_table = 0;
    std::uint64_t open_area = 0;  // flag_area: where the push starts, bytes into the buffer
    std::uint64_t verified = 0;  // one more than the last record whose segment matched its checksum
    // With a replica; sequences of records. No record from `limit` on may be consumed yet.
    std::uint64_t limit = ~std::uint64_t{0};
    std::uint64_t sent = 0;      // records below it are handed out
    std::uint64_t received = 0;  // records below it are known to have arrived
    std::uint64_t room = 0;      // records below it are consumed by the replica
    std::uint64_t arrived = 0;   // in the replica: records below it are in this ring

    std::uint64_t at() const noexcept { return next + deferred.size(); }  // the next record to read
  };
  struct Verdict {
    bool consumed;  // with Outcome::none: read, and it stays in its slot
    Outcome outcome;
    std::uint64_t staleness;
  };

  void note(std::uint64_t began_ns, std::size_t worker, const RecordHeader& header) noexcept;
  void count_rows(const RecordHeader& header, const std::uint8_t* payload) noexcept;
  std::size_t pass(double end);
  std::size_t pass_recorded(double end);
  void compare_arrived(std::size_t worker);
  bool may_repeat(std::size_t worker, RecordHeader* header);
  std::pair<const std::uint8_t*, std::size_t> pushed_bytes(std::size_t worker,
                                                           const RecordHeader& header,
                                                           const std::uint8_t* payload) const;
  bool consume_one(std::size_t worker);
  void acknowledge(Ring* ring, Outcome outcome, std::uint64_t staleness);
  void settle(Ring* ring, Outcome outcome, std::uint64_t staleness);
  bool stamped(std::size_t worker, std::uint64_t sequence);
  static void follow_hint(Ring* ring, std::uint64_t sequence) noexcept;
  void note_distance(Ring* ring, bool far) noexcept;
  bool patience_spent(Ring* ring);
  bool check(std::size_t worker, std::uint64_t sequence, const RecordHeader& header,
             const std::uint8_t* payload);
  static bool is_free_tick(const Ring& ring) noexcept;
  bool piece_is_whole(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  void check_clock(std::size_t worker, const RecordHeader& header) const;
  void check_push(std::size_t worker, const RecordHeader& header) const;
  void check_member(std::size_t worker, const RecordHeader& header) const;
  void check_encoded(std::size_t worker, const RecordHeader& header) const;
  void check_segment(std::size_t worker, const RecordHeader& header) const;
  void check_nothing_open(std::size_t worker) const;
  Verdict handle(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  Verdict handle_push(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  Verdict handle_bsp(std::size_t worker, const RecordHeader& header, const Update& part);
  void widen_scales(std::size_t worker, const RecordHeader& header, const Update& part);
  Verdict handle_pull(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  Verdict handle_tick(std::size_t worker, const RecordHeader& header);
  Verdict handle_cut(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  Verdict handle_configure(std::size_t worker, const RecordHeader& header,
                           const std::uint8_t* payload);
  Verdict handle_store(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  OptimizerConfig parse_configure(std::size_t worker, const RecordHeader& header,
                                  const std::uint8_t* payload) const;
  Verdict handle_segment(std::size_t worker, const RecordHeader& header, const Update& part);
  Verdict apply_logged(std::size_t worker, const RecordHeader& header);
  void let_go(std::size_t worker);
  // `noted`: the whole push, for an estimate of the threshold of delays; null: it is not
  // contiguous.
  template <class Apply>
  Verdict judge(Table* table, std::size_t worker, const RecordHeader& header, bool has_base,
                const Update* noted, Apply apply);
  void note_delay(Table* table, std::size_t worker, const Update& update);
  Update parse_area(std::size_t worker, const RecordHeader& header,
                    const std::uint8_t* payload) const;
  Update parse(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload) const;
  Update parse_encoded(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  std::uint64_t discard_clock(std::size_t worker);
  void close_clock();
  void switch_if_due() noexcept;
  void note_sum(const Table& t);
  void find_switch(const std::vector<std::size_t>& workers);
  void learn_switch(std::uint64_t at) noexcept;
  void take_switch() noexcept;
  bool remove_rows(double max_s);
  void apply_sum(Table* t, const std::vector<std::size_t>& buffers, std::size_t n_workers);
  static void publish_updates(const Table& table) noexcept;
  void publish_clocks();
  void publish_clock(std::size_t worker);
  void publish_decision(const NumberDecision& decision);
  void begin_backups(std::uint16_t table, std::uint64_t most, const NumberDecision& decision);
  void publish_backup(const NumberDecision& decision);
  Verdict handle_places(std::size_t worker, const RecordHeader& header,
                        const std::uint8_t* payload);
  Verdict handle_changes(std::size_t worker, const RecordHeader& h, const std::uint8_t* payload);
  bool may_answer(const RecordHeader& header) const noexcept;
  void set_clock_of(const RecordHeader& header, EmbeddingShard* shard) const;
  bool answer_look_up();
  LookUpAnswer look_up(std::uint32_t table, const std::int64_t* keys, std::size_t n, float* out,
                       std::size_t out_bytes, std::uint8_t* has);
  void send_reply(std::size_t worker, const RecordHeader& header, ReplyHeader reply,
                  std::size_t bytes);
  void answer(std::size_t worker, const RecordHeader& header, Table* table,
              const std::int64_t* keys);
  [[noreturn]] void violation(std::size_t worker, const std::string& what) const;

  void commit(std::size_t worker, const RecordHeader& header, const Verdict& verdict);
  void commit_segments(std::size_t worker);
  void publish_commit(Ring* ring);
  void put_worker(std::size_t worker);
  void put_push(std::size_t worker, const RecordHeader& header, const Verdict& verdict);
  void put_tick(std::size_t worker, const RecordHeader& header);
  void put_table(std::size_t table);
  void put_rule(std::size_t table);
  void take_rule(std::size_t table);
  void put_pair(std::size_t table, std::size_t worker);
  void put_discarded(std::size_t worker);
  void put_all();
  void note_push(Ring* ring, const RecordHeader& header, const Update& part) const;
  void take_words();
  void check_unfinished();
  void take_pair(std::size_t table, std::size_t worker);
  bool complete(std::size_t worker, std::uint64_t sequence, RecordHeader* header);
  void find_end(std::size_t worker, std::uint64_t limit);
  std::uint64_t first_repeated(std::size_t worker, std::uint64_t clock);
  void cut_off(std::size_t worker);

  std::uint8_t* region_;
  Layout layout_;
  std::uint32_t generation_;
  double patience_s_ = 2.0;  // seconds that a record may look damaged before it is an error
  Backoff backoff_;
  Clocks clocks_;
  bool any_bsp_ = false;
  std::uint64_t switch_at_ =
      0;  // clock of the run from which on BSP tables are under ASP; 0: never
  bool has_switched_ = false;
  bool finds_switch_ = false;             // `switch_at_` is decided on, by one server for all
  std::unique_ptr<Plateau> plateau_;      // null: this server does not decide by it
  std::unique_ptr<Evenness> evenness_;    // the same
  std::vector<EmbeddingShard*> limited_;  // shards of tables with limits of rows
  std::uint64_t clocks_before_ = 0;
  std::uint64_t expected_cut_ = 0, released_cut_ = 0;
  std::vector<Ring> rings_;
  std::vector<float> pulled_;  // rows of a reply, before they are encoded
  std::size_t next_ring_ = 0;  // the ring at which the next pass begins
  std::vector<Table> tables_;
  std::vector<StagingArea> staging_;
  ServerCounters counters_;
  TraceRing* trace_ = nullptr;
  OrderLog* order_log_ = nullptr;
  RecordedOrder* recorded_ = nullptr;  // null: records are consumed as they come
  PullGate* gate_ = nullptr;
  bool observes_rows_ = false;
  std::unique_ptr<PushIntervals> intervals_;  // null: this server decides on no bound
  std::uint16_t bound_table_ = 0;
  std::uint64_t most_ = 0;
  std::unique_ptr<BackupTimes> backup_times_;  // null: the number of backup workers is fixed
  std::uint16_t backup_table_ = 0;
  std::uint64_t most_backup_ = 0;
  std::uint64_t n_estimates_ = 0;
  std::unique_ptr<Journal> journal_;
  std::vector<Position> positions_;
  std::map<std::pair<std::size_t, std::uint32_t>, StagingArea> old_staging_;
  bool partnered_ = false, copy_ = false;
  std::size_t first_out_ = 0;  // the ring at which `outgoing` begins
  PartnerCounters partner_counters_;
  long unfinished_ = -1;  // the worker whose record the earlier process was consuming; -1: none
  std::unique_ptr<LookUpPort> look_ups_;  // null: none are answered
  std::vector<std::uint32_t> looked_up_;  // rows of a look-up
};

}  // namespace mpips
