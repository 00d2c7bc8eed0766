#include "journal/journal.hpp"

#include <xxhash.h>

#include <cstring>

#include "ring/layout.hpp"

namespace mpips {
namespace {

constexpr std::uint64_t journal_magic = 0x4c4e524a5350504dULL;
constexpr std::size_t first_scratch_bytes = std::size_t{1} << 18;

}  // namespace

std::size_t Journal::bytes(std::size_t n_workers, std::size_t n_tables,
                           std::size_t text_bytes) noexcept {
  const std::size_t words = global_words + n_workers * worker_words + n_tables * table_words +
                            n_tables * n_workers * pair_words + n_tables * rule_words;
  const std::size_t texts = n_texts * round_up(text_bytes + sizeof(std::uint64_t), 8);
  return round_up(page_bytes + words * (sizeof(std::uint64_t) + sizeof(Logged)) +
                      n_workers * (texts + history * sizeof(Ended)),
                  page_bytes) +
         first_scratch_bytes;
}

Journal::Journal(SharedMemory& memory, std::size_t n_workers, std::size_t n_tables,
                 std::size_t text_bytes)
    : memory_(&memory),
      n_workers_(n_workers),
      n_tables_(n_tables),
      text_bytes_(round_up(text_bytes + sizeof(std::uint64_t), 8)) {
  const std::size_t needed = bytes(n_workers, n_tables, text_bytes);
  if (memory.size() < needed)
    throw RecoveryError(
        "the journal in shared memory is too small for this job: " + std::to_string(memory.size()) +
        " bytes, expected " + std::to_string(needed));
  scratch_ = needed - first_scratch_bytes;
  reserved_ = first_scratch_bytes;
  locate();
}

// Compute the addresses of all parts; again whenever the file has grown, because that may move it.
void Journal::locate() noexcept {
  head_ = reinterpret_cast<Head*>(memory_->data());
  words_ = reinterpret_cast<std::uint64_t*>(memory_->data() + page_bytes);
  log_ = reinterpret_cast<Logged*>(words_ + n_words());
  ended_ = reinterpret_cast<Ended*>(log_ + n_words());
  texts_ = reinterpret_cast<std::uint8_t*>(ended_ + n_workers_ * history);
  where_ = reinterpret_cast<std::uint64_t*>(memory_->data() + scratch_);
}

// Store a text. Its word has the length above the place. A checksum stands before the text.
void Journal::put_text(std::size_t worker, std::uint64_t at, const void* text,
                       std::size_t bytes) noexcept {
  const std::size_t newest = of_worker(worker, newest_text),
                    before = of_worker(worker, previous_text);
  const std::size_t described = of_worker(worker, clock_of_text);
  std::uint64_t place = 0;
  while (place == (words_[newest] & 3) || place == (words_[before] & 3)) ++place;
  const std::uint64_t sum = XXH3_64bits(text, bytes);
  std::uint8_t* to = text_of(worker, place);
  std::memcpy(to, &sum, sizeof sum);
  std::memcpy(to + sizeof sum, text, bytes);
  barrier();
  if (at != words_[described]) put(before, words_[newest]);
  put(newest, static_cast<std::uint64_t>(bytes) << 2 | place);
  put(described, at);
}

std::string Journal::text_at(std::size_t worker, std::uint64_t word) const {
  const std::uint64_t bytes = word >> 2, place = word & 3;
  std::uint64_t sum = 0;
  if (place >= n_texts || bytes > text_bytes_ - sizeof sum) return {};
  const std::uint8_t* at = text_of(worker, place);
  std::memcpy(&sum, at, sizeof sum);
  if (XXH3_64bits(at + sizeof sum, bytes) != sum) return {};
  return {reinterpret_cast<const char*>(at + sizeof sum), bytes};
}

std::string Journal::text(std::size_t worker) const {
  return text_at(worker, words_[of_worker(worker, newest_text)]);
}

std::string Journal::text_before(std::size_t worker) const {
  return text_at(worker, words_[of_worker(worker, previous_text)]);
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> Journal::ended(std::size_t worker,
                                                                    std::uint64_t before) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
  for (std::size_t i = 0; i < history; ++i) {
    const Ended& entry = ended_[worker * history + i];
    if (entry.after != 0 && entry.after <= before) found.emplace_back(entry.after - 1, entry.tag);
  }
  return found;
}

bool Journal::usable() const noexcept {
  return head_->magic == journal_magic && head_->version == memory_format &&
         head_->n_workers == n_workers_ && head_->n_tables == n_tables_ && head_->in_use == 1;
}

void Journal::begin_use() noexcept {
  head_->magic = journal_magic;
  head_->version = memory_format;
  head_->n_workers = n_workers_;
  head_->n_tables = n_tables_;
  head_->active = head_->undo.position = head_->n_logged = 0;
  barrier();
  head_->in_use = 1;
  barrier();
}

void Journal::set_segment(std::size_t id, std::uint8_t* data) {
  if (segments_.size() <= id) segments_.resize(id + 1, nullptr);
  segments_[id] = data;
}

// Begin an operation. The log and the position mean nothing while no operation is active.
void Journal::begin() noexcept {
  if (active_) return;
  head_->undo.position = 0;
  head_->n_logged = 0;
  barrier();
  head_->active = worker_ + 1;
  barrier();
  active_ = true;
}

void Journal::commit() noexcept {
  barrier();
  head_->active = 0;
  barrier();
  active_ = resuming_ = false;
  part_ = resume_ = 0;
}

void Journal::save_start(std::size_t n_spans, std::size_t span_bytes) {
  const std::size_t table = round_up(n_spans * sizeof(std::uint64_t), line_bytes);
  const std::size_t needed = table + n_spans * span_bytes;
  if (needed > reserved_) {
    memory_->grow(scratch_ + needed);
    reserved_ = needed;
    locate();
  }
  saved_ = reinterpret_cast<std::uint8_t*>(where_) + table;
  span_bytes_ = span_bytes;
  n_saved_ = 0;
}

void Journal::saved(std::uint64_t unit) noexcept {
  begin();
  head_->n_spans = n_saved_;
  head_->span_bytes = span_bytes_;
  barrier();
  head_->undo.position = unit | in_scratch;
  barrier();
  fault::at(fault::Point::unit_saved);
}

void Journal::done(std::uint64_t unit) noexcept {
  fault::at(fault::Point::unit_changed);
  barrier();
  head_->undo.position = unit + (std::uint64_t{1} << UndoSlots::shift);
  barrier();
  fault::at(fault::Point::unit_done);
}

void Journal::put_unit_back() {
  const std::size_t table = round_up(head_->n_spans * sizeof(std::uint64_t), line_bytes);
  if (scratch_ + table + head_->n_spans * head_->span_bytes > memory_->size())
    throw RecoveryError("the journal is damaged: its scratch area ends too early");
  const std::uint8_t* from = reinterpret_cast<std::uint8_t*>(where_) + table;
  for (std::size_t i = 0; i < head_->n_spans; ++i, from += head_->span_bytes) {
    const std::uint64_t offset = where_[i] & offset_mask;
    std::memcpy(segments_.at(where_[i] >> segment_shift) + offset, from, head_->span_bytes);
    fault::at(fault::Point::recovering);
  }
}

void Journal::put_piece_back() {
  const Pieces& p = head_->pieces;
  const std::uint64_t packed = head_->undo.position;
  const std::size_t number = (packed & UndoSlots::place_bit) != 0 ? 1 : 0;
  std::uint8_t* segment = segments_.at(p.segment);
  const std::uint64_t part = packed >> part_shift << part_shift;
  const std::uint64_t element = (packed - part) >> UndoSlots::shift;
  const std::uint64_t at = head_->undo.start[number] + element * sizeof(float);
  const std::size_t bytes = (packed & (UndoSlots::slot_bit - 1)) * sizeof(float);
  const auto& slot = head_->undo.slots[number][(packed & UndoSlots::slot_bit) != 0 ? 1 : 0];
  for (std::size_t k = 0; k < p.n_arrays; ++k) {
    std::memcpy(segment + at + k * p.distance, slot[k], bytes);
    fault::at(fault::Point::recovering);
  }
  const auto count = static_cast<std::uint32_t>(p.counts[number].old);
  if (p.has_counts != 0) std::memcpy(segment + p.counts[number].at, &count, sizeof count);
}

long Journal::undo() {
  if (head_->active == 0) return -1;
  if ((head_->undo.position & state_mask) != 0) {
    if ((head_->undo.position & in_scratch) != 0)
      put_unit_back();
    else
      put_piece_back();
    barrier();
    head_->undo.position &= ~state_mask;
    barrier();
    fault::at(fault::Point::recovering);
  }
  for (std::uint64_t i = head_->n_logged; i-- > 0;) {
    words_[log_[i].index] = log_[i].value;
    fault::at(fault::Point::recovering);
  }
  barrier();
  head_->n_logged = 0;
  barrier();
  active_ = resuming_ = true;
  part_ = 0;
  resume_ = head_->undo.position;
  return static_cast<long>(head_->active) - 1;
}

}  // namespace mpips
