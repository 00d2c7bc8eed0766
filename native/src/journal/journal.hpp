#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_types.hpp"
#include "shm/fault.hpp"
#include "shm/shared_memory.hpp"

// What makes a server's changes survive SIGKILL at any instruction. It lies in a shared-memory
// segment, so that the process that comes after can read it.
//
// What a kill leaves. Memory holds the effects of a prefix of the instructions that the process
// would have executed: a killed processor context retires in order, and stores to shared memory are
// not lost. So only the order of stores in the program counts, and only the compiler could change
// it: `barrier` stops it.
//
// Operation: what one record does, from the first change to the acknowledgement. It is undone in
// part, then done again from the record, which stays in its ring till then; its large parts that
// are complete are skipped. Three kinds of memory take part:
//
// 1. Words (clocks, versions, counts, numbers of records): an image in this segment. The server
// works
//    with private copies and brings the image up to date at the end of an operation (`put`): old
//    word into the log, log's length, new word. Then `active` = 0, one store, commits. Killed
//    before: the log puts every old word back (any number of times: it holds old words only).
//    Killed after: the log is not looked at.
// 2. Units (a stretch of a dense shard with its optimizer state, a batch of rows, a stretch of a
//    sum): old bytes into the scratch area, `position` = this unit, saved; change; `position` =
//    next unit. The position is one word, so there is no state between these three. Killed while
//    saving: the unit is unchanged. Killed while it says "saved": the scratch area puts the unit
//    back. In both cases, and after, the operation is done again and every unit below the position
//    is skipped: it is complete and must not be applied twice. Parts and units are numbered in the
//    order in which the operation comes to them, which is the same again, since it depends on the
//    record and on words that are as they were.
//    The optimizers' kernels do the same by themselves in pieces of 32 floats (`UndoSlots`), whose
//    position is the element: two slots by turns instead of the scratch area, and no store that
//    says "changed", since the next piece's position does. A row's step count changes behind its
//    last piece, and is put back with any of them.
// 3. What lies behind an end that a word gives (new rows, segments of a push that is not complete):
//    written first, then the end moves. Doing that again writes the same bytes. The number of rows
//    of a table moves at once and is not put back: a row that was made and not updated holds what a
//    pull of an absent row answers.
//
// So at any instruction an operation is (a) not begun, (b) active: its words as before after the
// log has been put back, its units below the position done, the others not; finished by doing it
// again before anything else is, or (c) committed. In (c) `applied` may not be published yet:
// recovery publishes it from the image. In (b) the record is in its ring, because a slot is written
// again only after `applied` has been published.
//
// Recovery itself may be killed: putting back is repeated from the start, and its other steps
// repeat to the same end (see server_recovery.cpp).
namespace mpips {

// There is nothing that could be recovered, or not by this job.
class RecoveryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Journal {
 public:
  // Words of the image, by owner.
  enum GlobalWord : std::size_t { current_clock, global_words };
  enum WorkerWord : std::size_t {
    next,  // records consumed
    open,  // 1, table, flags of the push that is not complete; 0: there is none
    open_clock,
    open_end,
    open_area,
    open_digest,  // of the keys of that push so far
    clock,
    finished,
    ticked,
    position,       // the clock that the worker is in, by what it last sent
    pushes,         // complete pushes of that clock
    tag,            // what identifies them (ring/push_tag.hpp)
    newest_text,    // the place of the worker's newest text, and its length
    previous_text,  // the same of the newest text of another clock
    clock_of_text,  // the clock that the newest text describes
    worker_words,
  };
  enum TableWord : std::size_t { version, steps_before, n_rows, stats, table_words = stats + 80 };
  // Of a worker's pushes to a table, and of the table's buffers of that number.
  enum PairOffset : std::size_t { taken, pending, buffers, pair_words = buffers + 4 };

  // `text_bytes`: the most that a worker says at a time (see server_snapshot.cpp).
  Journal(SharedMemory& memory, std::size_t n_workers, std::size_t n_tables,
          std::size_t text_bytes);
  static std::size_t bytes(std::size_t n_workers, std::size_t n_tables,
                           std::size_t text_bytes) noexcept;

  // True where an earlier process left a journal of a job of this shape that was begun.
  bool usable() const noexcept;
  // The image is complete: from here on a kill is survived.
  void begin_use() noexcept;

  // Memory that units lie in; the same numbers in every process.
  void set_segment(std::size_t id, std::uint8_t* data);
  std::uint8_t* segment(std::size_t id) const { return segments_.at(id); }

  std::size_t of_worker(std::size_t w, std::size_t word) const noexcept {
    return global_words + w * worker_words + word;
  }
  std::size_t of_table(std::size_t t, std::size_t word) const noexcept {
    return global_words + n_workers_ * worker_words + t * table_words + word;
  }
  std::size_t of_pair(std::size_t t, std::size_t w, std::size_t word) const noexcept {
    return global_words + n_workers_ * worker_words + n_tables_ * table_words +
           (t * n_workers_ + w) * pair_words + word;
  }
  std::uint64_t word(std::size_t index) const noexcept { return words_[index]; }
  // Outside operations, or where the change is to stay whatever becomes of the operation.
  void set(std::size_t index, std::uint64_t value) noexcept {
    barrier();
    words_[index] = value;
    barrier();
  }
  // Within an operation.
  void put(std::size_t index, std::uint64_t value) noexcept {
    if (words_[index] == value) return;
    log_[head_->n_logged] = {index, words_[index]};
    barrier();
    ++head_->n_logged;
    barrier();
    fault::at(fault::Point::word_logged);
    words_[index] = value;
    barrier();
    fault::at(fault::Point::word_put);
  }

  // The text of a worker that describes where it stands at clock `at`, within an operation. There
  // are three places: the newest text, the newest one of another clock, and a free place that is
  // written before the words change. A worker that repeats a clock after a restart replaces only
  // the text of that clock: the one that it started from stays, however often it dies there.
  void put_text(std::size_t worker, std::uint64_t at, const void* text, std::size_t bytes) noexcept;
  std::string text(std::size_t worker) const;
  std::string text_before(std::size_t worker) const;

  // The tags of the clocks that a worker has ended, of the last `history` of them. An entry is
  // written before the word that ends its clock, and counts only for clocks below that word.
  static constexpr std::size_t history = 512;
  void note_ended(std::size_t worker, std::uint64_t at, std::uint64_t with) noexcept {
    Ended& entry = ended_[worker * history + at % history];
    entry = {at + 1, with};
    barrier();
  }
  // (clock, tag) of the clocks before this one that are known.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ended(std::size_t worker,
                                                             std::uint64_t before) const;

  // Operations: of the worker whose record is at hand. An operation begins with its first lasting
  // change: a record that is only looked at, since it must wait, leaves no trace.
  void set_worker(std::size_t worker) noexcept { worker_ = worker; }
  void begin() noexcept;
  void commit() noexcept;

  // Parts of an operation, in order; units of a part, in order. `enter` gives the number of the
  // part's first unit, of which `unit` makes the others; a unit that is `past` must be skipped.
  std::uint64_t enter_part() noexcept { return part_++ << part_shift; }
  static std::uint64_t unit(std::uint64_t part, std::uint64_t index) noexcept {
    return part + (index << UndoSlots::shift);
  }
  bool past(std::uint64_t element) const noexcept { return element < resume_; }
  void save_start(std::size_t n_spans, std::size_t span_bytes);
  void save(std::size_t segment_id, const void* from) noexcept {
    const auto* at = static_cast<const std::uint8_t*>(from);
    const auto offset = static_cast<std::uint64_t>(at - segments_[segment_id]);
    where_[n_saved_] = (static_cast<std::uint64_t>(segment_id) << segment_shift) | offset;
    copy(saved_ + n_saved_ * span_bytes_, at, span_bytes_);
    ++n_saved_;
    if (fault::armed && n_saved_ == 1) fault::pass(fault::Point::unit_saving);
  }
  void saved(std::uint64_t unit) noexcept;
  // Of a unit that was saved, or, after `begin`, of one that may be done twice until then.
  void done(std::uint64_t unit) noexcept;

  // Pieces: units of single elements, which a kernel numbers and keeps itself (see UndoSlots). They
  // lie `distance` bytes apart in each of `n_arrays` arrays; `place` says where. Nothing may be
  // kept at that time: `reached` says so. `counts`: each place has a count.
  void keep_pieces(std::size_t segment_id, std::size_t distance, std::size_t n_arrays,
                   bool counts) noexcept {
    Pieces& p = head_->pieces;
    p.segment = segment_id;
    p.distance = distance;
    p.n_arrays = n_arrays;
    p.has_counts = counts;
    barrier();
  }
  // Element `first` of the part lies so many bytes into the segment. There are two such places by
  // turns, as a piece may still be kept of the one before: `number` is that of this one.
  void place(std::uint64_t number, std::uint64_t offset, std::uint64_t first) noexcept {
    head_->undo.start[number & 1] = offset - first * sizeof(float);
    barrier();
  }
  // The same, and the old value of a word that lies so many bytes into the segment. It is put back
  // with any piece of this place, so it may change once all of them are changed.
  void place(std::uint64_t number, std::uint64_t offset, std::uint64_t first,
             std::uint64_t count_at, std::uint32_t count) noexcept {
    Count& c = head_->pieces.counts[number & 1];
    c.old = count;
    c.at = count_at;
    place(number, offset, first);
  }
  UndoSlots* undo_slots() noexcept { return &head_->undo; }
  // For a kernel that begins with this element, of the place of this number; it is the `turn`-th
  // one in a row there.
  static std::uint64_t at(std::uint64_t element, std::uint64_t number,
                          std::uint64_t turn = 0) noexcept {
    return element | (number & 1) * UndoSlots::place_bit | (turn & 1) * UndoSlots::slot_bit;
  }
  // All elements before this one are changed, and nothing is kept.
  void reached(std::uint64_t element) noexcept {
    barrier();
    head_->undo.position = element;
    barrier();
  }
  // Element of a part from which on there is something to do, `n` being its number of elements.
  std::uint64_t first_left(std::uint64_t part, std::uint64_t n) const noexcept {
    if (resume_ <= part) return 0;
    const std::uint64_t index = (resume_ - part) >> UndoSlots::shift;
    return index < n ? index : n;
  }

  // Recovery: puts the unit and the words back. The worker whose operation is to be finished, or
  // -1.
  long undo();
  // Nothing of the operation is left, or nothing that counts.
  void forget() noexcept { commit(); }
  bool resuming() const noexcept { return resuming_; }
  bool untouched() const noexcept { return head_->undo.position == 0; }

  static void barrier() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }

 private:
  struct Ended {
    std::uint64_t after, tag;  // the clock that follows; 0: none
  };
  struct Count {
    std::uint64_t old, at;
  };
  struct Pieces {
    std::uint64_t segment, distance, n_arrays, has_counts;
    Count counts[2];  // by place; where it lies is in UndoSlots::start: the offset of element 0
  };
  struct Head {
    std::uint64_t magic, version, n_workers, n_tables, in_use;
    std::uint64_t active;  // 1 + worker whose record is being consumed; 0: none
    std::uint64_t n_logged;
    std::uint64_t n_spans, span_bytes;  // of the unit in the scratch area
    Pieces pieces;
    // Unit, with `in_scratch` set while its old bytes are in the scratch area, or as UndoSlots
    // says.
    UndoSlots undo;
  };
  struct Logged {
    std::uint64_t index, value;
  };
  static constexpr unsigned part_shift = 45, segment_shift = 48;
  static constexpr std::uint64_t offset_mask = (std::uint64_t{1} << segment_shift) - 1;
  static constexpr std::uint64_t in_scratch = 1 << 9;
  static constexpr std::uint64_t state_mask = (1 << UndoSlots::shift) - 1;

  static void copy(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) noexcept {
    __builtin_memcpy(to, from, bytes);
  }
  std::size_t n_words() const noexcept { return of_pair(n_tables_, 0, 0); }
  void locate() noexcept;
  static constexpr std::uint64_t n_texts = 3;  // places of a worker
  std::string text_at(std::size_t worker, std::uint64_t word) const;
  std::uint8_t* text_of(std::size_t worker, std::uint64_t place) const noexcept {
    return texts_ + (n_texts * worker + place) * text_bytes_;
  }
  void put_unit_back();
  void put_piece_back();

  SharedMemory* memory_;
  std::size_t n_workers_, n_tables_, text_bytes_, worker_ = 0;
  std::uint8_t* texts_ = nullptr;
  Ended* ended_ = nullptr;
  Head* head_ = nullptr;
  std::uint64_t* words_ = nullptr;
  Logged* log_ = nullptr;
  std::size_t scratch_ = 0;  // offset
  std::uint64_t* where_ = nullptr;
  std::uint8_t* saved_ = nullptr;
  std::size_t n_saved_ = 0, span_bytes_ = 0, reserved_ = 0;
  std::vector<std::uint8_t*> segments_;
  bool active_ = false, resuming_ = false;
  std::uint64_t part_ = 0, resume_ = 0;
};

}  // namespace mpips
