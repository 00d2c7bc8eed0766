#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "record/varint.hpp"
#include "ring/layout.hpp"

// The order in which a server consumes records, as it is recorded. Every value of a server is a
// function of its initial values and of this order.
//
// An entry is a byte (the kind below it, the outcome in its high half), the worker, and where the
// kind has them the table, the staleness that the server judged, and one byte of a digest of the
// payload. Sequence and clock are those that follow from the worker's entries before it; a jump
// entry gives them where they are others. One thread, the server's, writes and takes the bytes.
namespace mpips {

// Kinds of entries beyond those of records.
constexpr std::uint8_t entry_jump = 15;

// A digest of the payloads of one worker's pushes so far, of which an entry has the low byte. It
// reads both ends of each payload: the whole of it would cost as much as the update itself.
class PayloadDigest {
 public:
  static constexpr std::size_t end_bytes = 64;

  std::uint8_t add(const std::uint8_t* payload, std::size_t n) noexcept {
    state_ = XXH3_64bits_withSeed(payload, std::min(n, end_bytes), state_ ^ n);
    if (n > end_bytes) state_ ^= XXH3_64bits_withSeed(payload + n - end_bytes, end_bytes, state_);
    return static_cast<std::uint8_t>(state_);
  }

 private:
  std::uint64_t state_ = 0;
};

// Sequence and clock of a worker's next record.
struct OrderPlace {
  std::uint64_t sequence = 0, clock = 0;

  void pass(std::uint64_t at, std::uint64_t of, RecordKind kind) noexcept {
    sequence = at + 1;
    clock = kind == RecordKind::tick ? of + 1 : of;
  }
};

inline bool has_table(RecordKind kind) noexcept {
  return kind != RecordKind::tick && kind != RecordKind::finish && kind != RecordKind::cut;
}
inline bool is_push(RecordKind kind) noexcept {
  return kind == RecordKind::push_dense || kind == RecordKind::push_rows;
}
// Return true if the server judged the staleness of a push with this outcome.
inline bool is_judged(Outcome outcome) noexcept {
  return outcome == Outcome::applied || outcome == Outcome::scaled ||
         outcome == Outcome::compensated || outcome == Outcome::rejected;
}

class OrderLog {
 public:
  explicit OrderLog(std::size_t n_workers) : places_(n_workers), digests_(n_workers) {}

  // Add a consumed record. `payload`: of a push, where it lies.
  void add(const RecordHeader& h, Outcome outcome, std::uint64_t staleness,
           const std::uint8_t* payload, std::size_t payload_bytes) {
    const auto kind = static_cast<RecordKind>(h.kind);
    OrderPlace& place = places_[h.worker];
    if (place.sequence != h.sequence || place.clock != h.clock) {
      bytes_.push_back(entry_jump);
      put_varint(&bytes_, h.worker);
      put_varint(&bytes_, h.sequence);
      put_varint(&bytes_, h.clock);
    }
    place.pass(h.sequence, h.clock, kind);
    bytes_.push_back(static_cast<std::uint8_t>(h.kind | static_cast<unsigned>(outcome) << 4));
    put_varint(&bytes_, h.worker);
    if (has_table(kind)) put_varint(&bytes_, h.table);
    if (!is_push(kind)) return;
    if (is_judged(outcome)) put_varint(&bytes_, staleness);
    bytes_.push_back(digests_[h.worker].add(payload, payload_bytes));
  }

  std::size_t size() const noexcept { return bytes_.size(); }
  // Return the bytes since the last call.
  std::vector<std::uint8_t> take() {
    std::vector<std::uint8_t> taken;
    taken.reserve(bytes_.capacity());
    taken.swap(bytes_);
    return taken;
  }

 private:
  std::vector<std::uint8_t> bytes_;
  std::vector<OrderPlace> places_;
  std::vector<PayloadDigest> digests_;
};

}  // namespace mpips
