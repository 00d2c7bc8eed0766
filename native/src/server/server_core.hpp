#pragma once

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "journal/journal.hpp"
#include "ring/layout.hpp"
#include "ring/push_tag.hpp"
#include "server/clocks.hpp"
#include "server/shard.hpp"
#include "shm/backoff.hpp"

// A server's end of all rings: reads records, judges updates, applies them, publishes.
//
// Exactly once. Sequence numbers of a worker are contiguous; the server looks for number `next` in
// its slot and nowhere else. A repeat of an older record lands in a slot that is not looked at, or
// carries an older stamp, and changes nothing; a stamp from the future is a gap and an error.
//
// Order. For a record: results and replies, then `applied` (release). For a table: values, then its
// head, then `applied`, so that a worker that has seen its push applied reads values that hold it.
//
// Pushes in several records (segments). They change nothing until the last one is there. Segments
// of rows that all fit into the ring (flag_fits) stay in their slots till then: the server looks at
// them and goes on (`deferred`), and applies and consumes all of them when it has seen the last;
// copying them to a place of their own would cost more than applying them. Nobody writes a slot
// before it is consumed. If anything but the next segment follows, or the ring is full of them,
// they are copied and consumed after all (`let_go`), as other segments are at once: so nothing ever
// waits for a segment that the worker has no slot for.
//
// A large dense push of a worker on another node lies in the worker's area (flag_area), put there
// straight from the caller's array. Its record follows when the worker knows, by a flush, that all
// of it is there (flag_arrived); or, where the worker goes on at once, each piece is followed by a
// record with its checksum: the server takes such a record when its piece is whole, and so verifies
// behind the wire. With the last record it applies the update where it lies. Only this worker
// writes its area, and no part of it again before the record that ends the push there is consumed.
//
// A record that may not be consumed yet (a BSP update out of turn, a pull ahead of its clock) stays
// at the head of its ring. This cannot deadlock: at one clock a worker waits only for workers of
// lower index, and the lowest waits for nobody.
namespace mpips {

// What no correct peer sends.
class ProtocolViolation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct StagingArea {
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
};

// Where a worker goes on after recovery.
struct Position {
  std::uint64_t sequence = 0;  // of its first new record
  std::uint64_t clock = 0;
  bool finished = false;
  std::vector<std::uint64_t> taken;  // by table: complete pushes of this clock that are here
  std::uint64_t pushes = 0, tag = no_pushes;                   // of this clock, to all tables
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ended;  // (clock, tag) of clocks before it
  std::vector<std::string> texts;  // that describe where it stands, the newest last
};

struct ServerCounters {
  std::uint64_t records = 0;                  // consumed
  std::uint64_t retries = 0;                  // looks at a record that was not whole yet
  std::uint64_t clocks = 0;                   // closed
  std::uint64_t bytes_in = 0, bytes_out = 0;  // of records, and of the rows in answers
};

// Of a server with a partner. Lag: records of one worker that are consumed here and not known to
// have arrived there.
struct PartnerCounters {
  std::uint64_t records = 0, bytes = 0;  // handed out for the partner
  std::uint64_t greatest_lag = 0;
};

class EmbeddingShard;

class ServerCore {
 public:
  ServerCore(std::uint8_t* region, Layout layout, std::uint32_t generation, std::uint32_t backup,
             bool oversubscribed);

  void add_dense(std::uint16_t table, std::unique_ptr<Shard> shard, ConsistencyConfig consistency);
  void add_embedding(std::uint16_t table, std::unique_ptr<EmbeddingShard> shard,
                     ConsistencyConfig consistency);
  void add_absent(std::uint16_t table, ConsistencyConfig consistency);
  void set_staging(std::size_t worker, StagingArea area) { staging_.at(worker) = area; }
  // The staging memory of an earlier launch, for its records that are still in the ring.
  void set_old_staging(std::size_t worker, std::uint32_t generation, StagingArea area) {
    old_staging_[{worker, generation}] = area;
  }
  // The updates that a table had applied before this launch; optimizers count on from there.
  void set_steps_before(std::uint16_t table, std::uint64_t n) {
    tables_.at(table).steps_before = n;
  }
  std::uint64_t steps(std::uint16_t table) const {
    return tables_.at(table).steps_before + tables_.at(table).stats.updates;
  }
  void set_patience(double seconds) { patience_s_ = seconds; }
  void start();

  // A journal (server_recovery.cpp): set before any table is added. `begin_journal` writes down
  // what there is; from then on a kill is survived. `attach` takes over what an earlier process
  // left, instead of `start` and `begin_journal`; `finish_operation` follows, once the staging
  // memory that `old_staging` names has been set.
  void set_journal(std::unique_ptr<Journal> journal);
  Journal* journal() const noexcept { return journal_.get(); }
  void begin_journal();
  void attach();
  std::vector<std::pair<std::size_t, std::uint32_t>> old_staging();
  void finish_operation();
  const Position& position(std::size_t worker) const { return positions_.at(worker); }

  // Consumes what the rings hold until `max_s` have passed, or, with max_s = 0, until nothing more
  // can be consumed: that may be never while other threads or processes write. Returns the number
  // of records consumed.
  std::size_t drain(double max_s, std::uint32_t max_sleep_us);
  // The same without waiting: until nothing more can be consumed, but not longer than `max_s`.
  std::size_t consume(double max_s);

  // Cuts; see server_snapshot.cpp.
  void expect_cut(std::uint64_t id) { expected_cut_ = id; }
  bool cut_ready() const;
  bool holds_cut() const;
  void release_cut(std::uint64_t id);
  // Partners; see server_replica.cpp.
  void begin_partnership(std::uint64_t bound);
  std::size_t outgoing(std::uint8_t* batch, std::size_t max_bytes);
  bool has_outgoing() const noexcept;
  void partner_has(std::size_t worker, std::uint64_t arrived, std::uint64_t applied);
  const PartnerCounters& partner_counters() const { return partner_counters_; }
  std::uint64_t partner_lag() const noexcept;
  void become_copy();
  void accept(const std::uint8_t* batch, std::size_t bytes);
  std::uint64_t arrived(std::size_t worker) const { return rings_.at(worker).arrived; }
  // What the worker's last cut record holds; empty before.
  const std::string& position_text(std::size_t worker) const {
    return rings_.at(worker).position_text;
  }

  const TableStats& stats(std::uint16_t table) const { return tables_.at(table).stats; }
  const ServerCounters& counters() const { return counters_; }
  // Records that stand in the rings now.
  std::size_t queue() const noexcept;
  // Records of a worker that are consumed.
  std::uint64_t applied(std::size_t worker) const { return rings_.at(worker).next; }
  std::size_t n_workers() const { return rings_.size(); }
  std::uint64_t version(std::uint16_t table) const { return tables_.at(table).version; }
  const Clocks& clocks() const { return clocks_; }

 private:
  struct Table {
    std::unique_ptr<Shard> shard;  // null: nothing of the table lies here
    EmbeddingShard* embedding = nullptr;
    ConsistencyConfig consistency;
    std::uint64_t version = 0;       // pushes applied in this launch; BSP: clocks closed
    std::uint64_t steps_before = 0;  // updates before it, if it started from a checkpoint
    TableStats stats;
    // The number of the update to come, for the optimizer. A BSP clock without a push has a version
    // but makes no update. The journal restores the count with the other words.
    std::uint64_t next_step() const noexcept { return steps_before + stats.updates + 1; }
    TableHead* head = nullptr;
    std::vector<std::uint64_t> pending;  // backup workers: pushes of the clock in each buffer
  };
  struct Ring {
    Mailbox box;
    std::uint64_t next = 0;
    std::vector<Update> deferred = {};  // segments that were looked at and wait in their slots
    std::size_t fetched = 0;  // bytes of the record at the head that were asked for by its hint
    double bad_since = 0.0;   // when the record at the head first looked damaged
    bool open = false;        // the last push is not complete yet; what follows describes it
    std::uint16_t open_table = 0, open_flags = 0;
    std::uint64_t open_clock = 0;
    std::uint64_t open_end = 0;                 // where its next segment starts
    std::uint64_t open_digest = 0;              // of its keys so far
    std::uint64_t pushes = 0, tag = no_pushes;  // complete pushes of the worker's clock
    std::uint64_t held_cut = 0;      // the cut whose record stands at the head, unconsumed
    std::string position_text = {};  // the payload of the last cut record
    std::uint64_t inherited = 0;     // records below were written in an earlier launch
    std::uint64_t open_area = 0;     // flag_area: where it starts, bytes into the area
    std::uint64_t verified = 0;      // one more than the record whose piece was found whole
    // With a partner: numbers of records. None from `limit` on may be consumed yet.
    std::uint64_t limit = ~std::uint64_t{0};
    std::uint64_t sent = 0;      // handed out
    std::uint64_t received = 0;  // known to have arrived there
    std::uint64_t room = 0;      // for which it has slots
    std::uint64_t arrived = 0;   // of a copy: that are in this ring

    std::uint64_t at() const noexcept { return next + deferred.size(); }  // the record to look at
  };
  struct Verdict {
    bool consumed;  // with Outcome::none: looked at, it stays in its slot
    Outcome outcome;
    std::uint64_t staleness;
  };

  std::size_t pass(double end);
  bool consume_one(std::size_t worker);
  void acknowledge(Ring* ring, Outcome outcome, std::uint64_t staleness);
  void settle(Ring* ring, Outcome outcome, std::uint64_t staleness);
  bool stamped(std::size_t worker, std::uint64_t sequence);
  static void follow_hint(Ring* ring, std::uint64_t sequence) noexcept;
  bool patience_spent(Ring* ring);
  bool check(std::size_t worker, std::uint64_t sequence, const RecordHeader& header,
             const std::uint8_t* payload);
  void set_limit(Ring* ring) const noexcept;
  static bool is_free_tick(const Ring& ring) noexcept;
  bool piece_is_whole(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  void check_clock(std::size_t worker, const RecordHeader& header) const;
  void check_push(std::size_t worker, const RecordHeader& header) const;
  void check_segment(std::size_t worker, const RecordHeader& header) const;
  void check_nothing_open(std::size_t worker) const;
  Verdict handle(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  Verdict handle_push(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  Verdict handle_bsp(std::size_t worker, const RecordHeader& header, const Update& part);
  Verdict handle_pull(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  Verdict handle_tick(std::size_t worker, const RecordHeader& header);
  Verdict handle_cut(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload);
  Verdict handle_segment(std::size_t worker, const RecordHeader& header, const Update& part);
  Verdict apply_logged(std::size_t worker, const RecordHeader& header);
  void let_go(std::size_t worker);
  template <class Apply>
  Verdict judge(Table* table, const RecordHeader& header, bool has_base, Apply apply);
  Update parse_area(std::size_t worker, const RecordHeader& header,
                    const std::uint8_t* payload) const;
  Update parse(std::size_t worker, const RecordHeader& header, const std::uint8_t* payload) const;
  std::uint64_t discard_clock(std::size_t worker);
  void close_clock();
  void publish_clocks();
  void publish_clock(std::size_t worker);
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
  void put_pair(std::size_t table, std::size_t worker);
  void put_all();
  void note_push(Ring* ring, const RecordHeader& header, const Update& part) const;
  void take_words();
  void check_unfinished();
  void take_pair(std::size_t table, std::size_t worker);
  bool complete(std::size_t worker, std::uint64_t sequence, RecordHeader* header);
  void find_end(std::size_t worker);
  void cut_off(std::size_t worker);

  std::uint8_t* region_;
  Layout layout_;
  std::uint32_t generation_;
  double patience_s_ = 2.0;  // how long a record may look damaged before it is called so
  Backoff backoff_;
  Clocks clocks_;
  bool any_bsp_ = false;
  std::uint64_t expected_cut_ = 0, released_cut_ = 0;
  std::vector<Ring> rings_;
  std::size_t next_ring_ = 0;  // the ring at which the next pass begins
  std::vector<Table> tables_;
  std::vector<StagingArea> staging_;
  ServerCounters counters_;
  std::unique_ptr<Journal> journal_;
  std::vector<Position> positions_;
  std::map<std::pair<std::size_t, std::uint32_t>, StagingArea> old_staging_;
  bool partnered_ = false, copy_ = false;
  std::uint64_t lag_bound_ = 0;
  std::size_t first_out_ = 0;  // the ring at which `outgoing` begins
  PartnerCounters partner_counters_;
  long unfinished_ = -1;  // the worker whose record the process before was consuming
};

}  // namespace mpips
