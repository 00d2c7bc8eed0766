#include <algorithm>
#include <cstring>

#include "server/server_core.hpp"

// Partners: a second server core in a process on another node, the copy, consumes the same records.
//
// The copy starts from the same bytes (region, journal, growable segments) and has rings of the
// same geometry, so record n of a worker stands in the same slot there, with the same header. The
// server hands out the records of each ring in order (`outgoing`), whole and checked; somebody
// carries them; the copy puts them into its ring (`accept`), as the worker would have: payload,
// then stamp (release). Nothing orders the rings of different workers among each other. Under BSP
// that changes nothing: sums go by worker and clock. Under SSP and ASP the copy applies updates in
// another order, which is another legal order of the same updates. Whether a record may be consumed
// depends only on records that are there, in the copy as here, so all that this server consumes the
// copy can consume without waiting for anybody: the reasons why rings cannot deadlock hold there as
// well.
//
// Gate. A record is consumed, and so acknowledged, only below `limit` of its ring.
//   bound = 0 (sync): limit = received: what is acknowledged has arrived at the partner.
//   bound > 0 (lag):  limit = min(sent, received + bound): at most `bound` records of a worker are
//   acknowledged and may be lost with this server.
// In both a record is copied out before it is consumed, so before its slot is written again.
//
// Ticks are not held at the gate: they acknowledge nothing. A clock that is closed here and not
// there is closed there when the worker ticks again, on the same sums, for its pushes have arrived
// before its tick was written (sync, BSP: the worker waits for `received`); and the worker does not
// tick the next clock before this tick has arrived as well.
//
// Room. The worker writes record n when n - applied < n_slots, here. The copy may have consumed
// less: a record is handed out when n < its own count of consumed records (`room`) + n_slots.
// Numbers of an answer may be old; they only grow, so an old one allows less than is possible.
//
// One thread calls all this and `drain`; the words of a ring that concern the partner are its own.
// The worker reads `received` (one writer, release) to know, before it ticks, that its pushes are
// safe; see mpips/recovery/replica.py.
namespace mpips {
namespace {

std::size_t packed(std::size_t payload_bytes) noexcept {
  return sizeof(RecordHeader) + round_up(payload_bytes, line_bytes);
}

}  // namespace

// The copy has what is in the rings now.
void ServerCore::begin_partnership(std::uint64_t bound) {
  partnered_ = true;
  lag_bound_ = bound;
  for (Ring& ring : rings_) {
    ring.sent = ring.received = std::max(ring.inherited, ring.next);
    ring.room = ring.next;
    set_limit(&ring);
    publish(&ring.box.ack->received, ring.received);
  }
}

void ServerCore::set_limit(Ring* ring) const noexcept {
  ring->limit =
      lag_bound_ == 0 ? ring->received : std::min(ring->sent, ring->received + lag_bound_);
}

// A tick that is handed out, and so known to be whole.
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

// Copies records that are whole and not handed out yet; returns the bytes taken. A batch is a
// sequence of records, each a header and its payload in whole lines. Rings take turns in being
// first, so that none is left out while batches are full.
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
    set_limit(&ring);
  }
  first_out_ = (first_out_ + 1) % n;
  partner_counters_.bytes += used;
  return used;
}

// What the partner says: records of the worker that have arrived there, and that it has consumed.
void ServerCore::partner_has(std::size_t worker, std::uint64_t arrived, std::uint64_t applied) {
  Ring& ring = rings_.at(worker);
  if (arrived > ring.sent || applied > arrived || arrived < ring.received || applied < ring.room)
    throw ProtocolViolation("the partner says of worker " + std::to_string(worker) + " that " +
                            std::to_string(arrived) + " records have arrived and " +
                            std::to_string(applied) + " are consumed, which cannot be");
  const std::uint64_t lag = ring.next - std::min(ring.next, ring.received);
  partner_counters_.greatest_lag = std::max(partner_counters_.greatest_lag, lag);
  ring.received = arrived;
  ring.room = applied;
  set_limit(&ring);
  publish(&ring.box.ack->received, ring.received);
}

std::uint64_t ServerCore::partner_lag() const noexcept {
  std::uint64_t lag = 0;
  for (const Ring& ring : rings_)
    lag = std::max(lag, ring.next - std::min(ring.next, ring.received));
  return lag;
}

// Pulls are not answered and cuts hold nothing here.
void ServerCore::become_copy() {
  copy_ = true;
  released_cut_ = ~std::uint64_t{0};
  for (Ring& ring : rings_) ring.arrived = std::max(ring.inherited, ring.next);
}

// Puts the records of a batch into the rings. Each is checked in full when it is consumed.
void ServerCore::accept(const std::uint8_t* batch, std::size_t bytes) {
  while (bytes != 0) {
    RecordHeader h;
    if (bytes < sizeof h) throw ProtocolViolation("a partner sent half a record");
    std::memcpy(&h, batch, sizeof h);
    const std::size_t taken = packed(h.payload_bytes);
    if (h.magic != record_magic || h.worker >= rings_.size() || taken > bytes)
      throw ProtocolViolation("a partner sent what is no record");
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
