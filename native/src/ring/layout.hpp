#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "ring/codec.hpp"
#include "shm/memory_format.hpp"
#include "shm/memory_order.hpp"

// Layout of a server's region. It is pure arithmetic: every rank computes the same offsets from the
// same numbers, so the layout is never sent.
//
//   header | awaited | clocks[worker] | heads[table] | (mailbox, area)[worker] ...
//   | versions of blocks[dense shard] ... | dense shards ...
//
// Workers may write everything up to `tables_offset` (each worker only its own mailbox and area).
// What follows is written by the server alone, and workers of the same node map it read-only. The
// area is the rendezvous buffer of a worker on another node: large dense updates are put there, and
// the worker's records point to them. Other workers have none.
namespace mpips {

constexpr std::uint64_t region_magic = 0x3153504950534d31ULL;
constexpr std::uint16_t record_magic = 0x504dU;
constexpr std::size_t line_bytes = 64;
constexpr std::size_t line_floats = line_bytes / sizeof(float);
constexpr std::size_t page_bytes = 4096;
// A stamp lies this far before its record. So one put carries both, and processors that fetch lines
// in pairs do not fetch the record when the server reads the stamp.
constexpr std::size_t stamp_bytes = 2 * line_bytes;
constexpr std::size_t block_floats = 16384;  // one version word guards 64 KiB of values
constexpr std::uint64_t finished_clock = ~std::uint64_t{0};

inline std::size_t round_up(std::size_t n, std::size_t unit) noexcept {
  return (n + unit - 1) / unit * unit;
}

enum class RecordKind : std::uint8_t {
  push_dense = 1,
  push_rows = 2,
  pull_rows = 3,
  tick = 4,
  finish = 5,
  cut = 6,        // a worker's place in a checkpoint; see server/server_snapshot.cpp
  configure = 7,  // new hyperparameters of a table's rule; see server/server_configure.cpp
  store = 8,      // values or state of a replicated table; see server/server_store.cpp
};

enum RecordFlags : std::uint16_t {
  flag_first = 1,     // first segment of a push
  flag_last = 2,      // last segment of a push: the push is complete
  flag_checksum = 4,  // both checksums are set
  flag_base = 8,      // the payload also has the values that the update was computed on
  flag_staged =
      16,          // the payload is a StagedPayload: the update lies in the worker's staging memory
  flag_fits = 32,  // all records of this push fit into the ring at the same time
  flag_area = 64,  // the payload is an AreaPayload: the update lies in the rendezvous buffer
  flag_arrived = 128,  // with flag_area: the segment was there before this record was sent
  flag_closes = 256,   // with flag_last: the worker's last push to this table in this clock
  flag_changes = 512,  // a pull: which rows has a version after base_version changed; see answer
  // A pull: the payload is a PlacesPayload. No launch answers the pulls of an earlier one, so this
  // is no part of the memory's format.
  flag_places = 1024,
  // The worker has measured that its core is far from the server's (shm/store_choice.hpp): the
  // server had better write past the caches what the worker reads.
  flag_far = 2048,
};

struct RecordHeader {
  std::uint16_t magic;
  std::uint8_t version;
  std::uint8_t kind;
  std::uint16_t flags;
  // in a store record 0 for values, else one more than the number of the state; in a push the codec
  // of its values, and in a pull that of the reply; see codec_word
  std::uint16_t slot;
  std::uint32_t generation;
  std::uint16_t worker;
  std::uint16_t table;
  std::uint64_t sequence;
  // version of the values; in a cut record the clock that its text describes; in a store record the
  // number of updates of the table; in a tick the clock of the run at which a switch is that was
  // decided on, 0: none
  std::uint64_t base_version;
  std::uint64_t clock;
  // first element or row of this segment in its push; in a cut record its number; in a configure
  // record the number of changes of this table that the worker made in this clock before
  std::uint64_t offset;
  // elements or rows in this segment; in a tick the worker's own time in the clock, microseconds,
  // 0: unknown
  std::uint32_t count;
  std::uint32_t payload_bytes;
  std::uint32_t header_checksum;
  std::uint32_t payload_checksum;
};
static_assert(sizeof(RecordHeader) == line_bytes);

// Return the bytes that a record brings to the server, wherever they lie: values and base values of
// a dense push without a codec, otherwise the payload.
inline std::uint64_t carried_bytes(const RecordHeader& h) noexcept {
  if (static_cast<RecordKind>(h.kind) != RecordKind::push_dense || h.slot != 0)
    return h.payload_bytes;
  return std::uint64_t{h.count} * sizeof(float) * ((h.flags & flag_base) != 0 ? 2 : 1);
}

struct StagedPayload {
  std::uint64_t offset;       // bytes into the staging memory
  std::uint64_t base_offset;  // bytes; all ones: there are no base values
};

// A segment that lies in the worker's rendezvous buffer in the server's region. A network may bring
// the record before the segment, so the server consumes the record once the segment has this
// checksum. With flag_arrived there is no checksum: the worker has waited (by a flush) until the
// segment was there.
struct AreaPayload {
  std::uint64_t offset;    // bytes into the buffer
  std::uint64_t checksum;  // XXH3-64 of the segment; 0 with flag_arrived
};

// A pull of rows by their places in the shard instead of their keys: rows [first, first + count) as
// far as the shard has them, of each the floats [from, from + n_floats) of values, state and step
// count, without a codec. With n_floats = 0: their keys. A row keeps its place. The reply's version
// is the number of rows in the shard, so the worker knows how many rows the reply has.
struct PlacesPayload {
  std::uint64_t first;
  std::uint32_t from;
  std::uint32_t n_floats;

  // Return the bytes of each row in the reply.
  std::size_t row_bytes() const noexcept {
    return n_floats == 0 ? sizeof(std::int64_t) : n_floats * sizeof(float);
  }
};

// A pull of changes (flag_places and flag_changes): of the rows from the place `at.first` on those
// that have changed after version `since`, at most `count` of them; with `at.from` = removed_rows
// the keys of rows that have left the table, from that number of a removal on. The reply has a
// ChangesHead, and as many entries as its version says: a key and its floats, without gaps.
struct ChangesPayload {
  PlacesPayload at;
  std::uint64_t since;

  static constexpr std::uint32_t removed_rows = ~std::uint32_t{0};
  static constexpr std::uint64_t all_rows = ~std::uint64_t{0};  // as `since`
  std::size_t entry_bytes() const noexcept {
    return sizeof(std::int64_t) + at.n_floats * sizeof(float);
  }
};

struct ChangesHead {
  std::uint64_t version;  // of the table
  std::uint64_t marks;    // number of the marks that the shard has; those of each process differ
  std::uint64_t known;    // changes after this version are known
  std::uint64_t next;     // where the next pull goes on
  std::uint64_t end;      // number of rows, or one more than the number of the newest removal
};

struct ReplyHeader {
  std::uint64_t sequence;
  std::uint64_t version;
  std::uint32_t count;
  std::uint32_t checksum;   // of header and rows; 0 if checksums are off
  std::uint64_t min_clock;  // lowest clock of all workers when the rows were read
  std::uint64_t pad[4];
};
static_assert(sizeof(ReplyHeader) == line_bytes);

// Acknowledgement line: written by the server, read by one worker. The results of the last records
// lie in the same cache line, so a worker that waits for its push reads one line.
constexpr std::size_t recent_results = 4;
struct AckLine {
  PairWord applied;  // number of consumed records, which is the next sequence expected
  std::uint64_t recent[recent_results];  // result words, by sequence modulo recent_results
  PairWord received;  // with a replica: number of records that have arrived there
};
static_assert(sizeof(AckLine) == line_bytes);

// Published state of a table: its version, the lowest clock of all workers, the number of updates
// that its rule has applied, in earlier launches as well, and the decision on a number that follows
// measurements (server/decision.hpp, server/delay_threshold.hpp). A server publishes the number of
// updates before the version that has the update. It publishes that number anew in each launch, so
// it is no part of the memory's format.
struct TableHead {
  PairWord version;
  PairWord min_clock;
  PairWord updates;
  PairWord decision;
};
static_assert(sizeof(TableHead) == line_bytes);

// The clock of one worker.
struct ClockLine {
  PairWord clock;
  std::uint64_t pad[6];
};
static_assert(sizeof(ClockLine) == line_bytes);

struct RegionHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t generation;
  std::uint64_t token[2];
  std::uint32_t server;
  std::uint32_t n_workers;
  std::uint32_t n_slots;
  std::uint32_t slot_bytes;
  std::uint64_t total_bytes;
  std::uint64_t pad;
};
static_assert(sizeof(RegionHeader) == line_bytes);

// BSP: the worker whose part of the current clock the server waits for.
struct AwaitedLine {
  PairWord worker;
  std::uint64_t pad[6];
};
static_assert(sizeof(AwaitedLine) == line_bytes);

// The server's decision on a record. It is the low byte of the record's result word. The next 24
// bits are the low bits of the sequence, so that a remote reader can tell a fresh word from the
// previous one in the same slot. The high half is the staleness.
enum class Outcome : std::uint8_t {
  none = 0,
  applied = 1,
  scaled = 2,
  compensated = 3,
  rejected = 4,
  late = 5,
  accumulated = 6,
  answered = 7,
  segment = 8,
};

inline std::uint64_t make_result(std::uint64_t sequence, Outcome outcome,
                                 std::uint64_t staleness) noexcept {
  const std::uint64_t clipped = staleness > 0xffffffffULL ? 0xffffffffULL : staleness;
  return static_cast<std::uint64_t>(outcome) | ((sequence & 0xffffff) << 8) | (clipped << 32);
}

inline bool result_is_of(std::uint64_t word, std::uint64_t sequence) noexcept {
  return (word & 0xff) != 0 && ((word >> 8) & 0xffffff) == (sequence & 0xffffff);
}

inline Outcome outcome_of(std::uint64_t word) noexcept { return static_cast<Outcome>(word & 0xff); }
inline std::uint64_t staleness_of(std::uint64_t word) noexcept { return word >> 32; }

// Return the hint for a record: the low half of its stamp above the number of payload bytes
// written.
inline std::uint64_t make_hint(std::uint64_t sequence, std::uint64_t bytes) noexcept {
  return ((sequence + 1) << 32) | bytes;
}
inline bool hint_is_of(std::uint64_t word, std::uint64_t sequence) noexcept {
  return word >> 32 == ((sequence + 1) & 0xffffffffU);
}

struct RingGeometry {
  std::uint32_t n_slots;
  std::uint32_t slot_bytes;  // bytes of header and payload of one record
  bool replies;              // whether each record slot has a reply slot, for pulls of rows

  std::size_t ack_offset() const noexcept { return 0; }
  std::size_t results_offset() const noexcept { return sizeof(AckLine); }
  // Bytes of acknowledgement and results, which the server writes and a remote worker reads as one
  // range.
  std::size_t answer_bytes() const noexcept {
    return results_offset() + round_up(n_slots * sizeof(std::uint64_t), line_bytes);
  }
  // Offsets of stamp and slot of record 0; those of the next record follow after `record_stride`.
  std::size_t stamps_offset() const noexcept { return round_up(answer_bytes(), page_bytes); }
  std::size_t slots_offset() const noexcept { return stamps_offset() + stamp_bytes; }
  std::size_t record_stride() const noexcept { return stamp_bytes + slot_bytes; }
  std::size_t replies_offset() const noexcept {
    return stamps_offset() + n_slots * record_stride();
  }
  std::size_t mailbox_bytes() const noexcept {
    return round_up(
        replies_offset() + (replies ? static_cast<std::size_t>(n_slots) * slot_bytes : 0),
        page_bytes);
  }
  std::size_t payload_capacity() const noexcept { return slot_bytes - sizeof(RecordHeader); }
};

// One worker's mailbox at one server: pointers into the region, or into a private copy of it.
struct Mailbox {
  AckLine* ack;
  std::uint64_t* results;
  std::uint8_t* stamps;
  std::uint8_t* slots;
  std::uint8_t* replies;
  RingGeometry geometry;

  Mailbox(std::uint8_t* base, const RingGeometry& g) noexcept
      : ack(reinterpret_cast<AckLine*>(base + g.ack_offset())),
        results(reinterpret_cast<std::uint64_t*>(base + g.results_offset())),
        stamps(base + g.stamps_offset()),
        slots(base + g.slots_offset()),
        replies(base + g.replies_offset()),
        geometry(g) {}

  std::uint64_t* stamp(std::uint64_t sequence) const noexcept {
    return reinterpret_cast<std::uint64_t*>(stamps + place(sequence));
  }
  // The word beside the stamp: how many bytes of a long record a worker of this node has written so
  // far. The server only prefetches because of it; it never reads the record because of it.
  std::uint64_t* hint(std::uint64_t sequence) const noexcept { return stamp(sequence) + 1; }
  std::uint8_t* slot(std::uint64_t sequence) const noexcept { return slots + place(sequence); }
  std::uint8_t* reply(std::uint64_t sequence) const noexcept {
    return replies + (sequence % geometry.n_slots) * geometry.slot_bytes;
  }
  std::uint64_t* result(std::uint64_t sequence) const noexcept {
    return results + sequence % geometry.n_slots;
  }

 private:
  std::size_t place(std::uint64_t sequence) const noexcept {
    return (sequence % geometry.n_slots) * geometry.record_stride();
  }
};

struct DenseExtent {
  std::uint64_t n;        // float32 elements of the shard; 0: this server has no part of the table
  std::uint32_t n_state;  // float32 state values per element
  std::uint32_t table;    // index of the table
  Codec pull = {};        // codec of pulls; with one there is an image of the values
  std::size_t versions = 0, values = 0, state = 0, image = 0;  // offsets, filled in by Layout
  // With a biased codec of pulls: offsets of the common copy and of its head (ring/common_view.hpp)
  std::size_t common_head = 0, common = 0;

  bool has_common() const noexcept { return is_biased(pull.kind); }
  std::size_t difference() const noexcept { return common_head + line_bytes; }
  std::size_t difference_bytes() const noexcept { return most_difference_bytes(pull, n); }
  // Offset of a state of the rule, of n floats.
  std::size_t state_of(std::size_t slot) const {
    if (slot >= n_state) throw std::out_of_range("the rule has no state " + std::to_string(slot));
    return state + slot * round_up(n * sizeof(float), page_bytes);
  }
  // Bytes from the image of a block of `block_floats` values to that of the next one.
  std::size_t image_stride() const noexcept {
    return round_up(encoded_bytes(pull, 0, block_floats), line_bytes);
  }
};

// All mailboxes have the same size, and so have all areas. So a layout takes memory for the workers
// of the server's own node only, which have no area, and not for all workers of the job.
class Layout {
 public:
  // `area`: bytes of a worker's rendezvous buffer. `near`: workers that have none, ascending.
  Layout(std::uint32_t n_workers, std::uint32_t n_tables, RingGeometry geometry,
         std::vector<DenseExtent> dense, std::size_t area = 0, std::vector<std::uint32_t> near = {})
      : n_workers_(n_workers),
        n_tables_(n_tables),
        geometry_(geometry),
        dense_(std::move(dense)),
        area_(round_up(area, page_bytes)),
        near_(std::move(near)) {
    if (geometry_.n_slots < 2 || geometry_.slot_bytes < 256 || geometry_.slot_bytes % line_bytes)
      throw std::invalid_argument(
          "ring with " + std::to_string(geometry_.n_slots) + " slots of " +
          std::to_string(geometry_.slot_bytes) +
          " bytes: must have at least 2 slots of 256 bytes or more, in multiples of 64");
    for (std::size_t i = 0; i < near_.size(); ++i)
      if (near_[i] >= n_workers_ || (i != 0 && near_[i] <= near_[i - 1]))
        throw std::invalid_argument("workers of the server's node: must be ascending and exist");
    mailboxes_ = round_up(heads() + n_tables_ * sizeof(TableHead), page_bytes);
    tables_ = start_of(n_workers_);
    std::size_t end = tables_;
    // The versions of all tables are neighbours: one get reads those of many small ones.
    for (DenseExtent& d : dense_) {
      d.versions = end;
      end = round_up(d.versions + n_blocks(d.n) * sizeof(PairWord), line_bytes);
    }
    for (DenseExtent& d : dense_) {
      d.values = round_up(end, page_bytes);
      d.state = round_up(d.values + d.n * sizeof(float), page_bytes);
      end = d.state + d.n_state * round_up(d.n * sizeof(float), page_bytes);
      if (d.pull.kind == CodecKind::none) continue;
      if (d.has_common()) {
        d.common_head = round_up(end, page_bytes);
        d.common = round_up(d.difference() + d.difference_bytes(), page_bytes);
        end = d.common + d.n * sizeof(float);
        continue;
      }
      if (d.pull.block == 0 || block_floats % d.pull.block != 0)
        throw std::invalid_argument("codec of pulls with a block of " +
                                    std::to_string(d.pull.block) + " values: must divide " +
                                    std::to_string(block_floats));
      d.image = round_up(end, page_bytes);
      end = d.image + n_blocks(d.n) * d.image_stride();
    }
    total_ = round_up(end, page_bytes);
  }

  static std::size_t n_blocks(std::uint64_t n) noexcept {
    return (n + block_floats - 1) / block_floats;
  }

  std::uint32_t n_workers() const noexcept { return n_workers_; }
  std::uint32_t n_tables() const noexcept { return n_tables_; }
  const RingGeometry& geometry() const noexcept { return geometry_; }
  const std::vector<DenseExtent>& dense() const noexcept { return dense_; }
  std::size_t awaited() const noexcept { return sizeof(RegionHeader); }
  std::size_t clocks() const noexcept { return awaited() + sizeof(AwaitedLine); }
  std::size_t heads() const noexcept { return clocks() + n_workers_ * sizeof(ClockLine); }
  std::size_t head(std::uint32_t table) const noexcept {
    return heads() + table * sizeof(TableHead);
  }
  std::size_t mailbox(std::uint32_t worker) const { return start_of(checked(worker)); }
  // Offset of the worker's area: behind its mailbox, so that it writes one range.
  std::size_t area(std::uint32_t worker) const {
    return mailbox(worker) + geometry_.mailbox_bytes();
  }
  std::size_t area_bytes(std::uint32_t worker) const {
    return std::binary_search(near_.begin(), near_.end(), checked(worker)) ? 0 : area_;
  }
  std::size_t tables_offset() const noexcept { return tables_; }
  std::size_t total_bytes() const noexcept { return total_; }

  const DenseExtent& extent(std::uint32_t table) const {
    for (const DenseExtent& d : dense_)
      if (d.table == table) return d;
    throw std::out_of_range("table " + std::to_string(table) + " is not a dense table");
  }

 private:
  std::uint32_t checked(std::uint32_t worker) const {
    if (worker >= n_workers_)
      throw std::out_of_range("worker " + std::to_string(worker) + " of " +
                              std::to_string(n_workers_));
    return worker;
  }
  // Return where the mailbox of a worker starts; for `n_workers_` where the last one ends.
  std::size_t start_of(std::uint32_t worker) const noexcept {
    const auto before = std::lower_bound(near_.begin(), near_.end(), worker) - near_.begin();
    return mailboxes_ + worker * geometry_.mailbox_bytes() +
           (worker - static_cast<std::size_t>(before)) * area_;
  }

  std::uint32_t n_workers_;
  std::uint32_t n_tables_;
  RingGeometry geometry_;
  std::vector<DenseExtent> dense_;
  std::size_t area_;                                    // bytes, a multiple of the page size
  std::vector<std::uint32_t> near_;                     // ascending
  std::size_t mailboxes_ = 0, tables_ = 0, total_ = 0;  // offsets, and the size
};

}  // namespace mpips
