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

}  // namespace mpips
