#include "server/server_core.hpp"

#include <algorithm>
#include <cstring>

#include "ring/checksum.hpp"
#include "server/embedding_shard.hpp"
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

void ServerCore::add_dense(std::uint16_t table, std::unique_ptr<Shard> shard,
                           ConsistencyConfig consistency) {
  Table& t = tables_.at(table);
  t.shard = std::move(shard);
  t.consistency = consistency;
  t.pending.assign(layout_.n_workers(), 0);
  t.head = reinterpret_cast<TableHead*>(region_ + layout_.head(table));
  any_bsp_ = any_bsp_ || consistency.model == Model::bsp;
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

void ServerCore::start() {
  for (Table& t : tables_) {
    if (t.head == nullptr) throw std::logic_error("a table has not been added");
    publish(&t.head->version, 0);
  }
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
    if (consumed != 0) {
      backoff_.reset();
      if (end == 0.0) continue;
    } else if (end == 0.0 || (partnered_ && has_outgoing())) {
      return total;
    } else {
      backoff_.pause();
    }
    if (expected_cut_ != 0 && cut_ready()) return total;
    // Read the time rarely: that costs as much as a look at a ring.
    if ((consumed != 0 || !backoff_.spinning() || (++looks & 31) == 0) && now_s() >= end)
      return total;
  }
}

std::size_t ServerCore::consume(double max_s) {
  std::size_t total = 0;
  const double end = now_s() + max_s;
  for (;;) {
    const std::size_t consumed = pass(end);
    total += consumed;
    if (consumed == 0) return total;
    backoff_.reset();
    if (now_s() >= end) return total;
  }
}

// Visit every ring once; stop early, after a record, when `end` (0: never) is past. The next pass
// goes on with the next ring, so that all rings are served however short the time is.
std::size_t ServerCore::pass(double end) {
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
  if (journal_) journal_->set_worker(worker);
  const std::uint64_t began_ns = trace_ != nullptr ? TraceRing::now_ns() : 0;
  const Verdict verdict = handle(worker, header, payload);
  if (!verdict.consumed) return false;
  if (trace_ != nullptr) note(began_ns, worker, header);
  if (observes_rows_) count_rows(header, payload);
  counters_.bytes_in += carried_bytes(header);
  ring.fetched = 0;
  if (verdict.outcome == Outcome::none) return true;
  if (journal_)
    commit(worker, header, verdict);
  else
    acknowledge(&ring, verdict.outcome, verdict.staleness);
  return true;
}

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
  if (is_pull && (h.flags & flag_changes) != 0) return;  // no rows are read
  RowCounter* counter = tables_[h.table].row_counter.get();
  if (counter != nullptr)
    counter->count(is_pull, reinterpret_cast<const std::int64_t*>(payload), h.count);
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
  if (h.version != layout_version)
    violation(worker, "a record of format version " + std::to_string(h.version) +
                          ", expected version " + std::to_string(layout_version));
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

ServerCore::Verdict ServerCore::handle_pull(std::size_t worker, const RecordHeader& h,
                                            const std::uint8_t* payload) {
  // Do not answer pulls of an earlier launch, nor pulls in the replica: no worker waits for the
  // replies.
  if (h.generation != generation_ || copy_) return {true, Outcome::answered, 0};
  if (h.table >= tables_.size() || tables_[h.table].embedding == nullptr)
    violation(worker,
              "a pull of rows from table " + std::to_string(h.table) + ", which has no rows here");
  Table& t = tables_[h.table];
  const bool changes = (h.flags & flag_changes) != 0;
  if (changes && t.consistency.model != Model::bsp)
    violation(worker, "a pull of changes from a table that is not under BSP");
  const Codec codec = changes ? Codec{} : t.pull_codec;
  if (h.slot != codec_word(codec.kind, 0))
    violation(worker, "a pull with codec " + std::to_string(h.slot) + ", its table has codec " +
                          codec_names[static_cast<std::size_t>(codec.kind)]);
  const std::size_t capacity = layout_.geometry().slot_bytes - sizeof(ReplyHeader);
  if (h.payload_bytes != h.count * sizeof(std::int64_t) ||
      reply_row_bytes(codec, changes ? 1 : t.embedding->dim()) * h.count > capacity ||
      !layout_.geometry().replies)
    violation(worker, "a pull of " + std::to_string(h.count) + " rows with " +
                          std::to_string(h.payload_bytes) + " bytes: its sizes do not agree");
  const ConsistencyConfig& c = t.consistency;
  if (c.model == Model::bsp && clocks_.current() + (t.early ? 1 : 0) < h.clock)
    return {false, Outcome::none, 0};
  if (c.model == Model::ssp && clocks_.min_clock() < h.clock &&
      h.clock - clocks_.min_clock() > c.bound)
    return {false, Outcome::none, 0};
  answer(worker, h, &t, reinterpret_cast<const std::int64_t*>(payload));
  return {true, Outcome::answered, 0};
}

void ServerCore::answer(std::size_t worker, const RecordHeader& h, Table* t,
                        const std::int64_t* keys) {
  std::uint8_t* reply = rings_[worker].box.reply(h.sequence);
  std::uint8_t* rows = reply + sizeof(ReplyHeader);
  const bool changes = (h.flags & flag_changes) != 0;
  const std::size_t dim = changes ? 1 : t->embedding->dim();
  const Codec codec = changes ? Codec{} : t->pull_codec;
  const std::size_t bytes = h.count * reply_row_bytes(codec, dim);
  if (changes) {
    t->embedding->find_changes(keys, h.count, h.base_version, t->version,
                               reinterpret_cast<float*>(rows));
  } else if (codec.kind == CodecKind::none) {
    t->embedding->pull(keys, h.count, reinterpret_cast<float*>(rows));
  } else {
    pulled_.resize(h.count * dim);
    t->embedding->pull(keys, h.count, pulled_.data());
    encode_nearest(codec, pulled_.data(), h.count * dim, rows);
  }
  if (!changes) t->stats.pulled_rows += h.count;
  counters_.bytes_out += bytes;
  ReplyHeader header{};
  header.sequence = h.sequence;
  header.version = t->version;
  header.count = h.count;
  header.min_clock = clocks_.min_clock();
  if ((h.flags & flag_checksum) != 0) header.checksum = reply_checksum(header, rows, bytes);
  std::memcpy(reply, &header, sizeof header);
}

ServerCore::Verdict ServerCore::handle_tick(std::size_t worker, const RecordHeader& h) {
  check_nothing_open(worker);
  if (static_cast<RecordKind>(h.kind) == RecordKind::finish) {
    clocks_.finish(worker);
    discard_clock(worker);
    if (any_bsp_ && clocks_.complete()) close_clock();
    publish_clock(worker);
    publish_clocks();
    return {true, Outcome::answered, 0};
  }
  Verdict verdict{true, Outcome::answered, 0};
  if (!any_bsp_) {
    clocks_.tick(worker, h.clock);
  } else if (h.clock < clocks_.current()) {
    // The clock closed without this worker: drop the pushes that it had sent for the clock.
    verdict = {true, Outcome::late, discard_clock(worker)};
    clocks_.tick(worker, h.clock);
  } else if (h.clock > clocks_.current() || !clocks_.may_tick(worker)) {
    return {false, Outcome::none, 0};
  } else {
    clocks_.tick(worker, h.clock);
    if (clocks_.complete()) close_clock();
  }
  publish_clock(worker);
  publish_clocks();
  return verdict;
}

// Drop the pushes of a clock that this worker did not complete. Without backup workers a worker
// ticks in its place in the order, so there are none unless it finishes in the middle of a clock.
std::uint64_t ServerCore::discard_clock(std::size_t worker) {
  std::uint64_t dropped = 0;
  if (clocks_.ticked(worker)) return 0;
  for (Table& t : tables_) {
    if (t.shard == nullptr || t.consistency.model != Model::bsp) continue;
    if (!clocks_.uses_backup()) {
      if (t.pending[worker] != 0) violation(worker, "its finish in the middle of a clock");
      continue;
    }
    t.shard->discard(worker);  // also the first segments of a push that was not complete in time
    t.stats.late += t.pending[worker];
    dropped += t.pending[worker];
    t.pending[worker] = 0;
  }
  return dropped;
}

void ServerCore::close_clock() {
  const std::vector<std::size_t> workers = clocks_.contributors();
  const std::vector<std::size_t> buffers =
      clocks_.uses_backup() ? workers : std::vector<std::size_t>{0};
  for (Table& t : tables_) {
    if (t.consistency.model != Model::bsp) continue;
    if (!t.early) apply_sum(&t, buffers, workers.size());
    for (const std::size_t w : workers) {
      t.stats.applied += t.pending[w];
      t.stats.staleness[0] += t.pending[w];
      t.pending[w] = 0;
    }
    t.open_again();
  }
  clocks_.next_clock();
  ++counters_.clocks;
}

// Apply the sum of a table's pushes of the open clock, and publish the table's new version.
void ServerCore::apply_sum(Table* t, const std::vector<std::size_t>& buffers,
                           std::size_t n_workers) {
  Weight weight;
  if (t->consistency.mean) weight.factors.gradient = 1.0F / static_cast<float>(n_workers);
  if (t->embedding != nullptr) t->embedding->set_next_version(t->version + 1);
  if (t->shard != nullptr && t->shard->apply_accumulated(buffers, weight, t->next_step()))
    ++t->stats.updates;
  ++t->version;
  publish(&t->head->version, t->version);
}

void ServerCore::publish_clocks() {
  const std::uint64_t least = clocks_.min_clock();
  for (Table& t : tables_) publish(&t.head->min_clock, least);
  publish(&reinterpret_cast<AwaitedLine*>(region_ + layout_.awaited())->worker, clocks_.awaited());
}

void ServerCore::publish_clock(std::size_t worker) {
  auto* lines = reinterpret_cast<ClockLine*>(region_ + layout_.clocks());
  const std::uint64_t clock = clocks_.finished(worker) ? finished_clock : clocks_.clock(worker);
  publish(&lines[worker].clock, clock);
}

void ServerCore::violation(std::size_t worker, const std::string& what) const {
  throw ProtocolViolation("worker " + std::to_string(worker) + " sent " + what +
                          "; all ranks must run the same mpips (mpips doctor --mpi checks it)");
}

}  // namespace mpips
