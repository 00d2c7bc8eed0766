#include "ring/ring_writer.hpp"

#include <algorithm>
#include <cstring>

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
      bounds_(n_tables, no_bound),
      role_(geometry.n_slots, 0),
      whole_(n_tables) {
  if (!checksums_) return;
  // A record is read here again: for its checksum, and to send it if the mailbox is a private copy.
  distance_.stay_near();
  stores_.stay_in_caches();
}

void RingWriter::interrupted() const {
  throw InterruptedPush(
      "an earlier push to table '" + whole_[static_cast<std::size_t>(open_push_)] +
      "' was interrupted (by a stall or Ctrl-C) when a part of it had been sent, which servers "
      "have "
      "added already, so this worker can send nothing more: end the job and start it again");
}

std::size_t RingWriter::credits() noexcept {
  std::uint64_t floor = applied();
  if (!pulls_.empty()) floor = std::min(floor, pulls_.front().sequence);
  const auto free = static_cast<std::size_t>(floor + box_.geometry.n_slots - next_);
  if (free == 0 || owed_tick_ == no_tick) return free;
  RecordHeader h = tick_header(RecordKind::tick, owed_tick_);
  owed_tick_ = no_tick;
  finish_record(&h, role_tick);
  return free - 1;
}

RecordHeader RingWriter::header(RecordKind kind, std::uint16_t table,
                                std::uint64_t clock) const noexcept {
  RecordHeader h{};
  h.magic = record_magic;
  h.version = memory_format;
  h.kind = static_cast<std::uint8_t>(kind);
  h.generation = generation_;
  h.worker = worker_;
  h.table = table;
  h.sequence = next_;
  h.base_version = base_[table];
  h.clock = clock;
  return h;
}

RecordHeader RingWriter::tick_header(RecordKind kind, std::uint64_t clock) const noexcept {
  RecordHeader h = header(kind, 0, clock);
  h.base_version = switch_at_;
  return h;
}

// Give all records of a push the version of the first one: a pull may be answered while the push is
// being written.
RecordHeader RingWriter::push_header(RecordKind kind, std::uint16_t table, std::uint64_t clock,
                                     bool first) {
  if (first) check_whole();
  if (first) push_base_ = named_[table] != unnamed ? named_[table] : base_[table];
  RecordHeader h = header(kind, table, clock);
  h.base_version = push_base_;
  return h;
}

void RingWriter::finish_record(RecordHeader* h, std::uint8_t role) noexcept {
  std::uint8_t* slot = box_.slot(next_);
  if (closing_ && role == role_push_end)
    h->flags = static_cast<std::uint16_t>(h->flags | flag_closes);
  if (is_far()) h->flags = static_cast<std::uint16_t>(h->flags | flag_far);
  if (checksums_) {
    h->flags = static_cast<std::uint16_t>(h->flags | flag_checksum);
    h->payload_checksum = checksum(slot + sizeof *h, h->payload_bytes);
    h->header_checksum = header_checksum(*h);
  }
  std::memcpy(slot, h, sizeof *h);
  role_[next_ % box_.geometry.n_slots] = role;
  const auto kind = static_cast<RecordKind>(h->kind);
  if (kind == RecordKind::push_dense || kind == RecordKind::push_rows) {
    counters_.pushed_bytes += carried_bytes(*h);
    open_push_ = role == role_push_end || whole_[h->table].empty() ? -1 : h->table;
  }
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

std::vector<std::pair<std::size_t, std::size_t>> RingWriter::new_parts(std::size_t most,
                                                                       std::size_t slack) const {
  const RingGeometry& g = box_.geometry;
  std::vector<std::pair<std::size_t, std::size_t>> parts;
  for (std::uint64_t q = published_; q < next_; ++q) {
    const std::size_t start = g.stamps_offset() + (q % g.n_slots) * g.record_stride();
    RecordHeader h;
    std::memcpy(&h, box_.slot(q), sizeof h);
    const std::size_t end = start + stamp_bytes + sizeof h + h.payload_bytes;
    if (!parts.empty() && start >= parts.back().second && start - parts.back().second <= slack &&
        end - parts.back().first <= most)
      parts.back().second = end;
    else
      parts.emplace_back(start, end);
  }
  return parts;
}

bool RingWriter::write_tick(RecordKind kind, std::uint64_t clock, std::uint32_t own_us) {
  check_whole();
  if (skips_tick(kind, clock)) return true;
  if (credits() == 0) return false;
  RecordHeader h = tick_header(kind, clock);
  h.count = own_us;
  finish_record(&h, role_tick);
  return true;
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
    auto* at = reinterpret_cast<float*>(box_.slot(next_) + sizeof h);
    append_floats(at, update + done, count);
    if (base != nullptr) append_floats(at + count, base + done, count);
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
    check_whole();
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

Written RingWriter::push_whole(std::uint16_t table, std::uint64_t clock, const float* update,
                               std::size_t n, bool check_finite) {
  if (replays_) {
    // A push that is left out is counted, so check it before.
    if (check_finite && !kernels().all_finite(update, n)) return Written::not_finite;
    if (skips_push(table, clock, n, nullptr)) return Written::yes;
  }
  if (credits() == 0) return Written::no_room;
  RecordHeader h = push_header(RecordKind::push_dense, table, clock, true);
  h.flags = static_cast<std::uint16_t>(flag_first | flag_last);
  h.count = static_cast<std::uint32_t>(n);
  h.payload_bytes = static_cast<std::uint32_t>(n * sizeof(float));
  auto* to = reinterpret_cast<float*>(box_.slot(next_) + sizeof h);
  bool finite = true;
  stores_.write(to, n, line_floats, [&](std::size_t first, std::size_t count, bool past) {
    if (past)
      finite &= kernels().stream_finite(to + first, update + first, count);
    else
      finite &= copy_with_hints(to, update, first, first + count, n);
  });
  if (!finite && check_finite) return Written::not_finite;
  finish_record(&h, role_push_end);
  last_bytes_ = h.payload_bytes;
  return Written::yes;
}

// Copy floats [done, stop) of n into the slot. Publish hints, so that the server prefetches what is
// written while the rest is being copied. Return true if no float is NaN or infinite.
bool RingWriter::copy_with_hints(float* to, const float* update, std::size_t done, std::size_t stop,
                                 std::size_t n) noexcept {
  bool finite = true;
  while (done < stop) {
    const std::size_t count = std::min(hint_floats, stop - done);
    finite &= kernels().copy_finite(to + done, update + done, count);
    done += count;
    if (count == hint_floats && done < n)
      store_release(box_.hint(next_), make_hint(next_, done * sizeof(float)));
  }
  return finite;
}

void RingWriter::warm_next_slot(std::size_t at_most) const noexcept {
  const std::uint8_t* slot = box_.slot(next_);
  std::size_t bytes = std::min(sizeof(RecordHeader) + last_bytes_, at_most);
  // Stores past the caches would have to write these lines back first.
  if (last_bytes_ >= StoreChoice::least_floats * sizeof(float) && !stores_.is_plain())
    bytes = sizeof(RecordHeader);
  __builtin_prefetch(box_.stamp(next_), 1);
  for (std::size_t at = 0; at < bytes; at += line_bytes) __builtin_prefetch(slot + at, 1);
}

bool RingWriter::push_staged(std::uint16_t table, std::uint64_t clock, StagedPayload where,
                             std::size_t n) {
  if (skips_push(table, clock, n, nullptr)) return true;
  if (credits() == 0) return false;
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

}  // namespace mpips
