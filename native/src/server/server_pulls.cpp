#include <algorithm>
#include <cstring>
#include <string>

#include "ring/checksum.hpp"
#include "server/embedding_shard.hpp"
#include "server/server_core.hpp"

// Pulls of rows: when they are answered, and their replies.
namespace mpips {

ServerCore::Verdict ServerCore::handle_pull(std::size_t worker, const RecordHeader& h,
                                            const std::uint8_t* payload) {
  // Do not answer pulls of an earlier launch, nor pulls in the replica: no worker waits for the
  // replies.
  if (h.generation != generation_ || copy_) return {true, Outcome::answered, 0};
  if (h.table >= tables_.size() || tables_[h.table].embedding == nullptr)
    violation(worker,
              "a pull of rows from table " + std::to_string(h.table) + ", which has no rows here");
  check_member(worker, h);
  if ((h.flags & flag_places) != 0) return handle_places(worker, h, payload);
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
  if (t.consistency.adaptive && h.base_version > h.clock)
    violation(worker, "a pull of clock " + std::to_string(h.clock) + " that needs clock " +
                          std::to_string(h.base_version));
  if (!may_answer(h)) return {false, Outcome::none, 0};
  answer(worker, h, &t, reinterpret_cast<const std::int64_t*>(payload));
  return {true, Outcome::answered, 0};
}

// Return true if the table has the values that a pull of this clock may see.
bool ServerCore::may_answer(const RecordHeader& h) const noexcept {
  const Table& t = tables_[h.table];
  const ConsistencyConfig& c = t.consistency;
  if (c.model == Model::bsp) return clocks_.current() + (t.early ? 1 : 0) >= h.clock;
  const std::uint64_t least = clocks_.min_clock(t.members);
  if (c.model != Model::ssp || least >= h.clock) return true;
  // The worker has read the bound in force at its clock. No bound exceeds the greatest one.
  if (c.adaptive)
    return least >= std::max(h.base_version, h.clock - std::min<std::uint64_t>(h.clock, c.bound));
  return h.clock - least <= c.bound;
}

// Set the clock of the run at which a pull reads. An early sum makes it the one after the open one.
void ServerCore::set_clock_of(const RecordHeader& h, EmbeddingShard* shard) const {
  shard->set_clock(clocks_before_ + std::max(h.clock, clocks_.current()));
}

// Answer a pull by places; see PlacesPayload.
ServerCore::Verdict ServerCore::handle_places(std::size_t worker, const RecordHeader& h,
                                              const std::uint8_t* payload) {
  if ((h.flags & flag_changes) != 0) return handle_changes(worker, h, payload);
  const EmbeddingShard& shard = *tables_[h.table].embedding;
  PlacesPayload at{};
  const std::size_t capacity = layout_.geometry().slot_bytes - sizeof(ReplyHeader);
  if (h.payload_bytes == sizeof at) std::memcpy(&at, payload, sizeof at);
  if (h.payload_bytes != sizeof at || h.slot != 0 || !layout_.geometry().replies ||
      at.row_bytes() * h.count > capacity ||
      std::uint64_t{at.from} + at.n_floats > shard.content_floats())
    violation(worker, "a pull of " + std::to_string(h.count) + " places with " +
                          std::to_string(h.payload_bytes) + " bytes, floats " +
                          std::to_string(at.from) + " to " +
                          std::to_string(std::uint64_t{at.from} + at.n_floats) + " of " +
                          std::to_string(shard.content_floats()) + ": its sizes do not agree");
  if (!may_answer(h)) return {false, Outcome::none, 0};
  // Rows must stay in their places until the worker has read all of them. They do: it is in this
  // clock, and before the clock closes nothing else is to be removed.
  if (shard.has_limits()) {
    set_clock_of(h, tables_[h.table].embedding);
    tables_[h.table].embedding->settle();
  }
  const std::uint64_t n_rows = shard.n_rows();
  const std::uint64_t left = at.first < n_rows ? n_rows - at.first : 0;
  const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(h.count, left));
  std::uint8_t* to = rings_[worker].box.reply(h.sequence) + sizeof(ReplyHeader);
  if (at.n_floats == 0 && n != 0)
    std::memcpy(to, shard.keys() + at.first, n * sizeof(std::int64_t));
  for (std::size_t i = 0; i < n && at.n_floats != 0; ++i)
    shard.read(at.first + i, at.from, at.n_floats,
               reinterpret_cast<float*>(to + i * at.row_bytes()));
  ReplyHeader header{};
  header.version = n_rows;
  send_reply(worker, h, header, n * at.row_bytes());
  return {true, Outcome::answered, 0};
}

// Answer a pull of changes; see ChangesPayload. From the first one on the shard marks its rows.
ServerCore::Verdict ServerCore::handle_changes(std::size_t worker, const RecordHeader& h,
                                               const std::uint8_t* payload) {
  Table& t = tables_[h.table];
  EmbeddingShard& shard = *t.embedding;
  ChangesPayload what{};
  const std::size_t capacity = layout_.geometry().slot_bytes - sizeof(ReplyHeader);
  if (h.payload_bytes == sizeof what) std::memcpy(&what, payload, sizeof what);
  const bool removed = what.at.from == ChangesPayload::removed_rows;
  const std::uint64_t end =
      removed ? what.at.n_floats : std::uint64_t{what.at.from} + what.at.n_floats;
  if (h.payload_bytes != sizeof what || h.slot != 0 || !layout_.geometry().replies ||
      sizeof(ChangesHead) + what.entry_bytes() * h.count > capacity ||
      end > (removed ? 0 : shard.content_floats()))
    violation(worker, "a pull of " + std::to_string(h.count) + " changes with " +
                          std::to_string(h.payload_bytes) + " bytes, " +
                          std::to_string(what.at.n_floats) + " floats of " +
                          std::to_string(shard.content_floats()) + ": its sizes do not agree");
  if (!may_answer(h)) return {false, Outcome::none, 0};
  // As for pulls by places. What has left the table is removed once in a clock.
  if (shard.has_limits() && what.at.first == 0) {
    set_clock_of(h, &shard);
    shard.settle();
  }
  shard.note_changes_from(t.version);
  std::uint8_t* to = rings_[worker].box.reply(h.sequence) + sizeof(ReplyHeader);
  ChangesHead head{};
  const std::size_t n = removed ? shard.list_removed(what, h.count, to + sizeof head, &head)
                                : shard.list_changed(what, h.count, to + sizeof head, &head);
  head.version = t.version;
  std::memcpy(to, &head, sizeof head);
  ReplyHeader header{};
  header.version = n;
  send_reply(worker, h, header, sizeof head + n * what.entry_bytes());
  return {true, Outcome::answered, 0};
}

// Complete the header of a reply, behind which its `bytes` are, and write it.
void ServerCore::send_reply(std::size_t worker, const RecordHeader& h, ReplyHeader header,
                            std::size_t bytes) {
  std::uint8_t* reply = rings_[worker].box.reply(h.sequence);
  header.sequence = h.sequence;
  header.count = h.count;
  header.min_clock = clocks_.min_clock(tables_[h.table].members);
  if ((h.flags & flag_checksum) != 0)
    header.checksum = reply_checksum(header, reply + sizeof header, bytes);
  std::memcpy(reply, &header, sizeof header);
  counters_.bytes_out += bytes;
}

void ServerCore::answer(std::size_t worker, const RecordHeader& h, Table* t,
                        const std::int64_t* keys) {
  std::uint8_t* rows = rings_[worker].box.reply(h.sequence) + sizeof(ReplyHeader);
  const bool changes = (h.flags & flag_changes) != 0;
  const std::size_t dim = changes ? 1 : t->embedding->dim();
  const Codec codec = changes ? Codec{} : t->pull_codec;
  const std::size_t bytes = h.count * reply_row_bytes(codec, dim);
  if (t->embedding->has_limits()) set_clock_of(h, t->embedding);
  if (changes) {
    t->embedding->find_changes(keys, h.count, h.base_version, t->version,
                               reinterpret_cast<float*>(rows));
  } else if (codec.kind == CodecKind::none) {
    const bool past = rings_[worker].far && t->embedding->gathers_rows() && dim % line_floats == 0;
    t->embedding->pull(keys, h.count, reinterpret_cast<float*>(rows), past);
  } else {
    pulled_.resize(h.count * dim);
    t->embedding->pull(keys, h.count, pulled_.data());
    encode_nearest(codec, pulled_.data(), h.count * dim, rows);
  }
  if (!changes) t->stats.pulled_rows += h.count;
  ReplyHeader header{};
  header.version = t->version;
  send_reply(worker, h, header, bytes);
}

}  // namespace mpips
