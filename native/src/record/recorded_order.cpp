#include "record/recorded_order.hpp"

#include <algorithm>
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

std::string described(const std::vector<std::string>& names, RecordKind kind, std::size_t table,
                      std::uint64_t clock) {
  std::string text = name_of(kind);
  if (has_table(kind)) {
    text += table < names.size() ? "'" + names[table] + "'" : std::to_string(table);
  }
  return text + " at clock " + std::to_string(clock);
}

OrderReader::OrderReader(const std::vector<std::uint8_t>& bytes, std::size_t n_workers,
                         std::size_t n_tables, const Stops& stops)
    : reader_(bytes.data(), bytes.size()), n_tables_(n_tables), stops_(stops), places_(n_workers) {
  stops_.resize(n_workers, no_stop);
}

bool OrderReader::take(OrderEntry* entry) {
  while (!reader_.done()) {
    const std::uint8_t head = reader_.take_byte();
    const std::size_t worker = reader_.take_index(places_.size(), "worker");
    OrderPlace& place = places_[worker];
    if (head == entry_jump) {
      place.sequence = reader_.take();
      place.clock = reader_.take();
      continue;
    }
    *entry = {};
    entry->worker = worker;
    entry->kind = static_cast<RecordKind>(head & 0xf);
    entry->outcome = static_cast<Outcome>(head >> 4);
    entry->sequence = place.sequence;
    entry->clock = place.clock;
    if (entry->kind < RecordKind::push_dense || entry->kind > RecordKind::store ||
        entry->outcome > Outcome::segment)
      throw RecordDifference("a file of the record has an entry of the unknown kind " +
                             std::to_string(head));
    if (has_table(entry->kind))
      entry->table = static_cast<std::uint16_t>(reader_.take_index(n_tables_, "table"));
    if (is_push(entry->kind)) {
      if (is_judged(entry->outcome)) entry->staleness = reader_.take();
      entry->digest = reader_.take_byte();
    }
    place.pass(place.sequence, place.clock, entry->kind);
    if (entry->clock < stops_[worker]) return true;
  }
  return false;
}

std::uint64_t place_without_cuts(const std::vector<std::uint64_t>& cuts, std::uint64_t sequence) {
  const auto before = std::lower_bound(cuts.begin(), cuts.end(), sequence);
  return sequence - static_cast<std::uint64_t>(before - cuts.begin());
}

WorkerOrder records_of(const std::vector<std::uint8_t>& bytes, std::size_t worker,
                       std::size_t n_workers, std::size_t n_tables, const Stops& stops) {
  OrderReader reader(bytes, n_workers, n_tables, stops);
  WorkerOrder found;
  OrderEntry entry;
  while (reader.take(&entry)) {
    if (entry.worker != worker) continue;
    if (entry.kind == RecordKind::cut)
      found.cuts.push_back(entry.sequence);
    else
      found.entries.push_back(entry);
  }
  return found;
}

RecordedOrder::RecordedOrder(std::vector<std::uint8_t> bytes, std::size_t n_workers,
                             std::vector<std::string> names, Stops stops)
    : bytes_(std::move(bytes)),
      names_(std::move(names)),
      ends_early_(!stops.empty()),
      reader_(bytes_, n_workers, names_.size(), stops),
      cuts_(n_workers) {
  OrderReader all = reader_;
  for (OrderEntry entry; all.take(&entry);)
    if (entry.kind == RecordKind::cut) cuts_[entry.worker].push_back(entry.sequence);
  for (std::size_t w = 0; w < n_workers; ++w) {
    workers_.push_back(Worker{reader_});
    find_next_of(w);
  }
  find_next();
}

void RecordedOrder::find_next() {
  do {
    over_ = !reader_.take(&next_);
  } while (!over_ && next_.kind == RecordKind::cut);
}

void RecordedOrder::find_next_of(std::size_t worker) {
  Worker& w = workers_[worker];
  do {
    w.arriving.over = !w.reader.take(&w.next);
  } while (!w.arriving.over && (w.next.worker != worker || w.next.kind == RecordKind::cut));
}

void RecordedOrder::compare(std::size_t worker, const RecordHeader& h, const std::uint8_t* payload,
                            std::size_t payload_bytes) {
  Worker& w = workers_[worker];
  const OrderEntry& next = w.next;
  const auto kind = static_cast<RecordKind>(h.kind);
  const std::string who = "worker " + std::to_string(worker) + " sends ";
  if (w.arriving.over)
    throw RecordDifference(who + described(h) + " after the end of the recorded run");
  const bool same_table = !has_table(kind) || h.table == next.table;
  if (kind != next.kind || !same_table || h.clock != next.clock)
    throw RecordDifference(who + described(h) + " where the recorded run has " +
                           mpips::described(names_, next.kind, next.table, next.clock));
  if (is_push(kind) && w.digest.add(payload, payload_bytes) != next.digest)
    throw RecordDifference(who + described(h) +
                           " with other keys or values than in the recorded run: the program, its "
                           "data or its random numbers differ");
  ++w.arriving.n_compared;
  find_next_of(worker);
}

void RecordedOrder::pass(Outcome outcome) {
  if (outcome != next_.outcome)
    throw RecordDifference("the server decided otherwise on " +
                           mpips::described(names_, next_.kind, next_.table, next_.clock) +
                           " of worker " + std::to_string(next_.worker) + ": outcome " +
                           std::to_string(static_cast<int>(outcome)) + ", recorded " +
                           std::to_string(static_cast<int>(next_.outcome)));
  ++consumed_;
  find_next();
}

}  // namespace mpips
