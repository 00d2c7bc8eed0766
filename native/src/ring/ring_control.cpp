#include <algorithm>
#include <stdexcept>
#include <string>

#include "ring/record_parts.hpp"
#include "ring/ring_writer.hpp"

// Records that are neither pushes, pulls nor ticks: cuts, changes of hyperparameters, and elements
// of replicated tables.
namespace mpips {

bool RingWriter::write_cut(std::uint64_t clock, std::uint64_t id, std::uint64_t described,
                           const void* payload, std::size_t bytes) {
  if (bytes > box_.geometry.payload_capacity())
    throw std::length_error("a worker's part of a checkpoint has " + std::to_string(bytes) +
                            " bytes, but a record has room for " +
                            std::to_string(box_.geometry.payload_capacity()) + "; raise slot_kib");
  check_whole();
  if (has_ended(clock)) return true;
  if (credits() == 0) return false;
  RecordHeader h = header(RecordKind::cut, 0, clock);
  h.offset = id;
  h.base_version = described;
  h.payload_bytes = static_cast<std::uint32_t>(bytes);
  append(box_.slot(next_) + sizeof h, payload, bytes);
  finish_record(&h, role_other);
  ++n_cuts_;
  return true;
}

bool RingWriter::configure(std::uint16_t table, std::uint64_t clock, std::uint64_t ordinal,
                           const OptimizerConfig& config) {
  static_assert(sizeof(RecordHeader) + sizeof(ConfigWords) <= 256, "fits into every slot");
  if (!mismatch_.empty()) throw ReplayMismatch(mismatch_);
  check_whole();
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
  check_whole();
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

}  // namespace mpips
