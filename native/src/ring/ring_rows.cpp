#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "ring/checksum.hpp"
#include "ring/record_parts.hpp"
#include "ring/ring_writer.hpp"
#include "shm/backoff.hpp"
#include "shm/copy.hpp"

// The part of RingWriter for rows of embedding tables: pushes, pulls and their replies.
namespace mpips {
namespace {

constexpr double reply_patience_s = 2.0;

}  // namespace

std::size_t RingWriter::push_rows(std::uint16_t table, std::uint64_t clock, const RowsToPush& push,
                                  std::size_t done) {
  if (done == 0 && push.n != 0 && skips_push(table, clock, push.n, push.keys)) return push.n;
  const std::size_t parts = push.base != nullptr ? 2 : 1;
  const bool encodes = push.codec.kind != CodecKind::none;
  const std::size_t row_bytes =
      encodes ? encoded_bytes(push.codec, 0, push.dim) : push.dim * sizeof(float);
  const std::size_t unit = sizeof(std::int64_t) + parts * row_bytes;
  const std::size_t capacity = box_.geometry.payload_capacity() / unit;
  if (capacity == 0)
    throw std::invalid_argument("a row of " + std::to_string(push.dim) +
                                " floats does not fit into a ring slot; raise slot_kib");
  const bool fits = (push.n + capacity - 1) / capacity <= box_.geometry.n_slots;
  const int same = (push.base ? flag_base : 0) | (fits && !encodes ? flag_fits : 0);
  for (std::size_t free = credits(); done < push.n; --free) {
    // Read the credits again: the server may have consumed records meanwhile.
    if (free == 0 && (free = credits()) == 0) break;
    const std::size_t count = std::min(capacity, push.n - done);
    RecordHeader h = push_header(RecordKind::push_rows, table, clock, done == 0);
    h.flags = static_cast<std::uint16_t>(segment_flags(done, count, push.n) | same);
    h.count = static_cast<std::uint32_t>(count);
    h.offset = done;
    h.payload_bytes = static_cast<std::uint32_t>(count * unit);
    std::uint8_t* at = box_.slot(next_) + sizeof h;
    at = append(at, push.keys + done, count * sizeof(std::int64_t));
    auto* rows = reinterpret_cast<float*>(at);
    auto* base = rows + count * push.dim;
    if (encodes) {
      h.slot = codec_word(push.codec.kind, 0);
      encode_rows(push.codec, summed(push, done, count), push.keys + done, count, push.random_key,
                  at);
    } else if (push.plan == nullptr) {
      append_floats(rows, push.rows + done * push.dim, count * push.dim);
      if (parts == 2) append_floats(base, push.base + done * push.dim, count * push.dim);
    } else if (parts == 1 && (push.plan->in_order() || !stores_.takes_plain(count * push.dim))) {
      // Stores past the caches cannot add to what they have stored.
      append_floats(rows, summed(push, done, count), count * push.dim);
    } else {
      push.plan->sum_rows(push.from + done, count, push.rows, push.dim, rows);
      // Equal keys have equal base values, so take any of them.
      if (parts == 2) push.plan->take_rows(push.from + done, count, push.base, push.dim, base);
    }
    if (encodes)
      counters_.push_saved_bytes += static_cast<std::int64_t>(count * push.dim * sizeof(float)) -
                                    static_cast<std::int64_t>(count * row_bytes);
    done += count;
    finish_record(&h, done == push.n ? role_push_end : role_other);
  }
  return done;
}

// Copy n floats into a record. They may begin within a line, behind keys: the rest of that line is
// written by ordinary stores.
void RingWriter::append_floats(float* to, const float* from, std::size_t n) {
  const std::size_t off = reinterpret_cast<std::uintptr_t>(to) % line_bytes / sizeof(float);
  const std::size_t before = off == 0 ? 0 : std::min(n, line_floats - off);
  std::memcpy(to, from, before * sizeof(float));
  to += before;
  from += before;
  stores_.write(to, n - before, line_floats, [&](std::size_t first, std::size_t count, bool past) {
    if (!past) return copy_bytes(to + first, from + first, count * sizeof(float));
    stream_bytes(to + first, from + first, count * sizeof(float));
    complete_streams();
  });
}

// Return rows [done, done + count) of a push, with the rows of equal keys added up.
const float* RingWriter::summed(const RowsToPush& push, std::size_t done, std::size_t count) {
  if (push.plan == nullptr) return push.rows + done * push.dim;
  if (push.plan->in_order()) return push.rows + (push.from + done) * push.dim;
  sums_.resize(count * push.dim);
  push.plan->sum_rows(push.from + done, count, push.rows, push.dim, sums_.data());
  return sums_.data();
}

std::size_t RingWriter::pull_rows(std::uint16_t table, std::uint64_t clock, const RowsToPull& pull,
                                  std::size_t done) {
  const std::size_t by_key = box_.geometry.payload_capacity() / sizeof(std::int64_t);
  const std::size_t by_row =
      (box_.geometry.slot_bytes - sizeof(ReplyHeader)) / reply_row_bytes(pull.codec, pull.dim);
  const std::size_t capacity = std::min(by_key, by_row);
  if (capacity == 0)
    throw std::invalid_argument("a row of " + std::to_string(pull.dim) +
                                " floats does not fit into a reply slot; raise slot_kib");
  std::size_t free = credits();
  for (; done < pull.n && free > 0; --free) {
    const std::size_t count = std::min(capacity, pull.n - done);
    RecordHeader h = pull_header(table, clock);
    h.slot = codec_word(pull.codec.kind, 0);
    h.flags = segment_flags(done, count, pull.n);
    if (pull.changes_since != RowsToPull::whole_rows) {
      h.flags = static_cast<std::uint16_t>(h.flags | flag_changes);
      h.base_version = pull.changes_since;
    }
    h.count = static_cast<std::uint32_t>(count);
    h.offset = done;
    h.payload_bytes = static_cast<std::uint32_t>(count * sizeof(std::int64_t));
    append(box_.slot(next_) + sizeof h, pull.keys + done, count * sizeof(std::int64_t));
    float* out = pull.plan == nullptr ? pull.out + done * pull.dim : pull.out;
    pulls_.push_back({next_, pull.dim, h.count, table, done == 0, pull.ahead, pull.plan,
                      pull.from + done, out, pull.codec});
    done += count;
    finish_record(&h, role_other);
  }
  return done;
}

std::size_t RingWriter::pull_places(std::uint16_t table, std::uint64_t clock,
                                    const PlacesToPull& pull, std::size_t done) {
  const std::size_t bytes = pull.at.row_bytes();
  const std::size_t capacity = (box_.geometry.slot_bytes - sizeof(ReplyHeader)) / bytes;
  if (capacity == 0)
    throw std::invalid_argument("a row of " + std::to_string(bytes / sizeof(float)) +
                                " floats does not fit into a reply slot; raise slot_kib");
  for (std::size_t free = credits(); done < pull.n && free > 0; --free) {
    const std::size_t count = std::min(capacity, pull.n - done);
    RecordHeader h = pull_header(table, clock);
    h.flags = static_cast<std::uint16_t>(segment_flags(done, count, pull.n) | flag_places);
    h.count = static_cast<std::uint32_t>(count);
    h.offset = done;
    h.payload_bytes = sizeof(PlacesPayload);
    PlacesPayload at = pull.at;
    at.first += done;
    append(box_.slot(next_) + sizeof h, &at, sizeof at);
    auto* out = reinterpret_cast<float*>(static_cast<std::uint8_t*>(pull.out) + done * bytes);
    pulls_.push_back({next_, bytes / sizeof(float), h.count, table, false, false, nullptr, 0, out,
                      Codec{}, pull.n_rows, at.first});
    done += count;
    finish_record(&h, role_other);
  }
  return done;
}

bool RingWriter::pull_changes(std::uint16_t table, std::uint64_t clock, const ChangesToPull& pull) {
  const std::size_t bytes = pull.what.entry_bytes();
  const std::size_t count = std::min(most_changes(bytes), pull.most);
  if (count == 0)
    throw std::invalid_argument("a row of " + std::to_string(bytes / sizeof(float)) +
                                " floats does not fit into a reply slot; raise slot_kib");
  if (credits() == 0) return false;
  RecordHeader h = pull_header(table, clock);
  h.flags = static_cast<std::uint16_t>(segment_flags(0, count, count) | flag_places | flag_changes);
  h.count = static_cast<std::uint32_t>(count);
  h.payload_bytes = sizeof(ChangesPayload);
  append(box_.slot(next_) + sizeof h, &pull.what, sizeof pull.what);
  pulls_.push_back({next_, bytes / sizeof(float), h.count, table, false, false, nullptr, 0,
                    reinterpret_cast<float*>(pull.entries), Codec{}, pull.n_entries, 0, pull.head});
  finish_record(&h, role_other);
  return true;
}

// Return true if all of a reply is there. A remote transport may have brought a part of it.
bool RingWriter::is_whole(const OpenPull& pull, const ReplyHeader& h,
                          const std::uint8_t* rows) const {
  if (h.sequence != pull.sequence || h.count != pull.count) return false;
  const std::size_t bytes = pull.n_rows == nullptr ? pull.reply_bytes() : pull.bytes_of(h.version);
  return !checksums_ || h.checksum == reply_checksum(h, rows, bytes);
}

std::size_t RingWriter::collect() {
  const std::uint64_t consumed = applied();
  while (!pulls_.empty() && pulls_.front().sequence < consumed) {
    const OpenPull& pull = pulls_.front();
    const std::uint8_t* reply = box_.reply(pull.sequence);
    ReplyHeader h;
    std::memcpy(&h, reply, sizeof h);
    const std::uint8_t* rows = reply + sizeof h;
    if (!is_whole(pull, h, rows)) {
      reply_is_late(pull.sequence);
      break;
    }
    bad_reply_since_ = 0.0;
    if (pull.n_rows != nullptr) {
      std::size_t bytes = pull.bytes_of(h.version);
      if (pull.changes != nullptr) {
        std::memcpy(pull.changes, rows, sizeof *pull.changes);
        rows += sizeof *pull.changes;
        bytes -= sizeof *pull.changes;
      }
      if (bytes != 0) copy_bytes(pull.out, rows, bytes);
      *pull.n_rows = h.version;
      counters_.pulled_bytes += bytes;
      pulls_.pop_front();
      continue;
    }
    const auto* values = reinterpret_cast<const float*>(rows);
    if (pull.codec.kind != CodecKind::none) {
      decoded_.resize(pull.floats());
      decode(pull.codec, rows, 0, pull.floats(), decoded_.data());
      values = decoded_.data();
    }
    if (pull.plan == nullptr)
      copy_bytes(pull.out, values, pull.floats() * sizeof(float));
    else
      pull.plan->scatter_rows(pull.from, pull.count, values, pull.dim, pull.out);
    counters_.pulled_bytes += pull.reply_bytes();
    counters_.pull_saved_bytes += static_cast<std::int64_t>(pull.floats() * sizeof(float)) -
                                  static_cast<std::int64_t>(pull.reply_bytes());
    if (pull.first) {
      if (log_ != nullptr) log_->add_rows(log_server_, pull.table, pull.sequence, h.version);
      // Take the version of the first reply: it is the oldest one that a large pull brings.
      if (pull.ahead)
        pulled_clock_.put(pull.sequence, h.min_clock);
      else
        base_[pull.table] = h.version;
      pulled_.put(pull.sequence, h.version);
    }
    pulls_.pop_front();
  }
  return pulls_.size();
}

// Throw if a reply stays wrong for too long. A remote transport may have filled the copy with the
// acknowledgement and not yet with the reply, so for a while the reply is only late.
void RingWriter::reply_is_late(std::uint64_t sequence) {
  const double now = now_s();
  if (bad_reply_since_ == 0.0) bad_reply_since_ = now;
  if (now - bad_reply_since_ > reply_patience_s)
    throw std::runtime_error("the reply to pull " + std::to_string(sequence) +
                             " is damaged; use transport = \"p2p\" and report it");
}

std::vector<std::pair<std::uint64_t, std::size_t>> RingWriter::open_pulls() const {
  std::vector<std::pair<std::uint64_t, std::size_t>> list;
  for (const OpenPull& pull : pulls_)
    list.emplace_back(pull.sequence, sizeof(ReplyHeader) + pull.reply_bytes());
  return list;
}

std::uint64_t RingWriter::open_pulls_end() const noexcept {
  return pulls_.empty() ? next_ : pulls_.front().sequence;
}

}  // namespace mpips
