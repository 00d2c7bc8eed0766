#include <cstring>
#include <utility>

#include "server/embedding_shard.hpp"
#include "server/server_core.hpp"

// A server that follows the recorded order of another run; record/recorded_order.hpp has the order
// and record/recorded_pulls.hpp the pulls of dense tables.
//
// The server consumes the records of all rings in one recorded order, so every update, every answer
// to a pull of rows and every decision is that of the recorded run. A record that is not the next
// one stays in its ring. Records of cuts are in no order: the worker writes its position there, and
// no checkpoint is taken.
namespace mpips {

std::size_t ServerCore::pass_recorded(double end) {
  std::size_t consumed = 0;
  for (std::size_t w = 0; w < rings_.size(); ++w) {
    Ring& ring = rings_[w];
    // The order may need records of other workers first, which wait for what this one still writes.
    if (ring.deferred.size() == ring.box.geometry.n_slots) let_go(w);
    RecordHeader header;
    if (!stamped(w, ring.at())) continue;
    std::memcpy(&header, ring.box.slot(ring.at()), sizeof header);
    const bool is_cut = static_cast<RecordKind>(header.kind) == RecordKind::cut;
    // Behind the end of the recorded run any other record is a difference, which `check` reports.
    if (is_cut || recorded_->next() == nullptr) consumed += consume_one(w) ? 1 : 0;
  }
  while (recorded_->next() != nullptr && consume_one(recorded_->next()->worker)) {
    ++consumed;
    if (end != 0.0 && now_s() >= end) break;
  }
  counters_.records += consumed;
  return consumed;
}

// Return true if a worker's record may be consumed now, with the staleness that it had.
bool ServerCore::may_repeat(std::size_t worker, RecordHeader* h, const std::uint8_t* payload) {
  if (static_cast<RecordKind>(h->kind) == RecordKind::cut) return true;
  if (!recorded_->is_checked()) {
    const auto [bytes, n] = pushed_bytes(worker, *h, payload);
    recorded_->check(*h, bytes, n);
  }
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
