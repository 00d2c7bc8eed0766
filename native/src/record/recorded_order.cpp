#include "record/recorded_order.hpp"

#include <utility>

namespace mpips {
namespace {

const char* name_of(RecordKind kind) {
  switch (kind) {
    case RecordKind::push_dense:
    case RecordKind::push_rows:
      return "a push to table ";
    case RecordKind::pull_rows:
      return "a pull of table ";
    case RecordKind::tick:
      return "the end of its clock";
    case RecordKind::finish:
      return "its end";
    case RecordKind::cut:
      return "a cut";
    case RecordKind::configure:
      return "a change of the optimizer of table ";
    case RecordKind::store:
      return "a store to table ";
  }
  return "a record of an unknown kind";
}

}  // namespace

RecordedOrder::RecordedOrder(std::vector<std::uint8_t> bytes, std::size_t n_workers,
                             std::vector<std::string> names)
    : bytes_(std::move(bytes)),
      reader_(bytes_.data(), bytes_.size()),
      names_(std::move(names)),
      places_(n_workers),
      digests_(n_workers) {
  find_next();
}

void RecordedOrder::find_next() {
  for (;;) {
    if (reader_.done()) {
      over_ = true;
      return;
    }
    const std::uint8_t head = reader_.take_byte();
    const std::size_t worker = reader_.take_index(places_.size(), "worker");
    OrderPlace& place = places_[worker];
    if (head == entry_jump) {
      place.sequence = reader_.take();
      place.clock = reader_.take();
      continue;
    }
    next_ = {};
    next_.worker = worker;
    next_.kind = static_cast<RecordKind>(head & 0xf);
    next_.outcome = static_cast<Outcome>(head >> 4);
    next_.clock = place.clock;
    if (next_.kind < RecordKind::push_dense || next_.kind > RecordKind::store ||
        next_.outcome > Outcome::segment)
      throw RecordDifference("a file of the record has an entry of the unknown kind " +
                             std::to_string(head));
    if (has_table(next_.kind))
      next_.table = static_cast<std::uint16_t>(reader_.take_index(names_.size(), "table"));
    if (is_push(next_.kind)) {
      if (is_judged(next_.outcome)) next_.staleness = reader_.take();
      next_.digest = reader_.take_byte();
    }
    place.pass(place.sequence, place.clock, next_.kind);
    if (next_.kind != RecordKind::cut) return;
  }
}

std::string RecordedOrder::described(RecordKind kind, std::size_t table,
                                     std::uint64_t clock) const {
  std::string text = name_of(kind);
  if (has_table(kind)) {
    text += table < names_.size() ? "'" + names_[table] + "'" : std::to_string(table);
  }
  return text + " at clock " + std::to_string(clock);
}

void RecordedOrder::check(const RecordHeader& h, const std::uint8_t* payload,
                          std::size_t payload_bytes) {
  const auto kind = static_cast<RecordKind>(h.kind);
  const std::string who = "worker " + std::to_string(h.worker) + " sends ";
  if (over_)
    throw RecordDifference(who + described(kind, h.table, h.clock) +
                           " after the end of the recorded run");
  const bool same_table = !has_table(kind) || h.table == next_.table;
  if (kind != next_.kind || !same_table || h.clock != next_.clock)
    throw RecordDifference(who + described(kind, h.table, h.clock) +
                           " where the recorded run has " +
                           described(next_.kind, next_.table, next_.clock));
  if (is_push(kind) && digests_[h.worker].add(payload, payload_bytes) != next_.digest)
    throw RecordDifference(who + described(kind, h.table, h.clock) +
                           " with other keys or values than in the recorded run: the program, its "
                           "data or its random numbers differ");
  is_checked_ = true;
}

void RecordedOrder::pass(Outcome outcome) {
  if (outcome != next_.outcome)
    throw RecordDifference("the server decided otherwise on " +
                           described(next_.kind, next_.table, next_.clock) + " of worker " +
                           std::to_string(next_.worker) + ": outcome " +
                           std::to_string(static_cast<int>(outcome)) + ", recorded " +
                           std::to_string(static_cast<int>(next_.outcome)));
  ++consumed_;
  is_checked_ = false;
  find_next();
}

}  // namespace mpips
