#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "server/embedding_shard.hpp"
#include "server/scale_shard.hpp"
#include "server/server_core.hpp"

// Pushes at a server: parse and check them, judge their staleness, apply them.
namespace mpips {

Update ServerCore::parse_area(std::size_t worker, const RecordHeader& h,
                              const std::uint8_t* payload) const {
  AreaPayload where;
  std::memcpy(&where, payload, sizeof where);
  const auto w = static_cast<std::uint32_t>(worker);
  const std::size_t bytes = h.count * sizeof(float), size = layout_.area_bytes(w);
  if (where.offset % sizeof(float) != 0 || where.offset > size || bytes > size - where.offset)
    violation(worker, "an update outside its rendezvous buffer");
  // Require that the whole push is contiguous, so that it can be applied in place.
  const std::uint64_t before = h.offset * sizeof(float);
  const bool first = (h.flags & flag_first) != 0;
  if (where.offset < before || (!first && where.offset - before != rings_[worker].open_area))
    violation(worker, "segments of a push out of order");
  Update part;
  part.offset = h.offset;
  part.count = h.count;
  part.values = reinterpret_cast<const float*>(region_ + layout_.area(w) + where.offset);
  return part;
}

Update ServerCore::parse(std::size_t worker, const RecordHeader& h,
                         const std::uint8_t* payload) const {
  if ((h.flags & flag_area) != 0) return parse_area(worker, h, payload);
  Update part;
  part.count = h.count;
  if ((h.flags & flag_staged) != 0) {
    StagedPayload where;
    std::memcpy(&where, payload, sizeof where);
    const auto old = h.generation != generation_ ? old_staging_.find({worker, h.generation})
                                                 : old_staging_.end();
    const StagingArea& area = old != old_staging_.end() ? old->second : staging_[worker];
    if (h.generation != generation_ && old == old_staging_.end())
      violation(worker, "an update in the staging memory of an earlier launch, which is gone");
    const std::size_t bytes = h.count * sizeof(float);
    const auto inside = [&](std::uint64_t offset) {
      return offset % sizeof(float) == 0 && offset <= area.bytes && bytes <= area.bytes - offset;
    };
    const bool has_base = (h.flags & flag_base) != 0;
    if (area.data == nullptr || !inside(where.offset) || (has_base && !inside(where.base_offset)))
      violation(worker, "a staged update outside its staging memory");
    part.values = reinterpret_cast<const float*>(area.data + where.offset);
    if (has_base) part.base = reinterpret_cast<const float*>(area.data + where.base_offset);
    return part;
  }
  std::size_t dim = 1;
  const std::uint8_t* at = payload;
  part.offset = h.offset;
  if (static_cast<RecordKind>(h.kind) == RecordKind::push_rows) {
    dim = tables_[h.table].embedding->dim();
    part.keys = reinterpret_cast<const std::int64_t*>(at);
    at += h.count * sizeof(std::int64_t);
  }
  part.values = reinterpret_cast<const float*>(at);
  if ((h.flags & flag_base) != 0)
    part.base = reinterpret_cast<const float*>(at) + static_cast<std::size_t>(h.count) * dim;
  return part;
}

// Decode the values of a record. They stay valid until the next record of this worker with a codec.
Update ServerCore::parse_encoded(std::size_t worker, const RecordHeader& h,
                                 const std::uint8_t* payload) {
  Ring& ring = rings_[worker];
  const Table& t = tables_[h.table];
  Update part;
  part.offset = h.offset;
  part.count = h.count;
  if (t.codec.kind == CodecKind::shared) part.exponents = payload;
  std::size_t n = h.count;
  if (t.embedding != nullptr) {
    part.keys = reinterpret_cast<const std::int64_t*>(payload);
    payload += h.count * sizeof(std::int64_t);
    n *= t.embedding->dim();
  }
  // Compare the table and the length, too: a wrong worker may change a record that waits.
  if (ring.decoded_record != h.sequence + 1 || ring.decoded_table != h.table ||
      ring.decoded.size() != n) {
    ring.decoded.resize(n);
    ring.decoded_record = 0;
    if (!is_biased(t.codec.kind))
      decode(t.codec, payload, skew_of(h.slot), n, ring.decoded.data());
    else if (!decode_biased(t.codec.kind, payload, h.payload_bytes, n, ring.decoded.data()))
      violation(worker, "a push whose payload is not that of " + std::to_string(n) +
                            " values with codec " +
                            codec_names[static_cast<std::size_t>(t.codec.kind)]);
    ring.decoded_record = h.sequence + 1;
    ring.decoded_table = h.table;
  }
  part.values = ring.decoded.data();
  return part;
}

// Check that the worker takes part in the table.
void ServerCore::check_member(std::size_t worker, const RecordHeader& h) const {
  if (!tables_[h.table].members.has(worker))
    violation(worker, "a record of table " + std::to_string(h.table) + ", which belongs to stage " +
                          std::to_string(tables_[h.table].members.stage) + " of the model");
}

// Check that the sizes in the header agree with each other and with the table.
void ServerCore::check_push(std::size_t worker, const RecordHeader& h) const {
  if (h.table >= tables_.size() || tables_[h.table].shard == nullptr)
    violation(worker,
              "a push to table " + std::to_string(h.table) + ", of which this server has no part");
  const Table& t = tables_[h.table];
  if (t.is_scales) violation(worker, "a push to the scales of a table");
  check_member(worker, h);
  const bool rows = static_cast<RecordKind>(h.kind) == RecordKind::push_rows;
  if (rows != (t.embedding != nullptr)) violation(worker, "a push of the wrong kind for its table");
  // While shared scales are 0, the values are not encoded.
  const bool is_plain = h.slot == 0 && t.codec.kind == CodecKind::shared;
  if (kind_bits_of(h.slot) != static_cast<std::uint16_t>(t.codec.kind) && !is_plain)
    violation(worker, "a push with codec " + std::to_string(kind_bits_of(h.slot)) +
                          ", its table has codec " +
                          codec_names[static_cast<std::size_t>(t.codec.kind)]);
  if (h.slot != 0) return check_encoded(worker, h);
  const std::size_t parts = (h.flags & flag_base) != 0 ? 2 : 1;
  const std::size_t unit = rows ? sizeof(std::int64_t) + parts * t.embedding->dim() * sizeof(float)
                                : parts * sizeof(float);
  if ((h.flags & flag_closes) != 0 && (h.flags & flag_last) == 0)
    violation(worker, "a push with flags that exclude each other");
  const bool in_area = (h.flags & flag_area) != 0;
  if (in_area ? rows || (h.flags & (flag_base | flag_staged)) != 0 : (h.flags & flag_arrived) != 0)
    violation(worker, "a push with flags that exclude each other");
  const std::size_t expected = in_area                        ? sizeof(AreaPayload)
                               : (h.flags & flag_staged) != 0 ? sizeof(StagedPayload)
                                                              : h.count * unit;
  if (h.payload_bytes != expected)
    violation(worker, "a push whose payload has " + std::to_string(h.payload_bytes) +
                          " bytes, expected " + std::to_string(expected));
  check_segment(worker, h);
}

// Check a push whose values are encoded.
void ServerCore::check_encoded(std::size_t worker, const RecordHeader& h) const {
  const Table& t = tables_[h.table];
  const bool rows = t.embedding != nullptr;
  const std::size_t skew = skew_of(h.slot);
  const int others = flag_base | flag_staged | flag_area | flag_arrived | flag_fits;
  if ((h.flags & others) != 0 || ((h.flags & flag_closes) != 0 && (h.flags & flag_last) == 0))
    violation(worker, "a push with flags that exclude each other");
  if (skew >= t.codec.block || (rows && skew != 0))
    violation(worker, "a push that begins outside its block");
  if (is_biased(t.codec.kind)) {
    if (skew != 0) violation(worker, "a push that begins outside its block");
    if (h.count > most_covered)
      violation(worker, "a record of " + std::to_string(h.count) + " values, of which at most " +
                            std::to_string(most_covered) + " are accepted");
    return check_segment(worker, h);
  }
  const std::size_t n = rows ? h.count * t.embedding->dim() : h.count;
  const std::size_t expected =
      (rows ? h.count * sizeof(std::int64_t) : 0) + encoded_bytes(t.codec, skew, n);
  if (h.payload_bytes != expected)
    violation(worker, "a push whose payload has " + std::to_string(h.payload_bytes) +
                          " bytes, expected " + std::to_string(expected));
  if (t.codec.kind == CodecKind::shared && t.scales == nullptr)
    violation(worker, "a push to a table whose scales this server does not have");
  if (t.codec.kind == CodecKind::shared && h.offset % t.codec.block != skew)
    violation(worker, "a push that begins outside its block");
  check_segment(worker, h);
}

// Check that a segment starts a push or continues the open one.
void ServerCore::check_segment(std::size_t worker, const RecordHeader& h) const {
  const Ring& ring = rings_[worker];
  const bool first = (h.flags & flag_first) != 0, last = (h.flags & flag_last) != 0;
  const bool continues = ring.open && h.table == ring.open_table && h.clock == ring.open_clock &&
                         ((h.flags ^ ring.open_flags) & (flag_base | flag_area)) == 0 &&
                         h.offset == ring.open_end;
  const bool staged_part = (h.flags & flag_staged) != 0 && !(first && last);
  if (staged_part || (first ? h.offset != 0 : !continues))
    violation(worker, "segments of a push out of order");
  if (first) check_nothing_open(worker);
}

// Check that no push is open. Under BSP segments are added to the sum as they come, so an open push
// could not be dropped.
void ServerCore::check_nothing_open(std::size_t worker) const {
  const Ring& ring = rings_[worker];
  if (ring.open && tables_[ring.open_table].consistency.model == Model::bsp)
    violation(worker, "a record before its last push was complete");
}

ServerCore::Verdict ServerCore::handle_push(std::size_t worker, const RecordHeader& h,
                                            const std::uint8_t* payload) {
  check_push(worker, h);
  Table& t = tables_[h.table];
  if (h.slot != 0 && t.codec.kind == CodecKind::shared &&
      !valid_exponents(t.codec, payload, skew_of(h.slot), h.count))
    violation(worker, "a push with a scale that does not exist");
  const Update part = h.slot != 0 ? parse_encoded(worker, h, payload) : parse(worker, h, payload);
  if (!t.shard->accepts(part)) violation(worker, "a push beyond the end of its shard");
  const bool last = (h.flags & flag_last) != 0;
  if (t.shard->ends_push(part, last) != last)
    violation(worker, "a push that is not the length of its shard");
  Verdict verdict{true, Outcome::segment, 0};
  if (t.consistency.model == Model::bsp) {
    verdict = handle_bsp(worker, h, part);
    if (!verdict.consumed) return verdict;
  } else if (!last || (h.flags & flag_first) == 0) {
    verdict = handle_segment(worker, h, part);
  } else {
    verdict = judge(&t, worker, h, part.base != nullptr, &part,
                    [&](const Weight& weight) { t.shard->apply(part, weight, t.next_step()); });
  }
  Ring& ring = rings_[worker];
  ring.open = !last;
  ring.open_table = h.table;
  ring.open_flags = h.flags;
  ring.open_clock = h.clock;
  ring.open_end = h.offset + h.count;
  if ((h.flags & flag_area) != 0 && (h.flags & flag_first) != 0)
    std::memcpy(&ring.open_area, payload + offsetof(AreaPayload, offset), sizeof ring.open_area);
  if (journal_) note_push(&ring, h, part);
  t.stats.pushed += last;
  return verdict;
}

// Update the tag of the worker's pushes of this clock. Called once for each record of a push, when
// it is consumed or deferred.
void ServerCore::note_push(Ring* ring, const RecordHeader& h, const Update& part) const {
  if ((h.flags & flag_first) != 0) ring->open_digest = 0;
  if (part.keys != nullptr) ring->open_digest += keys_digest(part.keys, h.count);
  if ((h.flags & flag_last) == 0) return;
  ring->tag = next_tag(ring->tag, h.table, h.offset + h.count, ring->open_digest);
  ++ring->pushes;
}

// Handle a segment of a push: nothing changes until the whole push is there.
ServerCore::Verdict ServerCore::handle_segment(std::size_t worker, const RecordHeader& h,
                                               const Update& part) {
  Ring& ring = rings_[worker];
  Table& t = tables_[h.table];
  const bool first = (h.flags & flag_first) != 0, last = (h.flags & flag_last) != 0;
  const bool stays = first ? (h.flags & flag_fits) != 0 && t.embedding != nullptr &&
                                 t.embedding->applies_by_parts()
                           : !ring.deferred.empty();
  if (stays) {
    ring.deferred.push_back(part);
    t.embedding->expect(worker, part);
    return last ? apply_logged(worker, h) : Verdict{true, Outcome::none, 0};
  }
  const bool in_place = (h.flags & flag_area) != 0;
  if (!in_place) t.shard->assemble(worker, part, first);
  fault::at(fault::Point::copied);
  if (!last) return {true, Outcome::segment, 0};
  Update whole = in_place ? part : t.shard->whole(worker);
  if (in_place) {
    whole.values -= part.offset;
    whole.offset = 0;
    whole.count += part.offset;
  }
  return judge(&t, worker, h, whole.base != nullptr, &whole,
               [&](const Weight& weight) { t.shard->apply(whole, weight, t.next_step()); });
}

// Apply a push whose segments are all in their slots. Each slot is released as soon as it is
// applied, so that the worker fills it meanwhile; the caller acknowledges the last one.
ServerCore::Verdict ServerCore::apply_logged(std::size_t worker, const RecordHeader& h) {
  Ring& ring = rings_[worker];
  Table& t = tables_[h.table];
  const std::vector<Update> parts = std::move(ring.deferred);
  ring.deferred.clear();
  const std::uint64_t end = ring.next + parts.size() - 1;
  const bool has_base = parts.back().base != nullptr;
  const Verdict verdict = judge(&t, worker, h, has_base, nullptr, [&](const Weight& weight) {
    t.embedding->make_expected(worker, parts);
    for (const Update& part : parts) {
      t.embedding->apply_expected(worker, part, weight, t.next_step());
      // With a journal the whole push is one operation: its records stay until it is committed.
      if (!journal_ && ring.next != end) acknowledge(&ring, Outcome::segment, 0);
    }
  });
  while (ring.next != end) {
    if (journal_)
      settle(&ring, Outcome::segment, 0);
    else
      acknowledge(&ring, Outcome::segment, 0);
  }
  return verdict;
}

// Copy the deferred segments into the shard and release their slots.
void ServerCore::let_go(std::size_t worker) {
  Ring& ring = rings_[worker];
  const std::vector<Update> parts = std::move(ring.deferred);
  ring.deferred.clear();
  for (const Update& part : parts) {
    tables_[ring.open_table].shard->assemble(worker, part, part.offset == 0);
    fault::at(fault::Point::copied);
    if (journal_)
      settle(&ring, Outcome::segment, 0);
    else
      acknowledge(&ring, Outcome::segment, 0);
  }
  if (journal_) commit_segments(worker);
}

template <class Apply>
ServerCore::Verdict ServerCore::judge(Table* t, std::size_t worker, const RecordHeader& h,
                                      bool has_base, const Update* noted, Apply apply) {
  const ConsistencyConfig& c = t->consistency;
  const std::uint64_t staleness = t->version - std::min(h.base_version, t->version);
  t->stats.staleness[std::min<std::uint64_t>(staleness, staleness_bins - 1)] += 1;
  Weight weight;
  if (c.switch_at != 0) weight.factors.rate = c.rate;
  Outcome outcome = Outcome::applied;
  if (c.policy == Policy::reject &&
      (t->delays ? t->delays->rejects(staleness) : staleness > c.max_staleness)) {
    ++t->stats.rejected;
    return {true, Outcome::rejected, staleness};
  }
  if (c.policy == Policy::scale && staleness > 0) {
    weight.factors.rate /= 1.0F + static_cast<float>(staleness);
    outcome = Outcome::scaled;
    ++t->stats.scaled;
  } else if (c.policy == Policy::compensate && staleness > 0 && has_base) {
    weight.lambda = c.lambda;
    outcome = Outcome::compensated;
    ++t->stats.compensated;
  }
  if (t->embedding != nullptr) t->embedding->set_next_version(t->version + 1);
  apply(weight);
  if (t->delays && noted != nullptr) note_delay(t, worker, *noted);
  ++t->version;
  ++t->stats.applied;
  ++t->stats.updates;
  publish_updates(*t);
  publish(&t->head->version, t->version);
  return {true, outcome, staleness};
}

// Note an applied push for the threshold of delays, and publish a new threshold. A server of a
// later launch finds it in the memory.
void ServerCore::note_delay(Table* t, std::size_t worker, const Update& update) {
  if (!t->delays->note(worker, update.values, update.count)) return;
  ++n_estimates_;
  publish(&t->head->decision, t->delays->threshold());
}

void ServerCore::set_delay_threshold(std::uint16_t table, std::uint64_t threshold) {
  Table& t = tables_.at(table);
  if (!t.delays)
    throw std::invalid_argument("table " + std::to_string(table) + " has no policy reject 'auto'");
  t.delays->set(threshold);
  publish(&t.head->decision, t.delays->threshold());
}

// Take in the scales that a part of a push of the open clock asks for.
void ServerCore::widen_scales(std::size_t worker, const RecordHeader& h, const Update& part) {
  ScaleShard* scales = tables_[h.table].scales;
  if (!scales->agrees(part))
    violation(worker, "a push of clock " + std::to_string(h.clock) + " to table " +
                          std::to_string(h.table) + " with other scales than those of the clock");
  scales->widen(part);
}

ServerCore::Verdict ServerCore::handle_bsp(std::size_t worker, const RecordHeader& h,
                                           const Update& part) {
  Table& t = tables_[h.table];
  const bool last = (h.flags & flag_last) != 0;
  const std::uint64_t current = clocks_.current();
  if (h.clock < current) {
    if (!clocks_.uses_backup()) violation(worker, "a push for a clock that is closed");
    t.stats.late += last;
    return {true, last ? Outcome::late : Outcome::segment, current - h.clock};
  }
  if (h.clock > current) return {false, Outcome::none, 0};
  // Sums of integers do not depend on their order, so these pushes are taken as they come.
  const bool in_order = part.exponents == nullptr;
  if ((in_order ? worker < t.turn : t.closed[worker] != 0) && !clocks_.uses_backup())
    violation(worker, "a push to table " + std::to_string(h.table) + ", which it had closed");
  if (in_order && !clocks_.may_push(worker, t.turn, t.members)) return {false, Outcome::none, 0};
  if (t.scales != nullptr) widen_scales(worker, h, part);
  // With a journal, sum a push only when it is complete: a push that stays incomplete can then be
  // dropped.
  if (journal_ && !(last && (h.flags & flag_first) != 0)) {
    t.shard->assemble(worker, part, (h.flags & flag_first) != 0);
    fault::at(fault::Point::copied);
    if (!last) return {true, Outcome::segment, 0};
    t.shard->accumulate(clocks_.uses_backup() ? worker : 0, t.shard->whole(worker));
  } else {
    t.shard->accumulate(clocks_.uses_backup() ? worker : 0, part);
  }
  t.pending[worker] += last;
  if (last && (h.flags & flag_closes) != 0 && !clocks_.uses_backup()) {
    if (in_order)
      t.turn = worker + 1;
    else
      t.close(worker);
    const std::size_t n = clocks_.working(t.members);
    const bool all = in_order ? clocks_.all_closed(t.turn, t.members) : t.n_closed == n;
    if (!journal_ && all) {
      apply_sum(&t, {0}, n);
      t.early = true;
      if (t.scales != nullptr) {
        apply_sum(&tables_[t.scales_table], {0}, n);
        tables_[t.scales_table].early = true;
      }
    }
  }
  return {true, last ? Outcome::accumulated : Outcome::segment, 0};
}

}  // namespace mpips
