#include <algorithm>
#include <cstring>
#include <string>

#include "ring/checksum.hpp"
#include "server/server_core.hpp"

// The arrival of a record: whether all of it is there, and whether it is one that this server
// expects.
namespace mpips {

// Return true if the record's stamp is there. Stamps are compared for equality only. A stamp that
// is neither the expected one nor that of the slot's previous record may be half of a remote store;
// if it stays, it is a gap.
bool ServerCore::stamped(std::size_t worker, std::uint64_t sequence) {
  Ring& ring = rings_[worker];
  const std::uint64_t expected = sequence + 1;
  const std::uint64_t stamp = load_acquire(ring.box.stamp(sequence));
  if (stamp == expected) return true;
  follow_hint(&ring, sequence);
  const std::uint64_t n_slots = ring.box.geometry.n_slots;
  if (stamp == (expected > n_slots ? expected - n_slots : 0)) return false;
  if (patience_spent(&ring))
    violation(worker, "a gap: record " + std::to_string(stamp - 1) + " stands where record " +
                          std::to_string(sequence) + " was expected");
  return false;
}

void ServerCore::follow_hint(Ring* ring, std::uint64_t sequence) noexcept {
  const std::uint64_t word = load_relaxed(ring->box.hint(sequence));
  if (!hint_is_of(word, sequence)) return;
  const std::size_t written =
      std::min<std::size_t>(word & 0xffffffffU, ring->box.geometry.payload_capacity());
  const std::uint8_t* payload = ring->box.slot(sequence) + sizeof(RecordHeader);
  for (; ring->fetched < written; ring->fetched += line_bytes)
    __builtin_prefetch(payload + ring->fetched);
}

// Workers read values of dense tables in their places, so one worker that is far decides. No worker
// reads those of a replica.
void ServerCore::note_distance(Ring* ring, bool far) noexcept {
  if (ring->far == far || copy_) return;
  ring->far = far;
  const bool any = std::any_of(rings_.begin(), rings_.end(), [](const Ring& r) { return r.far; });
  for (Table& t : tables_)
    if (t.shard != nullptr) t.shard->set_far(any);
}

bool ServerCore::patience_spent(Ring* ring) {
  const double now = now_s();
  if (ring->bad_since == 0.0) ring->bad_since = now;
  ++counters_.retries;
  return now - ring->bad_since > patience_s_;
}

// Return false if the record is not complete (yet) and must be read again. A remote record is sent
// without a flush between it and its stamp, so the stamp may be seen first, beside the slot's
// previous record or half of the new one. Sequence and checksums show that. A record that stays
// like that is an error.
bool ServerCore::check(std::size_t worker, std::uint64_t sequence, const RecordHeader& h,
                       const std::uint8_t* payload) {
  Ring& ring = rings_[worker];
  const bool sized =
      h.magic == record_magic && h.payload_bytes <= ring.box.geometry.payload_capacity();
  // Require zero words if there are no checksums, so that a damaged flag cannot disable the check.
  const bool checked = (h.flags & flag_checksum) != 0;
  const bool whole = sized && h.header_checksum == (checked ? header_checksum(h) : 0) &&
                     h.payload_checksum == (checked ? checksum(payload, h.payload_bytes) : 0) &&
                     ((h.flags & flag_area) == 0 || piece_is_whole(worker, h, payload));
  if (!whole || h.worker != worker || h.sequence != sequence) {
    if (!patience_spent(&ring)) return false;
    if (!whole)
      violation(worker, "record " + std::to_string(sequence) +
                            " is damaged: its checksum or magic number does not match");
    violation(worker, "a record with number " + std::to_string(h.sequence) + " of worker " +
                          std::to_string(h.worker) + " where number " + std::to_string(sequence) +
                          " was expected");
  }
  ring.bad_since = 0.0;
  if (h.version != memory_format)
    violation(worker, "a record of format version " + std::to_string(h.version) +
                          ", expected version " + std::to_string(memory_format));
  if (h.generation != generation_ && (h.sequence >= ring.inherited || h.generation > generation_))
    violation(worker, "a record of generation " + std::to_string(h.generation) +
                          ", this job is generation " + std::to_string(generation_));
  return true;
}

// Return true if the segment of a record with flag_area matches its checksum. Only the first look
// at a record that must wait for its clock reads the segment. The result is stored with the
// record's own sequence, because the slot's previous record may still be in the slot. A segment
// outside the rendezvous buffer is not read here: `parse_area` refuses it.
bool ServerCore::piece_is_whole(std::size_t worker, const RecordHeader& h,
                                const std::uint8_t* payload) {
  Ring& ring = rings_[worker];
  AreaPayload where;
  if ((h.flags & flag_arrived) != 0) return true;
  if (h.payload_bytes != sizeof where || ring.verified == h.sequence + 1) return true;
  std::memcpy(&where, payload, sizeof where);
  const auto w = static_cast<std::uint32_t>(worker);
  const std::size_t bytes = h.count * sizeof(float), size = layout_.area_bytes(w);
  if (where.offset > size || bytes > size - where.offset) return true;
  if (area_checksum(region_ + layout_.area(w) + where.offset, bytes) != where.checksum)
    return false;
  ring.verified = h.sequence + 1;
  return true;
}

// Check that a record is not of a clock that its worker has ended. A worker that goes on after a
// warm restart repeats a clock that it has ended here if another server lacks the tick. Its pushes
// and ticks are not written again (RingWriter::resume), but its pulls are. Pulls change nothing, so
// they may be of any clock.
void ServerCore::check_clock(std::size_t worker, const RecordHeader& h) const {
  const bool pulls = static_cast<RecordKind>(h.kind) == RecordKind::pull_rows;
  if (pulls && rings_[worker].inherited != 0) return;
  if (clocks_.finished(worker)) violation(worker, "a record after it had finished");
  const std::uint64_t clock = clocks_.clock(worker);
  if (h.clock < clock)
    violation(worker, "a record of clock " + std::to_string(h.clock) +
                          " after it had ended clock " + std::to_string(clock - 1));
}

}  // namespace mpips
