#include <algorithm>
#include <cstring>

#include "ring/checksum.hpp"
#include "server/array.hpp"
#include "server/embedding_shard.hpp"
#include "server/server_core.hpp"

// Recovery of a server's state after its process has ended: what is written when a record is
// consumed (journal.hpp explains the protocol), and how a later process continues.
//
// Steps of recovery. A kill between any two of them repeats all from the first, with the same
// result.
// 1. Undo. The journal restores the unit and the words. They are old bytes, so restoring them twice
//    is the same as once.
// 2. Take over. The private state is read from the words, maps of rows are rebuilt from the keys,
//    and versions of blocks that mark a change in progress are made even. Only private memory
//    changes, and versions, which become even each time.
// 3. Find the end. The ring of each worker ends behind its last complete record that does not
//    belong to an incomplete push. The stamps behind the end are cleared, so that no stale stamp
//    can be taken for that of a later record. Segments of an incomplete push that were consumed are
//    dropped. Clearing only removes what lies behind the end, so the next recovery finds the same
//    end.
// 4. Publish acknowledgements, versions and clocks.
// 5. Finish the operation in progress, before any other.
// 6. Drop what waits of a clock that its worker repeats (`drop_repeated`), once the workers' places
//    are known.
//
// New writers begin at the end that step 3 found. Records below it are of earlier launches, records
// from it on are of this launch. No process of the earlier launch can write any more, because the
// caller has the only lock on the shared-memory files.
namespace mpips {
namespace {

constexpr std::size_t n_stat_words = sizeof(TableStats) / sizeof(std::uint64_t);
constexpr std::size_t n_plain_stats = n_stat_words - staleness_bins;
static_assert(sizeof(TableStats) % sizeof(std::uint64_t) == 0);
static_assert(n_stat_words <= Journal::table_words - Journal::stats);

bool is_push(std::uint8_t kind) noexcept {
  return kind == static_cast<std::uint8_t>(RecordKind::push_dense) ||
         kind == static_cast<std::uint8_t>(RecordKind::push_rows);
}

// Return the digest of the keys of one record; 0 for a record of a dense push.
std::uint64_t digest_of(const RecordHeader& h, const std::uint8_t* payload) noexcept {
  const bool rows = h.kind == static_cast<std::uint8_t>(RecordKind::push_rows);
  if (!rows || h.count > h.payload_bytes / sizeof(std::int64_t)) return 0;
  return keys_digest(reinterpret_cast<const std::int64_t*>(payload), h.count);
}

bool is(std::uint8_t kind, RecordKind wanted) noexcept {
  return kind == static_cast<std::uint8_t>(wanted);
}

// Return true for a push with a residual.
bool has_residual(const RecordHeader& h) noexcept {
  const auto codec = static_cast<CodecKind>(kind_bits_of(h.slot));
  return h.kind == static_cast<std::uint8_t>(RecordKind::push_dense) &&
         (codec == CodecKind::sparse || codec == CodecKind::onebit || codec == CodecKind::shared);
}

}  // namespace

void ServerCore::set_journal(std::unique_ptr<Journal> journal) {
  journal_ = std::move(journal);
  journal_->set_segment(Durable::region, region_);
}

void ServerCore::begin_journal() {
  put_all();
  for (std::size_t t = 0; t < tables_.size(); ++t) put_rule(t);
  journal_->begin_use();
}

// Commit the consumption of a record: all words that it changed, then the store that commits.
void ServerCore::commit(std::size_t worker, const RecordHeader& h, const Verdict& verdict) {
  Ring& ring = rings_[worker];
  settle(&ring, verdict.outcome, verdict.staleness);
  journal_->begin();
  put_worker(worker);
  if (is_push(h.kind))
    put_push(worker, h, verdict);
  else if (is(h.kind, RecordKind::pull_rows))
    journal_->put(journal_->of_table(h.table, Journal::stats) + n_plain_stats - 1,
                  tables_[h.table].stats.pulled_rows);
  else if (is(h.kind, RecordKind::configure))
    put_rule(h.table);
  else if (is(h.kind, RecordKind::store))
    journal_->put(journal_->of_table(h.table, Journal::steps_before),
                  tables_[h.table].steps_before);
  else if (is(h.kind, RecordKind::cut))
    journal_->put_text(worker, h.base_version, ring.position_text.data(),
                       ring.position_text.size());
  else if (journal_->word(Journal::current_clock) != clocks_.current())
    put_all();
  else if (!is(h.kind, RecordKind::tick) || verdict.outcome == Outcome::late)
    put_discarded(worker);
  if (is(h.kind, RecordKind::tick)) put_tick(worker, h);
  // With backup workers, a worker may have skipped clocks between its last tick and its end.
  if (is(h.kind, RecordKind::finish))
    journal_->put(journal_->of_worker(worker, Journal::position), h.clock);
  publish_commit(&ring);
}

void ServerCore::put_tick(std::size_t worker, const RecordHeader& h) {
  Ring& ring = rings_[worker];
  journal_->note_ended(worker, h.clock, ring.tag);
  ring.pushes = 0;
  ring.tag = no_pushes;
  journal_->put(journal_->of_worker(worker, Journal::pushes), 0);
  journal_->put(journal_->of_worker(worker, Journal::tag), no_pushes);
  journal_->put(journal_->of_worker(worker, Journal::position), h.clock + 1);
  for (std::size_t t = 0; t < tables_.size(); ++t)
    journal_->put(journal_->of_pair(t, worker, Journal::taken), 0);
}

// Commit segments that were copied out of their slots.
void ServerCore::commit_segments(std::size_t worker) {
  journal_->set_worker(worker);
  journal_->begin();
  put_worker(worker);
  put_pair(rings_[worker].open_table, worker);
  publish_commit(&rings_[worker]);
}

void ServerCore::publish_commit(Ring* ring) {
  journal_->commit();
  fault::at(fault::Point::committed);
  publish(&ring->box.ack->applied, ring->next);
  fault::at(fault::Point::acknowledged);
}

// Write the words of a worker. Deferred segments are not consumed: in the image their push is not
// open.
void ServerCore::put_worker(std::size_t worker) {
  const Ring& ring = rings_[worker];
  const bool open = ring.open && ring.deferred.empty();
  const auto put = [&](Journal::WorkerWord word, std::uint64_t value) {
    journal_->put(journal_->of_worker(worker, word), value);
  };
  put(Journal::next, ring.next);
  put(Journal::open, open ? 1 | static_cast<std::uint64_t>(ring.open_table) << 16 |
                                static_cast<std::uint64_t>(ring.open_flags) << 32
                          : 0);
  if (open) {
    put(Journal::open_clock, ring.open_clock);
    put(Journal::open_end, ring.open_end);
    put(Journal::open_area, ring.open_area);
    put(Journal::open_digest, ring.open_digest);
  }
  put(Journal::pushes, ring.pushes);
  put(Journal::tag, ring.tag);
  put(Journal::clock, clocks_.clock(worker));
  put(Journal::finished, clocks_.finished(worker));
  put(Journal::ticked, clocks_.ticked(worker));
}

void ServerCore::put_push(std::size_t worker, const RecordHeader& h, const Verdict& verdict) {
  const Table& t = tables_[h.table];
  journal_->put(journal_->of_table(h.table, Journal::version), t.version);
  journal_->put(journal_->of_table(h.table, Journal::turn), t.turn);
  const auto* stats = reinterpret_cast<const std::uint64_t*>(&t.stats);
  const std::size_t first = journal_->of_table(h.table, Journal::stats);
  for (std::size_t i = 0; i < n_plain_stats; ++i) journal_->put(first + i, stats[i]);
  const auto bin = std::min<std::uint64_t>(verdict.staleness, staleness_bins - 1);
  journal_->put(first + n_plain_stats + bin, t.stats.staleness[bin]);
  if ((h.flags & flag_last) != 0) {
    const std::size_t taken = journal_->of_pair(h.table, worker, Journal::taken);
    journal_->put(taken, journal_->word(taken) + 1);
    journal_->put(journal_->of_worker(worker, Journal::position), h.clock);
  }
  put_pair(h.table, worker);
  if (worker != 0) put_pair(h.table, 0);  // without backup workers the sum is in buffer 0
  if (t.scales != nullptr) put_pair(t.scales_table, 0);
}

void ServerCore::put_table(std::size_t table) {
  const Table& t = tables_[table];
  journal_->put(journal_->of_table(table, Journal::version), t.version);
  journal_->put(journal_->of_table(table, Journal::steps_before), t.steps_before);
  journal_->put(journal_->of_table(table, Journal::turn), t.turn);
  const auto* stats = reinterpret_cast<const std::uint64_t*>(&t.stats);
  const std::size_t first = journal_->of_table(table, Journal::stats);
  for (std::size_t i = 0; i < n_stat_words; ++i) journal_->put(first + i, stats[i]);
}

void ServerCore::put_pair(std::size_t table, std::size_t worker) {
  const Table& t = tables_[table];
  if (t.shard == nullptr) return;
  journal_->put(journal_->of_pair(table, worker, Journal::pending), t.pending[worker]);
  const BufferWords words = t.shard->buffer_words(worker);
  for (std::size_t i = 0; i < words.size(); ++i)
    journal_->put(journal_->of_pair(table, worker, Journal::buffers) + i, words[i]);
}

// Write what a worker changes whose pushes of the open clock are dropped.
void ServerCore::put_discarded(std::size_t worker) {
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    put_table(t);
    put_pair(t, worker);
  }
}

void ServerCore::put_all() {
  journal_->put(Journal::current_clock, clocks_.current());
  for (std::size_t w = 0; w < rings_.size(); ++w) put_worker(w);
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    put_table(t);
    for (std::size_t w = 0; w < rings_.size(); ++w) put_pair(t, w);
  }
}

void ServerCore::attach() {
  if (!journal_ || !journal_->usable())
    throw RecoveryError("the memory has no state that a server of this job's shape left");
  unfinished_ = journal_->undo();
  take_words();
  take_switch();
  switch_if_due();
  check_unfinished();
  positions_.assign(rings_.size(), {});
  for (std::size_t w = 0; w < rings_.size(); ++w) {
    find_end(w, rings_[w].next + rings_[w].box.geometry.n_slots);
    cut_off(w);
  }
  // Drop an operation that has changed nothing, or that belongs to a push that is dropped.
  if (unfinished_ >= 0) {
    const Ring& ring = rings_[static_cast<std::size_t>(unfinished_)];
    if (journal_->untouched() || ring.next >= ring.inherited) {
      journal_->forget();
      unfinished_ = -1;
    }
  }
  for (Table& t : tables_) {
    publish_updates(t);
    publish(&t.head->version, t.version);
  }
  publish_clocks();
  for (std::size_t w = 0; w < rings_.size(); ++w) publish_clock(w);
  for (Ring& ring : rings_) publish(&ring.box.ack->applied, ring.next);
  fault::at(fault::Point::recovering);
}

// Check the record of an operation that has changed something: it was complete, and its slot was
// not released.
void ServerCore::check_unfinished() {
  if (unfinished_ < 0 || journal_->untouched()) return;
  const auto worker = static_cast<std::size_t>(unfinished_);
  RecordHeader h;
  if (!complete(worker, rings_[worker].next, &h))
    throw RecoveryError("the record that was being consumed is damaged");
}

void ServerCore::take_words() {
  const auto of = [&](std::size_t w, Journal::WorkerWord word) {
    return journal_->word(journal_->of_worker(w, word));
  };
  for (std::size_t w = 0; w < rings_.size(); ++w) {
    Ring& ring = rings_[w];
    ring.next = of(w, Journal::next);
    const std::uint64_t open = of(w, Journal::open);
    ring.open = open != 0;
    ring.open_table = static_cast<std::uint16_t>(open >> 16);
    ring.open_flags = static_cast<std::uint16_t>(open >> 32);
    ring.open_clock = of(w, Journal::open_clock);
    ring.open_end = of(w, Journal::open_end);
    ring.open_area = of(w, Journal::open_area);
    ring.open_digest = of(w, Journal::open_digest);
    ring.pushes = of(w, Journal::pushes);
    ring.tag = of(w, Journal::tag);
    ring.position_text = journal_->text(w);
    clocks_.restore(w, of(w, Journal::clock), of(w, Journal::finished) != 0,
                    of(w, Journal::ticked) != 0);
  }
  clocks_.restore(journal_->word(Journal::current_clock));
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    Table& t = tables_[i];
    if (t.head == nullptr) throw std::logic_error("a table has not been added");
    t.version = journal_->word(journal_->of_table(i, Journal::version));
    t.steps_before = journal_->word(journal_->of_table(i, Journal::steps_before));
    t.turn = journal_->word(journal_->of_table(i, Journal::turn));
    auto* stats = reinterpret_cast<std::uint64_t*>(&t.stats);
    for (std::size_t k = 0; k < n_stat_words; ++k)
      stats[k] = journal_->word(journal_->of_table(i, Journal::stats) + k);
    if (t.shard == nullptr) continue;
    take_rule(i);
    for (std::size_t w = 0; w < rings_.size(); ++w) take_pair(i, w);
    if (t.embedding != nullptr && t.embedding->has_limits())
      t.embedding->set_clock(clocks_before_ + clocks_.current());
    t.shard->take_over();
    fault::at(fault::Point::recovering);
  }
}

void ServerCore::take_pair(std::size_t table, std::size_t worker) {
  Table& t = tables_[table];
  t.pending[worker] = journal_->word(journal_->of_pair(table, worker, Journal::pending));
  BufferWords words;
  for (std::size_t k = 0; k < words.size(); ++k)
    words[k] = journal_->word(journal_->of_pair(table, worker, Journal::buffers) + k);
  t.shard->set_buffer_words(worker, words);
}

// Return true if a record is stamped and complete. A damaged record counts as never written: it was
// being put when its worker ended.
bool ServerCore::complete(std::size_t worker, std::uint64_t sequence, RecordHeader* h) {
  const Mailbox& box = rings_[worker].box;
  if (load_acquire(box.stamp(sequence)) != sequence + 1) return false;
  std::memcpy(h, box.slot(sequence), sizeof *h);
  if (h->magic != record_magic || h->version != memory_format || h->sequence != sequence ||
      h->worker != worker || h->generation >= generation_ ||
      h->payload_bytes > box.geometry.payload_capacity())
    return false;
  const bool checked = (h->flags & flag_checksum) != 0;
  const std::uint8_t* payload = box.slot(sequence) + sizeof *h;
  return h->header_checksum == (checked ? header_checksum(*h) : 0) &&
         h->payload_checksum == (checked ? checksum(payload, h->payload_bytes) : 0) &&
         ((h->flags & flag_area) == 0 || piece_is_whole(worker, *h, payload));
}

// Find where the worker's complete records below `limit` end, and the worker's position there.
void ServerCore::find_end(std::size_t worker, std::uint64_t limit) {
  Ring& ring = rings_[worker];
  Position at;
  at.sequence = ring.next;
  at.clock = journal_->word(journal_->of_worker(worker, Journal::position));
  at.finished = clocks_.finished(worker);
  for (std::size_t t = 0; t < tables_.size(); ++t)
    at.taken.push_back(journal_->word(journal_->of_pair(t, worker, Journal::taken)));
  at.pushes = ring.pushes;
  at.tag = ring.tag;
  at.ended = journal_->ended(worker, at.clock);
  at.texts = {journal_->text_before(worker), journal_->text(worker)};
  positions_[worker] = at;
  RecordHeader h;
  std::uint64_t digest = ring.open_digest;
  for (std::uint64_t q = ring.next; q < limit; ++q) {
    if (at.finished || !complete(worker, q, &h)) break;
    at.sequence = q + 1;
    if (is_push(h.kind)) {
      if ((h.flags & flag_first) != 0) digest = 0;
      digest += digest_of(h, ring.box.slot(q) + sizeof h);
      if ((h.flags & flag_last) == 0) continue;
      if (h.table < at.taken.size()) ++at.taken[h.table];
      ++at.pushes;
      at.tag = next_tag(at.tag, h.table, h.offset + h.count, digest);
      at.clock = h.clock;
    } else if (is(h.kind, RecordKind::pull_rows)) {
      continue;
    } else if (is(h.kind, RecordKind::tick)) {
      at.clock = h.clock + 1;
      at.ended.emplace_back(h.clock, at.tag);
      at.pushes = 0;
      at.tag = no_pushes;
      std::fill(at.taken.begin(), at.taken.end(), 0);
    } else if (is(h.kind, RecordKind::finish)) {
      at.clock = h.clock;
      at.finished = true;
    } else if (is(h.kind, RecordKind::cut)) {
      at.texts.emplace_back(reinterpret_cast<const char*>(ring.box.slot(q)) + sizeof h,
                            h.payload_bytes);
    }
    positions_[worker] = at;
  }
  ring.inherited = positions_[worker].sequence;
}

// Clear the stamps behind the end: each gets the value that an empty slot has at that time.
void ServerCore::cut_off(std::size_t worker) {
  Ring& ring = rings_[worker];
  const std::uint64_t n_slots = ring.box.geometry.n_slots;
  for (std::uint64_t q = ring.inherited; q < ring.next + n_slots; ++q) {
    store_release(ring.box.stamp(q), q + 1 > n_slots ? q + 1 - n_slots : 0);
    fault::at(fault::Point::recovering);
  }
  if (ring.open && ring.inherited == ring.next) {
    ring.open = false;
    journal_->set(journal_->of_worker(worker, Journal::open), 0);
    fault::at(fault::Point::recovering);
  }
}

// Under BSP a push waits in its ring until the workers before it have ended the clock, and all
// records behind it wait as well. A worker that repeats the clock would find its own pushes of the
// first time in front of the pulls that it repeats. These would wait for workers that may wait for
// this one, in a gather that comes before the pushes of the clock; and a ring that is full of
// pushes has no place for a pull at all. Without the waiting records the repetition meets what the
// first time met.
//
// Why nothing is lost. The worker repeats the clock from its beginning, so it makes all pushes of
// the clock again (in most cases since no server has its tick); those that this server has consumed
// are the first ones, and are skipped (ring_replay.cpp). The state is that of a worker that was
// killed before it had written the rest to this server, except that another server may have later
// pushes of the clock: each server counts its own. Some records stay, with all before them:
// - the rest of a push whose first segments are consumed;
// - a push with a residual, since the half of the residual before it may be overwritten
//   (mpips/worker/feedback/residuals.py);
// - a position at which the worker may continue.
// With backup workers no push waits for other workers, and the clocks that a worker has skipped are
// known only from its records, so all of them stay.
void ServerCore::drop_repeated(std::size_t worker, std::uint64_t clock) {
  Ring& ring = rings_[worker];
  const Position& at = positions_[worker];
  if (!any_bsp_ || clocks_.uses_backup() || at.finished || at.clock != clock ||
      !ring.deferred.empty())
    return;
  const std::uint64_t first = first_repeated(worker, clock);
  if (first >= ring.inherited) return;
  find_end(worker, first);
  cut_off(worker);
  // Forget what was read of the dropped records: others get their numbers.
  ring.decoded_record = ring.verified = 0;
  ring.fetched = 0;
  ring.bad_since = 0.0;
}

// Return the sequence of the first record that `drop_repeated` drops; `inherited` or more: of none.
std::uint64_t ServerCore::first_repeated(std::size_t worker, std::uint64_t clock) {
  const Ring& ring = rings_[worker];
  std::uint64_t first = ring.next;
  bool open = ring.open;
  RecordHeader h;
  for (std::uint64_t q = ring.next; q < ring.inherited; ++q) {
    if (!complete(worker, q, &h)) return ring.inherited;
    const bool stays = h.clock < clock || open || (is_push(h.kind) && has_residual(h)) ||
                       (is(h.kind, RecordKind::cut) && h.base_version <= clock);
    if (stays) first = q + 1;
    if (is_push(h.kind) && (h.flags & flag_last) != 0) open = false;
  }
  return first;
}

// Return the staging memory of earlier launches that records in the rings point to.
std::vector<std::pair<std::size_t, std::uint32_t>> ServerCore::old_staging() {
  std::vector<std::pair<std::size_t, std::uint32_t>> needed;
  RecordHeader h;
  for (std::size_t w = 0; w < rings_.size(); ++w)
    for (std::uint64_t q = rings_[w].next; q < rings_[w].inherited; ++q)
      if (complete(w, q, &h) && is_push(h.kind) && (h.flags & flag_staged) != 0)
        needed.emplace_back(w, h.generation);
  std::sort(needed.begin(), needed.end());
  needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
  return needed;
}

void ServerCore::finish_operation() {
  while (unfinished_ >= 0 && journal_->resuming())
    if (!consume_one(static_cast<std::size_t>(unfinished_)))
      throw RecoveryError("the record that was being consumed is missing");
  unfinished_ = -1;
}

}  // namespace mpips
