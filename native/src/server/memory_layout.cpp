#include "server/memory_layout.hpp"

#include <utility>

#include "journal/journal.hpp"
#include "reduction/node_layout.hpp"
#include "ring/common_view.hpp"
#include "ring/layout.hpp"
#include "server/array.hpp"
#include "server/shard.hpp"

#define MEMBER(type, name) {#type "." #name, offsetof(type, name), sizeof(type::name)}
#define NUMBER(value) {#value, static_cast<std::size_t>(value), 0}

namespace mpips {
namespace {

using Entries = std::vector<LayoutEntry>;

void add(Entries* to, Entries more) {
  for (LayoutEntry& entry : more) to->push_back(std::move(entry));
}

Entries of_headers() {
  return {
      MEMBER(RegionHeader, magic),       MEMBER(RegionHeader, version),
      MEMBER(RegionHeader, generation),  MEMBER(RegionHeader, token),
      MEMBER(RegionHeader, server),      MEMBER(RegionHeader, n_workers),
      MEMBER(RegionHeader, n_slots),     MEMBER(RegionHeader, slot_bytes),
      MEMBER(RegionHeader, total_bytes), MEMBER(AwaitedLine, worker),
      MEMBER(ClockLine, clock),          MEMBER(TableHead, version),
      MEMBER(TableHead, min_clock),      MEMBER(AckLine, applied),
      MEMBER(AckLine, recent),           MEMBER(AckLine, received),
      MEMBER(CommonHead, sequence),      MEMBER(CommonHead, number),
      MEMBER(CommonHead, bytes),
  };
}

Entries of_records() {
  return {
      MEMBER(RecordHeader, magic),
      MEMBER(RecordHeader, version),
      MEMBER(RecordHeader, kind),
      MEMBER(RecordHeader, flags),
      MEMBER(RecordHeader, slot),
      MEMBER(RecordHeader, generation),
      MEMBER(RecordHeader, worker),
      MEMBER(RecordHeader, table),
      MEMBER(RecordHeader, sequence),
      MEMBER(RecordHeader, base_version),
      MEMBER(RecordHeader, clock),
      MEMBER(RecordHeader, offset),
      MEMBER(RecordHeader, count),
      MEMBER(RecordHeader, payload_bytes),
      MEMBER(RecordHeader, header_checksum),
      MEMBER(RecordHeader, payload_checksum),
      MEMBER(StagedPayload, offset),
      MEMBER(StagedPayload, base_offset),
      MEMBER(AreaPayload, offset),
      MEMBER(AreaPayload, checksum),
      MEMBER(ReplyHeader, sequence),
      MEMBER(ReplyHeader, version),
      MEMBER(ReplyHeader, count),
      MEMBER(ReplyHeader, checksum),
      MEMBER(ReplyHeader, min_clock),
      NUMBER(RecordKind::push_dense),
      NUMBER(RecordKind::push_rows),
      NUMBER(RecordKind::pull_rows),
      NUMBER(RecordKind::tick),
      NUMBER(RecordKind::finish),
      NUMBER(RecordKind::cut),
      NUMBER(RecordKind::configure),
      NUMBER(RecordKind::store),
      NUMBER(flag_first),
      NUMBER(flag_last),
      NUMBER(flag_checksum),
      NUMBER(flag_base),
      NUMBER(flag_staged),
      NUMBER(flag_fits),
      NUMBER(flag_area),
      NUMBER(flag_arrived),
      NUMBER(flag_closes),
      NUMBER(flag_changes),
      NUMBER(stamp_bytes),
      NUMBER(block_floats),
  };
}

// The journal's own structs are in Journal::entries.
Entries of_tables() {
  return {
      MEMBER(TableStats, pushed),        MEMBER(TableStats, applied),
      MEMBER(TableStats, scaled),        MEMBER(TableStats, compensated),
      MEMBER(TableStats, rejected),      MEMBER(TableStats, late),
      MEMBER(TableStats, updates),       MEMBER(TableStats, rows_made),
      MEMBER(TableStats, rows_refused),  MEMBER(TableStats, rows_evicted),
      MEMBER(TableStats, rows_returned), MEMBER(TableStats, pulled_rows),
      MEMBER(TableStats, staleness),     MEMBER(ReducerLine, ticked),
      MEMBER(ReducerLine, finished),     MEMBER(ReducerLine, sent),
      MEMBER(ReducerLine, local),        MEMBER(ContributionLine, closed),
      MEMBER(ContributionLine, pushed),  MEMBER(ContributionLine, pushes),
      MEMBER(ContributionLine, rule),    MEMBER(ContributionLine, done),
      MEMBER(VersionLine, after),        MEMBER(VersionLine, steps),
      MEMBER(RuleLine, after),           MEMBER(RuleLine, config),
      NUMBER(NodeLayout::n_rules),
  };
}

// Return offsets of a region with two workers, one of them on another node, and a table with codec.
Entries of_region() {
  const RingGeometry ring{4, 256, true};
  Codec codec{};
  codec.kind = CodecKind::bf16;
  codec.block = 128;
  const Layout layout(2, 3, ring, {{40000, 2, 0, {}}, {20000, 1, 2, codec}}, 10000, {1});
  const DenseExtent &plain = layout.extent(0), &coded = layout.extent(2);
  return {
      NUMBER(ring.stamps_offset()),  NUMBER(ring.slots_offset()),  NUMBER(ring.record_stride()),
      NUMBER(ring.replies_offset()), NUMBER(ring.mailbox_bytes()), NUMBER(layout.awaited()),
      NUMBER(layout.clocks()),       NUMBER(layout.head(2)),       NUMBER(layout.mailbox(0)),
      NUMBER(layout.mailbox(1)),     NUMBER(layout.area(0)),       NUMBER(layout.tables_offset()),
      NUMBER(plain.versions),        NUMBER(plain.values),         NUMBER(plain.state),
      NUMBER(coded.versions),        NUMBER(coded.values),         NUMBER(coded.image),
      NUMBER(layout.total_bytes()),
  };
}

Entries of_node() {
  const NodeLayout node(2, {{1000, 1}, {30, 0}}, 2, true);
  return {
      NUMBER(node.words(1)),
      NUMBER(node.table_words(1, 1)),
      NUMBER(node.version_words(1, 1)),
      NUMBER(node.rule_words(1, 1, 1)),
      NUMBER(node.array(1, 0, 1)),
      NUMBER(node.contribution(1, 1, 1)),
      NUMBER(node.total_bytes()),
  };
}

}  // namespace

std::vector<LayoutEntry> Journal::entries() {
  const Durable second{nullptr, nullptr, 1, true};
  return {
      MEMBER(Head, magic),
      MEMBER(Head, version),
      MEMBER(Head, n_workers),
      MEMBER(Head, n_tables),
      MEMBER(Head, in_use),
      MEMBER(Head, active),
      MEMBER(Head, n_logged),
      MEMBER(Head, n_spans),
      MEMBER(Head, span_bytes),
      MEMBER(Head, pieces),
      MEMBER(Head, undo),
      MEMBER(Pieces, segment),
      MEMBER(Pieces, distance),
      MEMBER(Pieces, n_arrays),
      MEMBER(Pieces, has_counts),
      MEMBER(Pieces, counts),
      MEMBER(Count, old),
      MEMBER(Count, at),
      MEMBER(UndoSlots, position),
      MEMBER(UndoSlots, start),
      MEMBER(UndoSlots, slots),
      MEMBER(Logged, index),
      MEMBER(Logged, value),
      MEMBER(Ended, after),
      MEMBER(Ended, tag),
      NUMBER(current_clock),
      NUMBER(global_words),
      NUMBER(next),
      NUMBER(open),
      NUMBER(open_clock),
      NUMBER(open_end),
      NUMBER(open_area),
      NUMBER(open_digest),
      NUMBER(WorkerWord::clock),
      NUMBER(finished),
      NUMBER(ticked),
      NUMBER(WorkerWord::position),
      NUMBER(pushes),
      NUMBER(tag),
      NUMBER(newest_text),
      NUMBER(previous_text),
      NUMBER(clock_of_text),
      NUMBER(worker_words),
      NUMBER(version),
      NUMBER(steps_before),
      NUMBER(n_rows),
      NUMBER(moving),
      NUMBER(turn),
      NUMBER(stats),
      NUMBER(table_words),
      NUMBER(taken),
      NUMBER(pending),
      NUMBER(buffers),
      NUMBER(pair_words),
      NUMBER(configured_at),
      NUMBER(ordinal),
      NUMBER(config),
      NUMBER(rule_words),
      NUMBER(history),
      NUMBER(n_texts),
      NUMBER(part_shift),
      NUMBER(segment_shift),
      NUMBER(in_scratch),
      NUMBER(UndoSlots::shift),
      NUMBER(UndoSlots::in_slot),
      NUMBER(UndoSlots::place_bit),
      NUMBER(UndoSlots::slot_bit),
      NUMBER(bytes(2, 3, 1000)),
      NUMBER(Durable::region),
      NUMBER(second.buffer_segment()),
      NUMBER(second.row_segment()),
  };
}

std::vector<LayoutEntry> memory_layout() {
  Entries all = of_headers();
  add(&all, of_records());
  add(&all, Journal::entries());
  add(&all, of_tables());
  add(&all, of_region());
  add(&all, of_node());
  return all;
}

}  // namespace mpips
