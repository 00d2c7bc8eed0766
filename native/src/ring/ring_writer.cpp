#include "ring/ring_writer.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/kernel_table.hpp"
#include "ring/checksum.hpp"
#include "ring/record_parts.hpp"
#include "shm/fault.hpp"

namespace mpips {
namespace {

// Stores become visible in order, so each hint delays the copy by one transfer between the cores.
constexpr std::size_t hint_floats = 4096;  // 16 KiB

}  // namespace

RingWriter::RingWriter(std::uint8_t* mailbox, const RingGeometry& geometry, std::uint16_t worker,
                       std::uint32_t generation, bool checksums, std::size_t n_tables)
    : box_(mailbox, geometry),
      worker_(worker),
      generation_(generation),
      checksums_(checksums),
      base_(n_tables, 0),
      named_(n_tables, unnamed),
      pushed_before_(n_tables, 0),
      role_(geometry.n_slots, 0) {}

// Let a pull wait until the records of the earlier launch are applied, like this worker's own
// pushes.
void RingWriter::resume(std::uint64_t sequence, std::uint64_t applied, Replay before) {
  next_ = published_ = sequence;
  consumed_ = retired_ = applied;
  std::fill(pushed_before_.begin(), pushed_before_.end(), sequence);
  replays_ = true;
  before_ = std::move(before);
  repeated_ = 0;
  repeated_tag_ = no_pushes;
}

// Return false if the worker is past everything that it may repeat.
bool RingWriter::follows(std::uint64_t clock) {
  if (!mismatch_.empty()) throw ReplayMismatch(mismatch_);
  if (!replays_) return false;
  if (!before_.finished && clock > before_.clock) {
    const std::uint64_t made = repeated_clock_ == before_.clock ? repeated_ : 0;
    if (made < before_.pushes) mismatch(clock, "has not repeated its pushes of the previous clock");
    return replays_ = false;
  }
  if (clock != repeated_clock_) {
    repeated_clock_ = clock;
    repeated_ = 0;
    repeated_tag_ = no_pushes;
  }
  return true;
}

// Return true for clocks that this worker had ended before the restart.
bool RingWriter::has_ended(std::uint64_t clock) const noexcept {
  return replays_ && (before_.finished || clock < before_.clock);
}

bool RingWriter::skips_push(std::uint16_t table, std::uint64_t clock, std::uint64_t n,
                            const std::int64_t* keys) {
  if (!follows(clock)) return false;
  const bool ended = has_ended(clock);
  if (ended && clock >= before_.clock)
    mismatch(clock, "pushes in it, but had finished without a push before the restart");
  if (!ended && repeated_ == before_.pushes) return false;
  const std::uint64_t digest = keys == nullptr ? 0 : keys_digest(keys, static_cast<std::size_t>(n));
  repeated_tag_ = next_tag(repeated_tag_, table, n, digest);
  ++repeated_;
  if (!ended && repeated_ == before_.pushes) compare_pushes(clock);
  return true;
}

bool RingWriter::skips_tick(RecordKind kind, std::uint64_t clock) {
  if (!follows(clock)) return false;
  if (kind == RecordKind::finish) {
    if (before_.finished) return true;
    if (clock < before_.clock && !before_.skips_clocks)
      mismatch(clock, "finishes, but had gone on to clock " + std::to_string(before_.clock) +
                          " before the restart");
  } else if (has_ended(clock)) {
    if (clock >= before_.clock) mismatch(clock, "ends it, but had finished before the restart");
    compare_ended(clock);
    return true;
  }
  if (clock == before_.clock && repeated_ != before_.pushes) compare_pushes(clock);
  return false;
}

// With backup workers, a worker that repeats clocks may stop at clocks that it skipped before.
void RingWriter::compare_ended(std::uint64_t clock) {
  for (const auto& [at, tag] : before_.ended) {
    if (at != clock) continue;
    if (tag != repeated_tag_) mismatch(clock, "makes other pushes than before");
    return;
  }
  if (!before_.skips_clocks)
    mismatch(clock, "is too far behind: its pushes of that clock are no longer known");
}

void RingWriter::compare_pushes(std::uint64_t clock) {
  if (repeated_ < before_.pushes)
    mismatch(clock, "makes " + std::to_string(repeated_) + " pushes, but had made " +
                        std::to_string(before_.pushes) + " before the restart");
  if (repeated_tag_ != before_.tag) mismatch(clock, "makes other pushes than before");
}

void RingWriter::mismatch(std::uint64_t clock, const std::string& what) {
  mismatch_ = "worker " + std::to_string(worker_) + " repeats clock " + std::to_string(clock) +
              " and " + what;
  throw ReplayMismatch(mismatch_);
}

// Read `applied`, and the results up to it. The server uses result slots again, but only after this
// worker has written the record behind them. That needs a credit, and a credit needs that the old
// result has been read here.
std::uint64_t RingWriter::applied() noexcept {
  consumed_ = read_pair_spin(&box_.ack->applied, consumed_);
  for (; retired_ < consumed_; ++retired_) {
    const std::uint64_t word = result_word(retired_);
    if (!result_is_of(word, retired_)) break;
    retire(retired_, word);
  }
  return retired_;
}

// Read a result from the acknowledgement line while it is there. The server may have written the
// result of a later record in its place; the sequence in the word shows that.
std::uint64_t RingWriter::result_word(std::uint64_t sequence) const noexcept {
  const std::uint64_t word = load_acquire(&box_.ack->recent[sequence % recent_results]);
  return result_is_of(word, sequence) ? word : load_acquire(box_.result(sequence));
}

std::size_t RingWriter::credits() noexcept {
  std::uint64_t floor = applied();
  if (!pulls_.empty()) floor = std::min(floor, pulls_.front().sequence);
  return static_cast<std::size_t>(floor + box_.geometry.n_slots - next_);
}

RecordHeader RingWriter::header(RecordKind kind, std::uint16_t table,
                                std::uint64_t clock) const noexcept {
  RecordHeader h{};
  h.magic = record_magic;
  h.version = layout_version;
  h.kind = static_cast<std::uint8_t>(kind);
  h.generation = generation_;
  h.worker = worker_;
  h.table = table;
  h.sequence = next_;
  h.base_version = base_[table];
  h.clock = clock;
  return h;
}

// Give all records of a push the version of the first one: a pull may be answered while the push is
// being written.
RecordHeader RingWriter::push_header(RecordKind kind, std::uint16_t table, std::uint64_t clock,
                                     bool first) noexcept {
  if (first) push_base_ = named_[table] != unnamed ? named_[table] : base_[table];
  RecordHeader h = header(kind, table, clock);
  h.base_version = push_base_;
  return h;
}

void RingWriter::finish_record(RecordHeader* h, std::uint8_t role) noexcept {
  std::uint8_t* slot = box_.slot(next_);
  if (closing_ && role == role_push_end)
    h->flags = static_cast<std::uint16_t>(h->flags | flag_closes);
  if (checksums_) {
    h->flags = static_cast<std::uint16_t>(h->flags | flag_checksum);
    h->payload_checksum = checksum(slot + sizeof *h, h->payload_bytes);
    h->header_checksum = header_checksum(*h);
  }
  std::memcpy(slot, h, sizeof *h);
  role_[next_ % box_.geometry.n_slots] = role;
  const auto kind = static_cast<RecordKind>(h->kind);
  if (kind == RecordKind::push_dense || kind == RecordKind::push_rows)
    counters_.pushed_bytes += carried_bytes(*h);
  if (kind == RecordKind::push_dense && h->slot != 0)
    counters_.push_saved_bytes += static_cast<std::int64_t>(h->count * sizeof(float)) -
                                  static_cast<std::int64_t>(h->payload_bytes);
  if (role == role_push_end) {
    ++counters_.pushed;
    pushed_before_[h->table] = next_ + 1;
  }
  fault::at(fault::Point::payload);
  // Read the time before the server can see the record.
  const std::uint64_t sent_ns = trace_ != nullptr ? TraceRing::now_ns() : 0;
  store_release(box_.stamp(next_), next_ + 1);
  fault::at(fault::Point::stamped);
  if (trace_ != nullptr && role == role_push_end)
    trace_->add(TraceKind::sent, sent_ns, sent_ns, next_, h->clock, h->table, server_);
  ++next_;
}

bool RingWriter::write_tick(RecordKind kind, std::uint64_t clock) {
  if (skips_tick(kind, clock)) return true;
  if (credits() == 0) return false;
  RecordHeader h = header(kind, 0, clock);
  finish_record(&h, role_tick);
  return true;
}

bool RingWriter::write_cut(std::uint64_t clock, std::uint64_t id, std::uint64_t described,
                           const void* payload, std::size_t bytes) {
  if (bytes > box_.geometry.payload_capacity())
    throw std::length_error("a worker's part of a checkpoint has " + std::to_string(bytes) +
                            " bytes, but a record has room for " +
                            std::to_string(box_.geometry.payload_capacity()) + "; raise slot_kib");
  if (has_ended(clock)) return true;
  if (credits() == 0) return false;
  RecordHeader h = header(RecordKind::cut, 0, clock);
  h.offset = id;
  h.base_version = described;
  h.payload_bytes = static_cast<std::uint32_t>(bytes);
  append(box_.slot(next_) + sizeof h, payload, bytes);
  finish_record(&h, role_other);
  return true;
}

bool RingWriter::configure(std::uint16_t table, std::uint64_t clock, std::uint64_t ordinal,
                           const OptimizerConfig& config) {
  static_assert(sizeof(RecordHeader) + sizeof(ConfigWords) <= 256, "fits into every slot");
  if (!mismatch_.empty()) throw ReplayMismatch(mismatch_);
  if (has_ended(clock)) return true;
  if (credits() == 0) return false;
  RecordHeader h = header(RecordKind::configure, table, clock);
  const ConfigWords words = words_of(config);
  h.offset = ordinal;
  h.payload_bytes = sizeof words;
  append(box_.slot(next_) + sizeof h, words.data(), sizeof words);
  finish_record(&h, role_other);
  return true;
}

std::size_t RingWriter::store(std::uint16_t table, std::uint64_t clock, std::uint16_t slot,
                              std::uint64_t steps, std::uint64_t offset, const float* values,
                              std::size_t n, std::size_t done) {
  if (has_ended(clock)) return n;
  const std::size_t capacity = box_.geometry.payload_capacity() / sizeof(float);
  for (std::size_t free = credits(); done < n && free > 0; --free) {
    const std::size_t count = std::min(capacity, n - done);
    RecordHeader h = header(RecordKind::store, table, clock);
    h.slot = slot;
    h.base_version = steps;
    h.offset = offset + done;
    h.count = static_cast<std::uint32_t>(count);
    h.payload_bytes = static_cast<std::uint32_t>(count * sizeof(float));
    append(box_.slot(next_) + sizeof h, values + done, count * sizeof(float));
    done += count;
    finish_record(&h, role_other);
  }
  return done;
}

std::size_t RingWriter::push_dense(std::uint16_t table, std::uint64_t clock, const float* update,
                                   const float* base, std::size_t n, std::size_t done) {
  if (done == 0 && skips_push(table, clock, n, nullptr)) return n;
  const std::size_t parts = base != nullptr ? 2 : 1;
  const std::size_t capacity = box_.geometry.payload_capacity() / (parts * sizeof(float));
  std::size_t free = credits();
  for (; done < n && free > 0; --free) {
    const std::size_t count = std::min(capacity, n - done);
    RecordHeader h = push_header(RecordKind::push_dense, table, clock, done == 0);
    h.flags = static_cast<std::uint16_t>(segment_flags(done, count, n) | (base ? flag_base : 0));
    h.count = static_cast<std::uint32_t>(count);
    h.offset = done;
    h.payload_bytes = static_cast<std::uint32_t>(parts * count * sizeof(float));
    std::uint8_t* at = box_.slot(next_) + sizeof h;
    at = append(at, update + done, count * sizeof(float));
    if (base != nullptr) append(at, base + done, count * sizeof(float));
    done += count;
    finish_record(&h, done == n ? role_push_end : role_other);
  }
  return done;
}

std::size_t RingWriter::push_encoded(std::uint16_t table, std::uint64_t clock, Codec codec,
                                     const float* tensor, std::size_t whole, std::size_t begin,
                                     std::size_t n, std::uint64_t random_key, std::size_t done) {
  if (done == 0 && skips_push(table, clock, n, nullptr)) return n;
  for (std::size_t free = credits(); done < n && free > 0; --free) {
    const std::size_t skew = (begin + done) % codec.block;
    const std::size_t count =
        std::min(encoded_capacity(codec, skew, box_.geometry.payload_capacity()), n - done);
    RecordHeader h = push_header(RecordKind::push_dense, table, clock, done == 0);
    h.flags = segment_flags(done, count, n);
    h.slot = codec_word(codec.kind, skew);
    h.count = static_cast<std::uint32_t>(count);
    h.offset = done;
    h.payload_bytes = static_cast<std::uint32_t>(encoded_bytes(codec, skew, count));
    encode(codec, tensor, whole, begin + done, count, random_key, box_.slot(next_) + sizeof h);
    done += count;
    finish_record(&h, done == n ? role_push_end : role_other);
  }
  return done;
}

std::size_t RingWriter::push_feedback(std::uint16_t table, std::uint64_t clock, Feedback* feedback,
                                      const float* update, std::uint64_t random_key) {
  const std::size_t n = feedback->n();
  if (!feedback->is_open()) {
    if (skips_push(table, clock, n, nullptr)) return n;
    feedback->begin(update, random_key);
  }
  for (std::size_t free = credits(); feedback->done() < n && free > 0; --free) {
    const std::size_t done = feedback->done();
    RecordHeader h = push_header(RecordKind::push_dense, table, clock, done == 0);
    h.slot = codec_word(feedback->codec(), feedback->skew());
    const auto [count, bytes] =
        feedback->encode(box_.slot(next_) + sizeof h, box_.geometry.payload_capacity());
    h.flags = segment_flags(done, count, n);
    h.count = static_cast<std::uint32_t>(count);
    h.offset = done;
    h.payload_bytes = static_cast<std::uint32_t>(bytes);
    // The residual is complete and has its tag before the push is.
    const bool last = feedback->done() == n;
    if (last) feedback->close(next_);
    finish_record(&h, last ? role_push_end : role_other);
  }
  return feedback->done();
}

bool RingWriter::push_whole(std::uint16_t table, std::uint64_t clock, const float* update,
                            std::size_t n, bool check_finite) {
  if (credits() == 0) return false;
  if (skips_push(table, clock, n, nullptr)) return true;
  RecordHeader h = push_header(RecordKind::push_dense, table, clock, true);
  h.flags = static_cast<std::uint16_t>(flag_first | flag_last);
  h.count = static_cast<std::uint32_t>(n);
  h.payload_bytes = static_cast<std::uint32_t>(n * sizeof(float));
  auto* to = reinterpret_cast<float*>(box_.slot(next_) + sizeof h);
  // Publish hints, so that the server prefetches what is written while the rest is being copied.
  for (std::size_t done = 0; done < n;) {
    const std::size_t count = std::min(hint_floats, n - done);
    if (!kernels().copy_finite(to + done, update + done, count) && check_finite) return false;
    done += count;
    if (done < n) store_release(box_.hint(next_), make_hint(next_, done * sizeof(float)));
  }
  finish_record(&h, role_push_end);
  last_bytes_ = h.payload_bytes;
  return true;
}

void RingWriter::warm_next_slot(std::size_t at_most) const noexcept {
  const std::uint8_t* slot = box_.slot(next_);
  const std::size_t bytes = std::min(sizeof(RecordHeader) + last_bytes_, at_most);
  __builtin_prefetch(box_.stamp(next_), 1);
  for (std::size_t at = 0; at < bytes; at += line_bytes) __builtin_prefetch(slot + at, 1);
}

bool RingWriter::push_staged(std::uint16_t table, std::uint64_t clock, StagedPayload where,
                             std::size_t n) {
  if (credits() == 0) return false;
  if (skips_push(table, clock, n, nullptr)) return true;
  RecordHeader h = push_header(RecordKind::push_dense, table, clock, true);
  const bool has_base = where.base_offset != ~std::uint64_t{0};
  h.flags =
      static_cast<std::uint16_t>(flag_first | flag_last | flag_staged | (has_base ? flag_base : 0));
  h.count = static_cast<std::uint32_t>(n);
  h.payload_bytes = sizeof where;
  std::memcpy(box_.slot(next_) + sizeof h, &where, sizeof where);
  finish_record(&h, role_push_end);
  return true;
}

bool RingWriter::push_area(std::uint16_t table, std::uint64_t clock, AreaPayload where,
                           bool arrived, std::size_t done, std::size_t count, std::size_t n) {
  if (credits() == 0) return false;
  RecordHeader h = push_header(RecordKind::push_dense, table, clock, done == 0);
  h.flags = static_cast<std::uint16_t>(segment_flags(done, count, n) | flag_area |
                                       (arrived ? flag_arrived : 0));
  h.count = static_cast<std::uint32_t>(count);
  h.offset = done;
  h.payload_bytes = sizeof where;
  std::memcpy(box_.slot(next_) + sizeof h, &where, sizeof where);
  finish_record(&h, done + count == n ? role_push_end : role_other);
  return true;
}

void RingWriter::retire(std::uint64_t sequence, std::uint64_t result) noexcept {
  past_.put(sequence, result);
  const std::uint8_t role = role_[sequence % box_.geometry.n_slots];
  auto& outcomes = counters_.outcomes;
  if (role == role_push_end) {
    outcomes[std::min<std::size_t>(result & 0xff, outcomes.size() - 1)] += 1;
    counters_.max_staleness = std::max(counters_.max_staleness, staleness_of(result));
    counters_.staleness_sum += staleness_of(result);
    if (trace_ != nullptr) {
      const std::uint64_t now_is = TraceRing::now_ns();
      trace_->add(TraceKind::taken, now_is, now_is, sequence, 0, 0, server_);
    }
  } else if (role == role_tick && outcome_of(result) == Outcome::late) {
    // The clock closed without this worker: its pushes were accumulated first and then dropped.
    outcomes[static_cast<std::size_t>(Outcome::accumulated)] -= staleness_of(result);
    outcomes[static_cast<std::size_t>(Outcome::late)] += staleness_of(result);
  }
}

std::uint64_t RingWriter::result(std::uint64_t sequence) noexcept {
  applied();
  return past_.find(sequence, 0);
}

std::uint64_t RingWriter::pulled_version(std::uint64_t sequence) const noexcept {
  return pulled_.find(sequence, unnamed);
}

const PushCounters& RingWriter::counters() noexcept {
  applied();
  return counters_;
}

}  // namespace mpips
