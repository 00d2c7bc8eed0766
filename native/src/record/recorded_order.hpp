#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "record/order_log.hpp"

// The recorded order of a server's records, which a replaying server follows.
namespace mpips {

struct OrderEntry {
  std::size_t worker;
  RecordKind kind;
  Outcome outcome;
  std::uint16_t table;  // 0 where the kind has none
  std::uint64_t sequence, clock;
  std::uint64_t staleness;  // of a judged push
  std::uint8_t digest;      // of a push

  // Return true if the record changed the values of its table when it was consumed.
  bool writes() const noexcept { return is_judged(outcome) && outcome != Outcome::rejected; }
};

// Return what an entry is, for errors. `names`: of the tables.
std::string described(const std::vector<std::string>& names, RecordKind kind, std::size_t table,
                      std::uint64_t clock);

// A record that a worker has written.
struct WrittenRecord {
  RecordKind kind;
  std::uint16_t table;
  std::uint64_t clock;
};

// By worker, the clock at which the replay ends; empty: it ends with the recorded run.
using Stops = std::vector<std::uint64_t>;
constexpr std::uint64_t no_stop = ~std::uint64_t{0};

// Reads the entries that an OrderLog has written, one after the other. It leaves out records from
// the workers' stops on. `bytes` must outlive it.
class OrderReader {
 public:
  OrderReader(const std::vector<std::uint8_t>& bytes, std::size_t n_workers, std::size_t n_tables,
              const Stops& stops);

  // Read the next entry; return false at the end. Throw RecordDifference if the file is damaged.
  bool take(OrderEntry* entry);

 private:
  VarintReader reader_;
  std::size_t n_tables_;
  Stops stops_;
  std::vector<OrderPlace> places_;
};

// The records of one worker at one server.
struct WorkerOrder {
  std::vector<OrderEntry> entries = {};  // without those of cuts
  std::vector<std::uint64_t> cuts = {};  // sequences of the records of cuts
};
// Return the number of a worker's records before a sequence, without those of cuts.
std::uint64_t place_without_cuts(const std::vector<std::uint64_t>& cuts, std::uint64_t sequence);

WorkerOrder records_of(const std::vector<std::uint8_t>& bytes, std::size_t worker,
                       std::size_t n_workers, std::size_t n_tables, const Stops& stops);

// A place in a replay where a server copies tables: the first one where it has made so many updates
// of a table, or where each worker has ended so many clocks.
struct ReplayBreak {
  std::optional<std::uint16_t> table;
  std::uint64_t updates = 0;               // of the table, from the beginning of the run
  std::vector<std::uint64_t> clocks = {};  // by worker, of this launch
};

class RecordedOrder {
 public:
  // `bytes`: what an OrderLog has written, all of it. `names`: of the tables.
  RecordedOrder(std::vector<std::uint8_t> bytes, std::size_t n_workers,
                std::vector<std::string> names, Stops stops);
  RecordedOrder(const RecordedOrder&) = delete;
  RecordedOrder& operator=(const RecordedOrder&) = delete;

  // Return the entry whose record is consumed next; null: the record of the run is over. Records of
  // cuts are left out: where a replay takes a checkpoint, its workers have nothing more to consume.
  const OrderEntry* next() const noexcept { return over_ ? nullptr : &next_; }
  std::uint64_t consumed() const noexcept { return consumed_; }
  // True if workers go on behind the end of the order, without effect.
  bool ends_early() const noexcept { return ends_early_; }
  // Return the sequences of a worker's records of cuts.
  const std::vector<std::uint64_t>& cuts(std::size_t worker) const { return cuts_.at(worker); }

  // Places where the server takes no further record until they are removed.
  const std::vector<ReplayBreak>& breaks() const noexcept { return breaks_; }
  void add_break(ReplayBreak at) { breaks_.push_back(std::move(at)); }
  void remove_break(std::size_t index) {
    breaks_.at(index);
    breaks_.erase(breaks_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // The records of one worker in its ring, which are compared as soon as they are there: a record
  // that differs is found although the order needs others first, which may wait for it.
  struct Arriving {
    std::uint64_t sequence = 0;    // in its ring, of the next record to compare
    std::uint64_t n_compared = 0;  // without records of cuts
    bool over = false;             // the recorded run has no more records of the worker
  };
  Arriving& arriving(std::size_t worker) { return workers_[worker].arriving; }
  // Compare a worker's next record, which belongs to no cut. Throw RecordDifference if the recorded
  // run has another one. `payload`: of a push.
  void compare(std::size_t worker, const RecordHeader& h, const std::uint8_t* payload,
               std::size_t payload_bytes);
  // Throw RecordDifference if the server decided otherwise on the next record, and go on.
  void pass(Outcome outcome);
  std::string described(const RecordHeader& h) const {
    return mpips::described(names_, static_cast<RecordKind>(h.kind), h.table, h.clock);
  }

 private:
  struct Worker {
    OrderReader reader;  // stands behind `next`
    OrderEntry next = {};
    PayloadDigest digest = {};
    Arriving arriving = {};
  };
  void find_next();
  void find_next_of(std::size_t worker);

  std::vector<std::uint8_t> bytes_;
  std::vector<std::string> names_;
  bool ends_early_;
  OrderReader reader_;
  std::vector<Worker> workers_;
  std::vector<std::vector<std::uint64_t>> cuts_;
  std::vector<ReplayBreak> breaks_;
  OrderEntry next_{};
  bool over_ = false;
  std::uint64_t consumed_ = 0;
};

}  // namespace mpips
