#include <cstring>
#include <utility>

#include "server/embedding_shard.hpp"
#include "server/server_core.hpp"

// A server that follows the recorded order of another run; record/recorded_order.hpp has the order
// and record/recorded_pulls.hpp the pulls of dense tables.
//
// The server consumes the records of all rings in one recorded order, so every update, every answer
// to a pull of rows and every decision is that of the recorded run. A record that is not the next
// one stays in its ring. Records of cuts are in no order: the worker writes its position there. A
// replay takes a checkpoint only at the end of its order, when nothing else is to be consumed.
namespace mpips {

std::size_t ServerCore::pass_recorded(double end) {
  std::size_t consumed = 0;
  for (std::size_t w = 0; w < rings_.size(); ++w) {
    Ring& ring = rings_[w];
    // The order may need records of other workers first, which wait for what this one still writes.
    if (ring.deferred.size() == ring.box.geometry.n_slots) let_go(w);
    compare_arrived(w);
    RecordHeader header;
    if (!stamped(w, ring.at())) continue;
    std::memcpy(&header, ring.box.slot(ring.at()), sizeof header);
    if (static_cast<RecordKind>(header.kind) == RecordKind::cut) consumed += consume_one(w) ? 1 : 0;
  }
  while (!reached_break() && recorded_->next() != nullptr &&
         consume_one(recorded_->next()->worker)) {
    ++consumed;
    if (end != 0.0 && now_s() >= end) break;
  }
  counters_.records += consumed;
  return consumed;
}

std::optional<std::size_t> ServerCore::reached_break() const {
  if (recorded_ == nullptr) return std::nullopt;
  const std::vector<ReplayBreak>& breaks = recorded_->breaks();
  for (std::size_t i = 0; i < breaks.size(); ++i) {
    const ReplayBreak& at = breaks[i];
    bool reached = true;
    if (at.table) reached = steps(*at.table) >= at.updates;
    for (std::size_t w = 0; w < at.clocks.size(); ++w)
      reached = reached && (clocks_.finished(w) || clocks_.clock(w) >= at.clocks[w]);
    if (reached) return i;
  }
  return std::nullopt;
}

// Compare what has arrived in a worker's ring with the recorded run. A record is compared once,
// before it is consumed. A worker that goes on behind an early end of the order is not compared.
void ServerCore::compare_arrived(std::size_t worker) {
  const Ring& ring = rings_[worker];
  RecordedOrder::Arriving& arriving = recorded_->arriving(worker);
  std::uint64_t& q = arriving.sequence;
  for (; q < ring.next + ring.box.geometry.n_slots; ++q) {
    if (arriving.over && recorded_->ends_early()) return;
    if (load_acquire(ring.box.stamp(q)) != q + 1) return;
    RecordHeader h;
    std::memcpy(&h, ring.box.slot(q), sizeof h);
    if (static_cast<RecordKind>(h.kind) == RecordKind::cut) continue;
    const auto [bytes, n] = pushed_bytes(worker, h, ring.box.slot(q) + sizeof h);
    // The stamp orders the worker's reads before this record.
    gate_->require(worker, arriving.n_compared, recorded_->described(h));
    recorded_->compare(worker, h, bytes, n);
  }
}

// Return true if a worker's record may be consumed now, with the staleness that it had.
bool ServerCore::may_repeat(std::size_t worker, RecordHeader* h) {
  if (static_cast<RecordKind>(h->kind) == RecordKind::cut) return true;
  compare_arrived(worker);
  const OrderEntry& next = *recorded_->next();
  if (!is_judged(next.outcome)) return true;
  const Table& t = tables_.at(h->table);
  if (next.writes() && t.embedding == nullptr && !gate_->may_write(h->table)) return false;
  // A pull sets the base when its reply is copied, so it depends on time which base a push has.
  h->base_version = t.version - std::min(next.staleness, t.version);
  return true;
}

// Return where the payload of a push lies: in its slot or in the worker's staging memory.
std::pair<const std::uint8_t*, std::size_t> ServerCore::pushed_bytes(
    std::size_t worker, const RecordHeader& h, const std::uint8_t* payload) const {
  if (!is_push(static_cast<RecordKind>(h.kind))) return {nullptr, 0};
  if ((h.flags & flag_staged) == 0) return {payload, h.payload_bytes};
  StagedPayload where;
  std::memcpy(&where, payload, sizeof where);
  const StagingArea& area = staging_[worker];
  const std::size_t bytes = h.count * sizeof(float);
  if (h.generation != generation_ || where.offset > area.bytes || bytes > area.bytes - where.offset)
    return {payload, 0};
  return {area.data + where.offset, bytes};
}

}  // namespace mpips
