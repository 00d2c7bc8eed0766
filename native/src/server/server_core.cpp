#include "server/server_core.hpp"

#include <algorithm>
#include <cstring>

#include "server/embedding_shard.hpp"
#include "server/look_up_port.hpp"
#include "server/scale_shard.hpp"

namespace mpips {
namespace {

constexpr std::size_t records_per_visit = 16;
// Bytes of work between two reads of the clock, which cost as much as a look at a ring. A record
// counts as this many bytes in addition to its own.
constexpr std::uint64_t work_per_look = 64 << 10;
constexpr std::uint64_t work_per_record = 4 << 10;
// bytes of a new record to prefetch
constexpr std::size_t first_fetch = 4096 + sizeof(RecordHeader);
// seconds for which rows are removed after a record, and while there is none
constexpr double removal_s = 50e-6;

}  // namespace

ServerCore::ServerCore(std::uint8_t* region, Layout layout, std::uint32_t generation,
                       std::uint32_t backup, bool oversubscribed)
    : region_(region),
      layout_(std::move(layout)),
      generation_(generation),
      backoff_(oversubscribed, 200),
      clocks_(layout_.n_workers(), backup),
      tables_(layout_.n_tables()),
      staging_(layout_.n_workers()) {
  for (std::uint32_t w = 0; w < layout_.n_workers(); ++w)
    rings_.push_back({Mailbox(region_ + layout_.mailbox(w), layout_.geometry())});
}

ServerCore::~ServerCore() = default;

void ServerCore::add_dense(std::uint16_t table, std::unique_ptr<Shard> shard,
                           ConsistencyConfig consistency) {
  Table& t = tables_.at(table);
  t.shard = std::move(shard);
  t.consistency = consistency;
  t.pending.assign(layout_.n_workers(), 0);
  t.head = reinterpret_cast<TableHead*>(region_ + layout_.head(table));
  any_bsp_ = any_bsp_ || consistency.model == Model::bsp;
  switch_at_ = std::max(switch_at_, consistency.switch_at);
  finds_switch_ = finds_switch_ || consistency.finds_switch;
  if (consistency.estimates) t.delays = std::make_unique<DelayThreshold>(layout_.n_workers());
}

void ServerCore::add_embedding(std::uint16_t table, std::unique_ptr<EmbeddingShard> shard,
                               ConsistencyConfig consistency) {
  EmbeddingShard* embedding = shard.get();
  add_dense(table, std::move(shard), consistency);
  tables_[table].embedding = embedding;
}

void ServerCore::add_scales(std::uint16_t table, std::uint16_t of,
                            std::unique_ptr<ScaleShard> shard, ConsistencyConfig consistency) {
  tables_.at(of).scales = shard.get();
  tables_.at(of).scales_table = table;
  tables_.at(of).closed.assign(layout_.n_workers(), 0);
  add_dense(table, std::move(shard), consistency);
  tables_[table].is_scales = true;
}

void ServerCore::add_absent(std::uint16_t table, ConsistencyConfig consistency) {
  add_dense(table, nullptr, consistency);
}

void ServerCore::set_stage(std::uint16_t table, std::uint32_t stage, std::uint32_t n_stages) {
  Table& t = tables_.at(table);
  const ConsistencyConfig& c = t.consistency;
  if (n_stages == 0 || stage >= n_stages || rings_.size() % n_stages != 0)
    throw std::invalid_argument("stage " + std::to_string(stage) + " of " +
                                std::to_string(n_stages) + " with " +
                                std::to_string(rings_.size()) + " workers");
  if (clocks_.uses_backup() || c.adaptive || c.estimates || c.switch_at != 0 || c.finds_switch ||
      t.scales != nullptr || t.is_scales)
    throw std::invalid_argument("a table of a stage with a model of all workers");
  t.members = {stage, n_stages};
  clocks_.set_stages(n_stages);
}

void ServerCore::start() {
  for (Table& t : tables_) {
    if (t.head == nullptr) throw std::logic_error("a table has not been added");
    publish_updates(t);
    publish(&t.head->version, 0);
  }
  take_switch();
  switch_if_due();
  publish_clocks();
  for (std::size_t w = 0; w < rings_.size(); ++w) publish_clock(w);
  for (Ring& ring : rings_) publish(&ring.box.ack->applied, 0);
}

std::size_t ServerCore::drain(double max_s, std::uint32_t max_sleep_us) {
  std::size_t total = 0;
  std::uint32_t looks = 0;
  const double end = max_s > 0.0 ? now_s() + max_s : 0.0;
  backoff_.set_max_sleep_us(max_sleep_us);
  for (;;) {
    const std::size_t consumed = pass(end);
    total += consumed;
    const bool answered =
        end != 0.0 && look_ups_ != nullptr && look_ups_->is_asked() && answer_look_up();
    if (consumed != 0 || answered) {
      backoff_.reset();
      if (end == 0.0) continue;
    } else if (end == 0.0 || (partnered_ && has_outgoing())) {
      return total;
    } else if (limited_.empty() || !remove_rows(removal_s)) {
      backoff_.pause();
    }
    if (expected_cut_ != 0 && cut_ready()) return total;
    // Read the time rarely: that costs as much as a look at a ring.
    if ((consumed != 0 || answered || !backoff_.spinning() || (++looks & 31) == 0) &&
        now_s() >= end)
      return total;
  }
}

std::size_t ServerCore::consume(double max_s) {
  std::size_t total = 0;
  const double end = now_s() + max_s;
  for (;;) {
    const std::size_t consumed = pass(end);
    total += consumed;
    const bool answered = look_ups_ != nullptr && look_ups_->is_asked() && answer_look_up();
    if (consumed == 0 && !answered) return total;
    backoff_.reset();
    if (now_s() >= end) return total;
  }
}

// Visit every ring once; stop early, after a record, when `end` (0: never) is past. The next pass
// goes on with the next ring, so that all rings are served however short the time is.
std::size_t ServerCore::pass(double end) {
  if (recorded_ != nullptr) return pass_recorded(end);
  std::size_t consumed = 0;
  std::uint64_t looked_at = counters_.bytes_in + counters_.bytes_out;
  bool over = false;
  for (std::size_t visit = 0; visit < rings_.size() && !over; ++visit) {
    const std::size_t w = next_ring_;
    next_ring_ = w + 1 < rings_.size() ? w + 1 : 0;
    for (std::size_t i = 0; i < records_per_visit && !over && consume_one(w); ++i) {
      ++consumed;
      const std::uint64_t work =
          counters_.bytes_in + counters_.bytes_out + consumed * work_per_record;
      if (end == 0.0 || work - looked_at < work_per_look) continue;
      looked_at = work;
      over = now_s() >= end;
    }
  }
  counters_.records += consumed;
  return consumed;
}

std::size_t ServerCore::queue() const noexcept {
  std::size_t count = 0;
  for (const Ring& ring : rings_) {
    const std::uint64_t end = ring.next + ring.box.geometry.n_slots;
    std::uint64_t q = ring.next;
    while (q < end && load_relaxed(ring.box.stamp(q)) == q + 1) ++q;
    count += q - ring.next;
  }
  return count;
}

bool ServerCore::consume_one(std::size_t worker) {
  Ring& ring = rings_[worker];
  if (ring.deferred.size() == ring.box.geometry.n_slots) let_go(worker);
  if (ring.at() >= ring.limit && !is_free_tick(ring)) return false;
  if (!stamped(worker, ring.at())) return false;
  const std::uint8_t* slot = ring.box.slot(ring.at());
  // Prefetch what the hint has not prefetched yet, all lines together rather than one after the
  // other.
  for (std::size_t at = ring.fetched; at < ring.fetched + first_fetch; at += line_bytes)
    __builtin_prefetch(slot + at);
  RecordHeader header;
  std::memcpy(&header, slot, sizeof header);
  const std::uint8_t* payload = slot + sizeof header;
  if (!check(worker, ring.at(), header, payload)) return false;
  if (recorded_ != nullptr && !may_repeat(worker, &header)) return false;
  const bool goes_on = static_cast<RecordKind>(header.kind) != RecordKind::finish;
  note_distance(&ring, goes_on && (header.flags & flag_far) != 0);
  if (journal_) journal_->set_worker(worker);
  const std::uint64_t began_ns = trace_ != nullptr ? TraceRing::now_ns() : 0;
  const Verdict verdict = handle(worker, header, payload);
  if (!verdict.consumed) return false;
  if (trace_ != nullptr) note(began_ns, worker, header);
  if (observes_rows_) count_rows(header, payload);
  if (order_log_ != nullptr) {
    const auto [bytes, n] = pushed_bytes(worker, header, payload);
    order_log_->add(header, verdict.outcome, verdict.staleness, bytes, n);
  }
  if (recorded_ != nullptr && static_cast<RecordKind>(header.kind) != RecordKind::cut)
    recorded_->pass(verdict.outcome);
  counters_.bytes_in += carried_bytes(header);
  ring.fetched = 0;
  if (verdict.outcome == Outcome::none) return true;
  if (journal_)
    commit(worker, header, verdict);
  else
    acknowledge(&ring, verdict.outcome, verdict.staleness);
  if (!limited_.empty()) remove_rows(removal_s);
  return true;
}

void ServerCore::acknowledge(Ring* ring, Outcome outcome, std::uint64_t staleness) {
  settle(ring, outcome, staleness);
  publish(&ring->box.ack->applied, ring->next);
}

// Consume a record and write its result, without publishing `applied` yet.
void ServerCore::settle(Ring* ring, Outcome outcome, std::uint64_t staleness) {
  const std::uint64_t result = make_result(ring->next, outcome, staleness);
  store_release(ring->box.result(ring->next), result);
  store_release(&ring->box.ack->recent[ring->next % recent_results], result);
  ++ring->next;
}

ServerCore::Verdict ServerCore::handle(std::size_t worker, const RecordHeader& h,
                                       const std::uint8_t* payload) {
  check_clock(worker, h);
  const auto kind = static_cast<RecordKind>(h.kind);
  const bool continues = kind == RecordKind::push_rows && (h.flags & flag_first) == 0;
  if (!rings_[worker].deferred.empty() && !continues) let_go(worker);
  switch (kind) {
    case RecordKind::push_dense:
    case RecordKind::push_rows:
      return handle_push(worker, h, payload);
    case RecordKind::pull_rows:
      return handle_pull(worker, h, payload);
    case RecordKind::tick:
    case RecordKind::finish:
      return handle_tick(worker, h);
    case RecordKind::cut:
      return handle_cut(worker, h, payload);
    case RecordKind::configure:
      return handle_configure(worker, h, payload);
    case RecordKind::store:
      return handle_store(worker, h, payload);
  }
  violation(worker, "a record of the unknown kind " + std::to_string(h.kind));
}

void ServerCore::violation(std::size_t worker, const std::string& what) const {
  throw ProtocolViolation("worker " + std::to_string(worker) + " sent " + what +
                          "; all ranks must run the same mpips (mpips doctor --mpi checks it)");
}

}  // namespace mpips
