#include <algorithm>
#include <cstring>

#include "server/server_core.hpp"

// Replicas. The partner is a second server core, in a process on another node, that consumes the
// same records: it has the replica.
//
// The replica starts from the same bytes (region, journal, growable memory) and has rings of the
// same geometry, so record n of a worker is in the same slot there, with the same header. The
// server hands out the records of each ring in order (`outgoing`), complete and checked. The caller
// transfers them. The replica puts them into its ring (`accept`) as the worker would have done:
// payload, then stamp (release).
//
// Order. The rings of different workers are not ordered among each other. Under BSP that changes
// nothing, because sums are formed by worker and clock. Under SSP and ASP the replica applies
// updates in another order, which is another legal order of the same updates. Whether a record may
// be consumed depends only on records that are in the rings, in the replica as in the server. So
// the replica can consume everything that the server consumes without waiting for any other
// process, and the reasons why rings cannot deadlock are valid there as well.
//
// Gate. A record is consumed, and so acknowledged, only when the partner has it, below `received`
// of its ring. So what is acknowledged survives this server. A record is copied out before it is
// consumed, so before its slot is written again. Records that are in the ring and not consumed may
// be missing in the replica.
//
// Ticks are not held at the gate, because they acknowledge nothing. A clock may be closed here and
// not in the replica. The replica then closes it when the worker ticks again, with the same sums:
// the clock's pushes have arrived there before its tick was written (BSP: the worker waits for
// `received`). And the worker does not tick the next clock before this tick has arrived as
// well.
//
// Room. The worker writes record n when n - applied < n_slots, with `applied` of the server. The
// replica may have consumed fewer records. So a record is handed out only when n < `room` +
// n_slots, where `room` is the replica's own number of consumed records. The numbers in an answer
// of the partner may be old. They only grow, so an old number allows less than would be possible.
//
// One thread calls all these functions and `drain`, and it alone uses the words of a ring that
// concern the replica. The worker reads `received` (one writer, release) to learn, before it ticks,
// that its pushes are safe; see mpips/recovery/replica.py.
namespace mpips {
namespace {

std::size_t packed(std::size_t payload_bytes) noexcept {
  return sizeof(RecordHeader) + round_up(payload_bytes, line_bytes);
}

}  // namespace

// Begin to hand out records. The replica has those that are in the rings now.
void ServerCore::begin_partnership() {
  partnered_ = true;
  for (Ring& ring : rings_) {
    ring.sent = ring.received = std::max(ring.inherited, ring.next);
    ring.room = ring.next;
    ring.limit = ring.received;
    publish(&ring.box.ack->received, ring.received);
  }
}

// Return true if the next record is a tick that is handed out and therefore known to be complete.
bool ServerCore::is_free_tick(const Ring& ring) noexcept {
  const std::uint64_t at = ring.at();
  if (at >= ring.sent || at < ring.received) return false;
  std::uint8_t kind = 0;
  std::memcpy(&kind, ring.box.slot(at) + offsetof(RecordHeader, kind), sizeof kind);
  return kind == static_cast<std::uint8_t>(RecordKind::tick);
}

bool ServerCore::has_outgoing() const noexcept {
  return std::any_of(rings_.begin(), rings_.end(), [](const Ring& ring) {
    return ring.sent < ring.room + ring.box.geometry.n_slots &&
           load_acquire(ring.box.stamp(ring.sent)) == ring.sent + 1;
  });
}

// Copy records that are complete and not handed out yet; return the number of bytes. A batch is a
// sequence of records, each with its header and its payload in whole cache lines. Each batch begins
// with the next ring, so that no ring is left out while batches are full.
std::size_t ServerCore::outgoing(std::uint8_t* batch, std::size_t max_bytes) {
  std::size_t used = 0;
  const std::size_t n = rings_.size();
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t w = (first_out_ + i) % n;
    Ring& ring = rings_[w];
    while (ring.sent < ring.room + ring.box.geometry.n_slots && stamped(w, ring.sent)) {
      const std::uint8_t* slot = ring.box.slot(ring.sent);
      RecordHeader h;
      std::memcpy(&h, slot, sizeof h);
      if (!check(w, ring.sent, h, slot + sizeof h)) break;
      const std::size_t bytes = packed(h.payload_bytes);
      if (bytes > max_bytes - used) break;
      std::memcpy(batch + used, slot, sizeof h + h.payload_bytes);
      used += bytes;
      ++ring.sent;
      ++partner_counters_.records;
    }
  }
  first_out_ = (first_out_ + 1) % n;
  partner_counters_.bytes += used;
  return used;
}

// Take the partner's report: records of the worker that have arrived there, and that it has
// consumed.
void ServerCore::partner_has(std::size_t worker, std::uint64_t arrived, std::uint64_t applied) {
  Ring& ring = rings_.at(worker);
  if (arrived > ring.sent || applied > arrived || arrived < ring.received || applied < ring.room)
    throw ProtocolViolation("the partner reports for worker " + std::to_string(worker) + " that " +
                            std::to_string(arrived) + " records have arrived and " +
                            std::to_string(applied) + " are consumed, but " +
                            std::to_string(ring.sent) + " were sent, " +
                            std::to_string(ring.received) + " had arrived and " +
                            std::to_string(ring.room) + " were consumed before");
  ring.received = ring.limit = arrived;
  ring.room = applied;
  publish(&ring.box.ack->received, ring.received);
}

// Make this core a replica: it answers no pulls, and cuts hold no ring.
void ServerCore::become_copy() {
  copy_ = true;
  released_cut_ = ~std::uint64_t{0};
  for (Ring& ring : rings_) ring.arrived = std::max(ring.inherited, ring.next);
}

// Put the records of a batch into the rings. Each is checked in full when it is consumed.
void ServerCore::accept(const std::uint8_t* batch, std::size_t bytes) {
  while (bytes != 0) {
    RecordHeader h;
    if (bytes < sizeof h) throw ProtocolViolation("a partner sent half a record");
    std::memcpy(&h, batch, sizeof h);
    const std::size_t taken = packed(h.payload_bytes);
    if (h.magic != record_magic || h.worker >= rings_.size() || taken > bytes)
      throw ProtocolViolation("a partner sent bytes that are not a record");
    Ring& ring = rings_[h.worker];
    const RingGeometry& geometry = ring.box.geometry;
    if (h.sequence != ring.arrived || h.sequence >= ring.next + geometry.n_slots ||
        h.payload_bytes > geometry.payload_capacity())
      throw ProtocolViolation("a partner sent record " + std::to_string(h.sequence) +
                              " of worker " + std::to_string(h.worker) + " where number " +
                              std::to_string(ring.arrived) + " was expected");
    std::memcpy(ring.box.slot(h.sequence), batch, sizeof h + h.payload_bytes);
    fault::at(fault::Point::payload);
    store_release(ring.box.stamp(h.sequence), h.sequence + 1);
    fault::at(fault::Point::stamped);
    ++ring.arrived;
    batch += taken;
    bytes -= taken;
  }
}

}  // namespace mpips
