#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/optimizer_config.hpp"
#include "shm/fault.hpp"
#include "shm/shared_memory.hpp"

// The journal makes a server's changes survive SIGKILL at any instruction. It lies in a
// shared-memory file, so that the next process can read it.
//
// State after a kill. Memory has the effects of a prefix of the instructions that the process would
// have executed: a killed processor context retires its instructions in order, and stores to shared
// memory are not lost. So only the order of stores in the program matters. Only the compiler could
// change that order, and `barrier` prevents it.
//
// Operation. An operation is everything that one record does, from its first change to its
// acknowledgement. After a kill it is undone in part and then done again from the record, which
// stays in its ring until then. Its large parts that are complete are skipped. Three kinds of
// memory take part:
//
// 1. Words (clocks, versions, counts, numbers of records, hyperparameters). Their image is in this
// file. The server
//    works with private copies and updates the image at the end of an operation. For each word,
//    `put` writes the old word into the log, then the log's length, then the new word. Then one
//    store, `active` = 0, commits the operation. After a kill before the commit, all old words are
//    restored from the log. This can be repeated any number of times, because the log has old words
//    only. After a kill behind the commit, the log is ignored.
// 2. Units (a range of a dense shard with its optimizer state, a batch of rows, a range of a sum).
//    For each unit the server writes the old bytes into the scratch area; sets `position` to this
//    unit, with the mark "saved"; changes the unit; sets `position` to the next unit. The position
//    is one word, so there is no state between these steps. After a kill during the first step the
//    unit is unchanged. After a kill while `position` has the mark "saved", the unit is restored
//    from the scratch area. In all cases the operation is then done again, and every unit below
//    `position` is skipped: it is complete and must not be applied twice. Parts and units are
//    numbered in the order in which the operation reaches them. That order is the same when the
//    operation is repeated, because it depends only on the record and on words that have been
//    restored.
//    The optimizers' kernels do the same themselves in pieces of at most 32 floats (`UndoSlots`),
//    where the position is an element. They use two slots alternately instead of the scratch area,
//    and no store that means "changed", because the next piece's position means that. A row's step
//    count is changed after the row's last piece, and is restored together with any piece of that
//    row.
// 3. Data behind an end that is given by a word (new rows; segments of a push that is not
//    complete). The data is written first, then the end moves. Repeating this writes the same
//    bytes. The number of rows of a table moves at once and is never restored: a row that was made
//    and not updated has the values that a pull of an absent row returns. Rows are removed between
//    operations (embedding_limits.cpp).
//
// So at any instruction an operation is in one of three states:
//   (a) not begun;
//   (b) active: after the log is restored its words are as before, its units below `position` are
//       done, the others are not. It is finished by doing it again before anything else happens.
//       Its record is still in the ring, because a slot is written again only after `applied` has
//       been published;
//   (c) committed. `applied` may not be published yet: recovery publishes it from the image.
//
// Recovery itself may be killed: restoring is repeated from the start, and the other steps of
// recovery lead to the same end when they are repeated (see server_recovery.cpp).
namespace mpips {

// There is nothing to recover, or not for this job.
class RecoveryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct LayoutEntry;

class Journal {
 public:
  // Words of the image, by their owner.
  enum GlobalWord : std::size_t { current_clock, global_words };
  enum WorkerWord : std::size_t {
    next,  // records consumed
    open,  // a push that is not complete: 1, table, flags; 0: there is none
    open_clock,
    open_end,
    open_area,
    open_digest,  // digest of the keys of that push so far
    clock,
    finished,
    ticked,
    position,       // the clock that the worker is in, by the last record that it sent
    pushes,         // number of complete pushes of that clock
    tag,            // tag of those pushes (ring/push_tag.hpp)
    newest_text,    // place and length of the worker's newest text
    previous_text,  // place and length of the newest text of another clock
    clock_of_text,  // the clock that the newest text describes
    worker_words,
  };
  enum TableWord : std::size_t {
    version,
    steps_before,
    n_rows,
    moving,  // 0, or a row that is being moved; see embedding_limits.cpp
    turn,
    stats,
    table_words = stats + 80
  };
  // Words of one worker's pushes to one table, and of the table's buffers of that worker.
  enum PairOffset : std::size_t { taken, pending, buffers, pair_words = buffers + 4 };
  // Words of the change of a table's hyperparameters that is in force (server_configure.cpp). While
  // `configured_at` is 0 there is none, and the others mean nothing.
  enum RuleWord : std::size_t {
    configured_at,  // one more than the clock of the change
    ordinal,        // number of changes of the table that its worker made in that clock before
    config,         // ConfigWords
    rule_words = config + std::tuple_size<ConfigWords>::value
  };

  // `text_bytes`: the longest text of a worker (see server_snapshot.cpp).
  Journal(SharedMemory& memory, std::size_t n_workers, std::size_t n_tables,
          std::size_t text_bytes);
  static std::size_t bytes(std::size_t n_workers, std::size_t n_tables,
                           std::size_t text_bytes) noexcept;

  // Return true if an earlier process left a journal that was in use, by a job of this shape.
  bool usable() const noexcept;
  // Declare the image complete: from here on the server survives a kill.
  void begin_use() noexcept;

  // Register a mapping that units lie in; the same ids in every process.
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
  std::size_t of_rule(std::size_t t, std::size_t word) const noexcept {
    return of_pair(n_tables_, 0, 0) + t * rule_words + word;
  }
  std::uint64_t word(std::size_t index) const noexcept { return words_[index]; }
  // Change a word outside operations, or where the change must stay whatever happens to the
  // operation.
  void set(std::size_t index, std::uint64_t value) noexcept {
    barrier();
    words_[index] = value;
    barrier();
  }
  // Change a word within an operation.
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

  // Store the text that describes a worker's position at clock `at`, within an operation. Each
  // worker has three places: one for the newest text, one for the newest text of another clock, and
  // a free one that is written before the words change. A worker that repeats a clock after a
  // restart replaces only the text of that clock. So the text that it started from stays, however
  // often the worker ends there.
  void put_text(std::size_t worker, std::uint64_t at, const void* text, std::size_t bytes) noexcept;
  std::string text(std::size_t worker) const;
  std::string text_before(std::size_t worker) const;

  // Store the tag of a clock that a worker has ended; the last `history` clocks are stored. An
  // entry is written before the word that ends its clock, and counts only for clocks below that
  // word.
  static constexpr std::size_t history = 512;
  void note_ended(std::size_t worker, std::uint64_t at, std::uint64_t with) noexcept {
    Ended& entry = ended_[worker * history + at % history];
    entry = {at + 1, with};
    barrier();
  }
  // Return (clock, tag) of all stored clocks below `before`.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ended(std::size_t worker,
                                                             std::uint64_t before) const;

  // Set the worker whose record is at hand. An operation begins with its first lasting change: a
  // record that is only read, because it must wait, leaves no trace.
  void set_worker(std::size_t worker) noexcept { worker_ = worker; }
  void begin() noexcept;
  void commit() noexcept;

  // Parts of an operation, and units of a part, are numbered in order. `enter_part` returns the
  // number of the part's first unit, and `unit` makes the others from it. A unit that is `past`
  // must be skipped.
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
    if (n_saved_ == 1) fault::at(fault::Point::unit_saving);
  }
  void saved(std::uint64_t unit) noexcept;
  // Finish a unit that was saved or, after `begin`, a unit that may be done twice until now.
  void done(std::uint64_t unit) noexcept;

  // Prepare for pieces: units of single elements, which a kernel numbers and saves itself (see
  // UndoSlots). A piece lies in each of `n_arrays` arrays that are `distance` bytes apart; `place`
  // says where. No old values may be in a slot at this time; `reached` ensures that. `counts`: each
  // place has a step count.
  void keep_pieces(std::size_t segment_id, std::size_t distance, std::size_t n_arrays,
                   bool counts) noexcept {
    Pieces& p = head_->pieces;
    p.segment = segment_id;
    p.distance = distance;
    p.n_arrays = n_arrays;
    p.has_counts = counts;
    barrier();
  }
  // Declare that element `first` of the part lies `offset` bytes into the mapping. There are two
  // such places, used alternately, because the previous place may still have old values in a slot.
  // `number` is that of this place.
  void place(std::uint64_t number, std::uint64_t offset, std::uint64_t first) noexcept {
    head_->undo.start[number & 1] = offset - first * sizeof(float);
    barrier();
  }
  // Also save the old value of a step count that lies `count_at` bytes into the mapping. It is
  // restored with any piece of this place, so it may change once all of them are changed.
  void place(std::uint64_t number, std::uint64_t offset, std::uint64_t first,
             std::uint64_t count_at, std::uint32_t count) noexcept {
    Count& c = head_->pieces.counts[number & 1];
    c.old = count;
    c.at = count_at;
    place(number, offset, first);
  }
  UndoSlots* undo_slots() noexcept { return &head_->undo; }
  // Return the `position` with which a kernel begins: this element, the place of this number, and
  // the slot of this number.
  static std::uint64_t at(std::uint64_t element, std::uint64_t number,
                          std::uint64_t slot = 0) noexcept {
    return element | (number & 1) * UndoSlots::place_bit | (slot & 1) * UndoSlots::slot_bit;
  }
  // Declare all elements before this one changed; no old values are in a slot any more.
  void reached(std::uint64_t element) noexcept {
    barrier();
    head_->undo.position = element;
    barrier();
  }
  // Return the first element of a part that is not done yet; `n` is the part's number of elements.
  std::uint64_t first_left(std::uint64_t part, std::uint64_t n) const noexcept {
    if (resume_ <= part) return 0;
    const std::uint64_t index = (resume_ - part) >> UndoSlots::shift;
    return index < n ? index : n;
  }

  // Restore the unit and the words. Return the worker whose operation must be finished, or -1.
  long undo();
  // Drop the operation: nothing of it is left, or nothing that counts.
  void forget() noexcept { commit(); }
  bool resuming() const noexcept { return resuming_; }
  bool untouched() const noexcept { return head_->undo.position == 0; }

  // Return the layout of the journal; see server/memory_layout.hpp.
  static std::vector<LayoutEntry> entries();

  static void barrier() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }

 private:
  struct Ended {
    std::uint64_t after, tag;  // the clock after the ended one, and the tag; 0: unused entry
  };
  struct Count {
    std::uint64_t old, at;
  };
  struct Pieces {
    std::uint64_t segment, distance, n_arrays, has_counts;
    Count counts[2];  // by place; the place's offset of element 0 is UndoSlots::start
  };
  struct Head {
    std::uint64_t magic, version, n_workers, n_tables, in_use;
    std::uint64_t active;  // 1 + worker whose record is being consumed; 0: no operation
    std::uint64_t n_logged;
    std::uint64_t n_spans, span_bytes;  // of the unit in the scratch area
    Pieces pieces;
    // The position: a unit, with `in_scratch` set while its old bytes are in the scratch area; or a
    // piece, see UndoSlots.
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
  std::size_t n_words() const noexcept { return of_rule(n_tables_, 0); }
  void locate() noexcept;
  static constexpr std::uint64_t n_texts = 3;  // places per worker
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
  std::size_t scratch_ = 0;  // bytes into the file
  std::uint64_t* where_ = nullptr;
  std::uint8_t* saved_ = nullptr;
  std::size_t n_saved_ = 0, span_bytes_ = 0, reserved_ = 0;
  std::vector<std::uint8_t*> segments_;
  bool active_ = false, resuming_ = false;
  std::uint64_t part_ = 0, resume_ = 0;
};

}  // namespace mpips
