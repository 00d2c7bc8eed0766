#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shm/shared_memory.hpp"

// Rows of a table that is larger than the memory of its server: some of them lie in memory, in
// places called frames, the others in slots of a file on a disk of the node. Rows have the numbers
// that the map of keys gives them; `place` of a row is its frame or its slot.
//
// Who writes what, and what orders it. One thread, the server's, writes all of it. The places lie
// in a shared-memory file, one word of 32 bits for each row, and are the only account of where a
// row is. Everything else (the row of each frame, free frames, free slots) is private memory, which
// `take_over` makes from the places of an earlier process.
// - A row moves to the file: its record is written into a free slot, then its place is changed.
// - A row moves to memory: its record is read into a free frame and checked, then its place is
//   changed.
// A kill before the change leaves the row where it was, and what was written lies in a free place,
// which nothing refers to. A kill after it leaves a complete copy in the new place. So at any
// instruction each row has exactly one place, and a record that a kill has torn has none. What a
// process has written stays in the page cache of the kernel when the process ends; nothing is
// synchronised with the disk, because a node that is lost loses the memory as well.
//
// With a journal. Rows move before the part of an operation that changes them, never during it, so
// the bytes that the journal saves belong to a frame whose row does not move until they are
// of no use. A repeated operation finds its rows wherever they are.
//
// Writing. Slots are taken where many lie together, so that many rows are written by one call. Rows
// of other slots between them are read and written again with the same bytes: whenever a kill or an
// error ends the call, they are unchanged.
//
// Lock. The server's process has an exclusive flock on its file. So the file of a process that has
// ended, however it ended, can be locked, and a second process cannot use the file at the same
// time. A forked child gives the lock up at the fork. A file without a name has no lock.
//
// Errors. The space of a slot is reserved (posix_fallocate) before a row is written there. If the
// file cannot grow, be written or read, the row stays where it is, and StorageError is thrown.
//
// Views. `begin_view` returns a number for the places and the frames as they are now. A caller that
// copies both can read the rows that lie in the file until `end_view`, at its leisure: slots that
// become free meanwhile are not written again. If the disk becomes full, these slots are needed,
// and the view ends: `read_slots` then throws StorageFull.
namespace mpips {

// The file of a table's rows cannot be used.
class StorageError : public SharedMemoryError {
 public:
  using SharedMemoryError::SharedMemoryError;
};

// Its disk has no space left.
class StorageFull : public StorageError {
 public:
  using StorageError::StorageError;
};

class RowStorage {
 public:
  static constexpr std::uint32_t in_file = 1U << 31;  // bit of a place: it is a slot
  static constexpr std::uint32_t nowhere = in_file - 1;

  // A table of this name with rows of `row_floats` floats, of which at most `most_frames` (2 or
  // more) lie in memory. `path`: the file, which an earlier process has left if `warm`, else is
  // created. Empty: a file without a name in `folder`. `places`: memory for the places. Throws
  // StorageError, SharedMemoryBusy if another process uses the file, and RecoveryError if the
  // file of an earlier process is gone or another one. Waits for up to two seconds for the lock.
  RowStorage(std::string table, std::unique_ptr<SharedMemory> places, std::size_t row_floats,
             std::size_t most_frames, const std::string& folder, const std::string& path,
             bool warm);
  ~RowStorage();
  RowStorage(const RowStorage&) = delete;
  RowStorage& operator=(const RowStorage&) = delete;

  // Find the places of the first n rows again, which an earlier process has left; `memory_frames`:
  // frames that the memory of rows has. Throws RecoveryError if they contradict each other.
  void take_over(std::size_t n_rows, std::size_t memory_frames);

  // Reserve what `n_rows` rows in all need: places and slots. The memory of rows must have
  // `frames_for(n_rows)` frames. Throws, and then changes nothing that counts.
  void reserve(std::size_t n_rows);
  // Frames that the memory of rows must have for `n_rows` rows.
  std::size_t frames_for(std::size_t n_rows) const noexcept {
    return n_rows < most_frames_ ? n_rows : most_frames_;
  }
  // Rows that one call of `bring` accepts.
  std::size_t most_at_once() const noexcept { return most_at_once_; }

  // Bring rows to memory and set frames[i] to the frame of rows[i]; RowMap::npos stays npos. Rows
  // from `n_known` on are new: they get a frame of any content. `memory`: frame 0. `keys`: the key
  // of each row that is known, by number of the row. Rows stay in their frames until the next call.
  // `rows` and `frames` may be the same array.
  void bring(const std::uint32_t* rows, std::size_t n, std::size_t n_known, float* memory,
             const std::int64_t* keys, std::uint32_t* frames);
  std::uint32_t place(std::size_t row) const noexcept { return places()[row]; }
  const std::uint32_t* places() const noexcept {
    return reinterpret_cast<const std::uint32_t*>(place_memory_->data());
  }
  // Copy a row that lies in the file; `key`: its key. Throws StorageError if it is damaged.
  void read_slot(std::uint32_t place, std::int64_t key, float* out) const;

  std::uint64_t begin_view();
  void end_view() noexcept;
  std::uint64_t view() const noexcept { return view_; }  // 0: there is none
  // Copy rows that lay in the file when a view began: places and keys of n rows, in any order.
  // out[i * row_floats ...] receives row i.
  void read_slots(std::uint64_t view, const std::uint32_t* places, const std::int64_t* keys,
                  std::size_t n, float* out) const;

  std::size_t n_frames() const noexcept { return n_frames_; }
  std::size_t n_in_file() const noexcept { return n_in_file_; }
  std::uint64_t n_promoted() const noexcept { return n_promoted_; }
  std::uint64_t n_demoted() const noexcept { return n_demoted_; }
  std::size_t file_bytes() const noexcept { return n_slots_ * record_bytes_; }
  std::size_t memory_bytes() const noexcept;

 private:
  static constexpr std::uint64_t head_bytes = 4096;
  struct FileHead {
    std::uint64_t magic, record_bytes, most_frames;
  };
  struct RecordHead {
    std::int64_t key;
    std::uint64_t checksum;  // of the row's bytes and its key
  };
  struct Wanted {  // a row to be read, and where to
    std::uint32_t slot, index;
  };

  std::uint32_t* places_to_set() noexcept {
    return reinterpret_cast<std::uint32_t*>(place_memory_->data());
  }
  [[noreturn]] void fail(const char* what, int error) const;
  // Return the beginning of a message about the file.
  std::string about() const { return "table '" + table_ + "': the file of rows " + path_; }
  std::uint64_t checksum_of(std::int64_t key, const void* row) const noexcept;
  std::uint64_t offset_of(std::uint32_t slot) const noexcept {
    return head_bytes + std::uint64_t{slot} * record_bytes_;
  }
  void open_unnamed(const std::string& folder);
  void open_named(bool warm);
  bool lock_file();
  void check_head();
  bool grow(std::size_t n_slots);
  void take_slots(std::size_t n);
  void free_slot(std::uint32_t slot) noexcept;
  void leave_slot(std::uint32_t slot);
  std::size_t slots_for(std::size_t n_rows) const noexcept;
  void choose_frames(std::size_t n);
  void demote(std::size_t n, const float* memory, const std::int64_t* keys);
  void write_taken();
  void write_all(const std::uint8_t* from, std::size_t bytes, std::uint64_t at) const;
  void read_all(const std::vector<Wanted>& wanted) const;
  std::size_t run_length(const std::vector<Wanted>& wanted, std::size_t from) const noexcept;
  bool read_now(std::uint64_t at, std::uint8_t* to, std::size_t bytes) const noexcept;
  void read_run(std::uint64_t at, std::uint8_t* to, std::size_t bytes) const;
  const std::uint8_t* checked(const std::uint8_t* record, std::int64_t key) const;

  std::unique_ptr<SharedMemory> place_memory_;
  std::string table_, path_;
  int fd_ = -1;
  const pid_t opener_;  // a forked child does not have the file
  std::size_t row_bytes_, record_bytes_, most_frames_, most_at_once_;
  std::size_t n_frames_ = 0, n_slots_ = 0, n_in_file_ = 0;
  // By frame: its row or `nowhere`; the number of the call of `bring` that used it last.
  std::vector<std::uint32_t> row_of_, used_;
  std::vector<std::uint8_t> recent_;
  std::vector<std::uint32_t> free_frames_, chosen_;
  // Slots that can be written: a bit for each, in segments of 64. Slots that a view may still read.
  std::vector<std::uint64_t> free_slots_;
  std::size_t n_free_ = 0, segment_ = 0;  // the segment that is looked at next
  std::vector<std::uint32_t> viewed_slots_, taken_slots_;
  std::uint64_t view_ = 0, n_views_ = 0;
  std::uint32_t call_ = 0;
  std::size_t hand_ = 0;  // the frame that the search for a row to demote visits next
  std::uint64_t n_promoted_ = 0, n_demoted_ = 0;
  mutable std::vector<std::uint8_t> buffer_;  // records that are read or written
  std::vector<std::uint8_t> span_;            // a part of the file that is written anew
  std::vector<Wanted> cold_;
};

}  // namespace mpips
