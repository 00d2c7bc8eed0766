#include <memory>

#include "server/embedding_shard.hpp"
#include "server/server_core.hpp"

// What a server notes of the records that it consumes, if that is asked for: an event in the
// trace for each, and which rows are pushed and pulled most.
namespace mpips {

// Add a consumed record to the trace, before the worker can see that it is consumed.
void ServerCore::note(std::uint64_t began_ns, std::size_t worker, const RecordHeader& h) noexcept {
  TraceKind kind = TraceKind::other;
  switch (static_cast<RecordKind>(h.kind)) {
    case RecordKind::push_dense:
    case RecordKind::push_rows:
      kind = (h.flags & flag_last) != 0 ? TraceKind::apply : TraceKind::segment;
      break;
    case RecordKind::pull_rows:
      kind = TraceKind::answer;
      break;
    case RecordKind::tick:
    case RecordKind::finish:
      kind = TraceKind::clock;
      break;
    case RecordKind::cut:
      kind = TraceKind::snapshot;
      break;
    default:
      break;
  }
  trace_->add(kind, began_ns, TraceRing::now_ns(), h.sequence, h.clock, h.table,
              static_cast<std::uint16_t>(worker));
}

void ServerCore::observe_rows() {
  for (Table& t : tables_)
    if (t.embedding != nullptr) t.row_counter = std::make_unique<RowCounter>(now_s());
  observes_rows_ = true;
}

// Count the rows of a consumed record, whose slot the worker cannot write yet. `handle` has checked
// the record, unless it is a pull that is not answered; keys are at the begin of its payload, with
// and without a codec.
void ServerCore::count_rows(const RecordHeader& h, const std::uint8_t* payload) noexcept {
  const auto kind = static_cast<RecordKind>(h.kind);
  const bool is_pull = kind == RecordKind::pull_rows;
  if (is_pull ? h.generation != generation_ || copy_ : kind != RecordKind::push_rows) return;
  // No rows are read, or all of them.
  if (is_pull && (h.flags & (flag_changes | flag_places)) != 0) return;
  RowCounter* counter = tables_[h.table].row_counter.get();
  if (counter != nullptr)
    counter->count(is_pull, reinterpret_cast<const std::int64_t*>(payload), h.count);
}

}  // namespace mpips
