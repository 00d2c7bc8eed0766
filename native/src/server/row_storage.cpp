#include "server/row_storage.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "journal/journal.hpp"
#include "keys/row_map.hpp"
#include "ring/checksum.hpp"
#include "server/array.hpp"
#include "shm/fault.hpp"

namespace mpips {
namespace {

constexpr std::uint64_t storage_magic = 0x31574f525350494dULL;
constexpr std::size_t most_rows_at_once = 4096;
// The file grows by an eighth, between these bounds.
constexpr std::size_t least_file_growth = std::size_t{1} << 20;
constexpr std::size_t most_file_growth = std::size_t{256} << 20;
constexpr std::size_t most_gap_bytes = 8192;  // between two slots that are written by one call
constexpr std::size_t segment_slots = 64;
constexpr std::size_t most_run_bytes = std::size_t{1} << 20;  // read by one call

// Return true if a file cannot grow: its disk, the quota or the limit of the process is reached.
bool is_full(int error) noexcept { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

}  // namespace

RowStorage::RowStorage(std::string table, std::unique_ptr<SharedMemory> places,
                       std::size_t row_floats, std::size_t most_frames, const std::string& folder,
                       const std::string& path, bool warm)
    : place_memory_(std::move(places)),
      table_(std::move(table)),
      path_(path),
      opener_(getpid()),
      row_bytes_(row_floats * sizeof(float)),
      record_bytes_(round_up(sizeof(RecordHead) + row_bytes_, sizeof(std::uint64_t))),
      most_frames_(std::max<std::size_t>(most_frames, 2)),
      most_at_once_(std::min(most_rows_at_once, most_frames_ / 2)) {
  if (path_.empty())
    open_unnamed(folder);
  else
    open_named(warm);
  close_in_children(fd_);
  try {
    posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
    check_head();
  } catch (...) {
    close_locked(fd_);
    throw;
  }
}

RowStorage::~RowStorage() {
  if (opener_ == getpid()) close_locked(fd_);
}

void RowStorage::fail(const char* what, int error) const {
  const std::string text = "table '" + table_ + "': cannot " + what + " the file of rows " + path_ +
                           ": " + std::strerror(error);
  if (is_full(error))
    throw StorageFull(text + "; free space there, or give the table more memory_mib");
  throw StorageError(text);
}

// Open a file whose name goes at once: it ends with this process, however that ends.
void RowStorage::open_unnamed(const std::string& folder) {
  path_ = folder + "/mpips-rows-XXXXXX";
  fd_ = mkostemp(path_.data(), O_CLOEXEC);
  if (fd_ < 0) fail("open", errno);
  unlink(path_.c_str());
}

void RowStorage::open_named(bool warm) {
  constexpr mode_t own = S_IRUSR | S_IWUSR;
  constexpr int most_attempts = 1000;
  const int made = warm ? 0 : O_CREAT | O_EXCL;
  // A job that removes unused files may remove the fresh file before it is locked: try again.
  for (int attempt = 0; attempt < most_attempts; ++attempt) {
    fd_ = open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | made, own);
    if (fd_ < 0 && warm && errno == ENOENT) throw RecoveryError(about() + " is gone");
    if (fd_ < 0) fail("open", errno);
    if (!lock_file()) {
      close(fd_);
      throw SharedMemoryBusy(about() + " is used by another process: end that one first");
    }
    struct stat file{};
    if (fstat(fd_, &file) == 0 && file.st_nlink != 0) return;
    close(fd_);
  }
  fail("lock", EAGAIN);
}

// Take the lock; return false if another process keeps it. One that was killed may need a moment.
bool RowStorage::lock_file() {
  constexpr int most_waits = 100;
  constexpr useconds_t wait_us = 20000;
  for (int waits = 0; flock(fd_, LOCK_EX | LOCK_NB) != 0; ++waits) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      const int error = errno;
      close(fd_);
      fail("lock", error);
    }
    if (waits == most_waits) return false;
    usleep(wait_us);
  }
  return true;
}

// Write the head of a new file; check that of an earlier process and find the number of slots.
void RowStorage::check_head() {
  struct stat file{};
  if (fstat(fd_, &file) != 0) fail("read", errno);
  FileHead head{storage_magic, record_bytes_, most_frames_};
  if (file.st_size == 0) {
    const int error = posix_fallocate(fd_, 0, static_cast<off_t>(head_bytes));
    if (error != 0) fail("enlarge", error);
    write_all(reinterpret_cast<const std::uint8_t*>(&head), sizeof head, 0);
    return;
  }
  FileHead found{};
  read_run(0, reinterpret_cast<std::uint8_t*>(&found), sizeof found);
  if (std::memcmp(&found, &head, sizeof head) != 0)
    throw RecoveryError(about() + " belongs to a table with other rows or another memory_mib");
  n_slots_ = (static_cast<std::size_t>(file.st_size) - head_bytes) / record_bytes_;
}

void RowStorage::take_over(std::size_t n_rows, std::size_t memory_frames) {
  if (n_rows * sizeof(std::uint32_t) > place_memory_->size())
    throw RecoveryError("a table has fewer places in memory than rows in its journal (" +
                        std::to_string(n_rows) + ")");
  n_frames_ = std::min(most_frames_, memory_frames);
  row_of_.assign(n_frames_, nowhere);
  used_.assign(n_frames_, 0);
  recent_.assign(n_frames_, 0);
  std::vector<bool> taken(n_slots_);
  n_in_file_ = 0;
  for (std::size_t r = 0; r < n_rows; ++r) {
    const std::uint32_t at = place(r), slot = at & ~in_file;
    const bool cold = (at & in_file) != 0;
    if (cold ? slot >= n_slots_ || taken[slot] : at >= n_frames_ || row_of_[at] != nowhere)
      throw RecoveryError("the places of rows in memory are damaged: row " + std::to_string(r) +
                          " has that of another row, or none");
    if (cold)
      taken[slot] = true;
    else
      row_of_[at] = static_cast<std::uint32_t>(r);
    n_in_file_ += cold ? 1 : 0;
  }
  for (std::size_t f = n_frames_; f-- > 0;)
    if (row_of_[f] == nowhere) free_frames_.push_back(static_cast<std::uint32_t>(f));
  free_slots_.resize((n_slots_ + segment_slots - 1) / segment_slots);
  for (std::size_t s = 0; s < n_slots_; ++s)
    if (!taken[s]) free_slot(static_cast<std::uint32_t>(s));
}

void RowStorage::reserve(std::size_t n_rows) {
  if (n_rows >= nowhere)
    throw std::length_error(std::to_string(n_rows) +
                            " rows: a table with storage can have at most " +
                            std::to_string(nowhere - 1) + " on a server");
  const std::size_t place_bytes = n_rows * sizeof(std::uint32_t);
  if (place_bytes > place_memory_->size())
    place_memory_->grow(std::max(place_bytes, place_memory_->size() + place_memory_->size() / 16));
  const std::size_t n_frames = std::max(n_frames_, frames_for(n_rows));
  const std::size_t n_slots = slots_for(n_rows);
  if (n_slots > n_slots_ - viewed_slots_.size() && !grow(n_slots + viewed_slots_.size())) {
    end_view();
    const std::size_t least = n_slots != 0 ? n_rows - most_frames_ + most_at_once_ : 0;
    if (least > n_slots_ && !grow(least)) fail("enlarge", ENOSPC);
  }
  row_of_.resize(n_frames, nowhere);
  used_.resize(n_frames);
  recent_.resize(n_frames);
  for (; n_frames_ < n_frames; ++n_frames_)
    free_frames_.push_back(static_cast<std::uint32_t>(n_frames_));
}

// Return the slots that the rows in the file need: half as many again, so that free ones lie
// together, and some for rows that are written before others are read.
std::size_t RowStorage::slots_for(std::size_t n_rows) const noexcept {
  const std::size_t n = n_rows > most_frames_ ? n_rows - most_frames_ : 0;
  return n != 0 ? n + n / 2 + most_at_once_ : 0;
}

// Reserve space for this many slots in all, or somewhat more; return false if there is none.
bool RowStorage::grow(std::size_t n_slots) {
  const std::size_t ahead = std::clamp(n_slots_ / 8, least_file_growth / record_bytes_ + 1,
                                       most_file_growth / record_bytes_ + 1);
  const std::size_t wanted = std::max(n_slots, n_slots_ + ahead);
  for (const std::size_t n : {wanted, n_slots}) {
    if (n >= nowhere) throw std::length_error(about() + " has too many slots");
    const std::uint64_t from = offset_of(static_cast<std::uint32_t>(n_slots_));
    int error = EINTR;
    while (error == EINTR)
      error = posix_fallocate(fd_, static_cast<off_t>(from),
                              static_cast<off_t>((n - n_slots_) * record_bytes_));
    if (is_full(error)) continue;
    if (error != 0) fail("enlarge", error);
    free_slots_.resize((n + segment_slots - 1) / segment_slots);
    for (std::size_t slot = n_slots_; slot < n; ++slot) free_slot(static_cast<std::uint32_t>(slot));
    n_slots_ = n;
    return true;
  }
  return false;
}

// Move n free slots to `taken_slots_`, ascending.
void RowStorage::take_slots(std::size_t n) {
  if (n_free_ < n && !grow(n_slots_ + n - n_free_)) {
    end_view();
    if (n_free_ < n) fail("enlarge", ENOSPC);
  }
  taken_slots_.clear();
  // Visit segments in turn, and pass over those with fewer free slots than the others have on
  // average. After a lap take any.
  const std::size_t usual = n_free_ / free_slots_.size();
  for (std::size_t visited = 0; taken_slots_.size() < n; ++visited) {
    segment_ = segment_ + 1 < free_slots_.size() ? segment_ + 1 : 0;
    std::uint64_t& word = free_slots_[segment_];
    const auto here = static_cast<std::size_t>(__builtin_popcountll(word));
    if (here == 0 || (here < usual && visited < free_slots_.size())) continue;
    for (; word != 0 && taken_slots_.size() < n; word &= word - 1)
      taken_slots_.push_back(
          static_cast<std::uint32_t>(segment_ * segment_slots + __builtin_ctzll(word)));
  }
  n_free_ -= n;
  std::sort(taken_slots_.begin(), taken_slots_.end());
}

void RowStorage::free_slot(std::uint32_t slot) noexcept {
  free_slots_[slot / segment_slots] |= std::uint64_t{1} << slot % segment_slots;
  ++n_free_;
}

// Let the slot of a row that has left it be written, once no view may read it.
void RowStorage::leave_slot(std::uint32_t slot) {
  if (view_ != 0)
    viewed_slots_.push_back(slot);
  else
    free_slot(slot);
}

std::uint64_t RowStorage::begin_view() {
  end_view();
  return view_ = ++n_views_;
}

void RowStorage::end_view() noexcept {
  view_ = 0;
  for (const std::uint32_t slot : viewed_slots_) free_slot(slot);
  viewed_slots_.clear();
}

void RowStorage::bring(const std::uint32_t* rows, std::size_t n, std::size_t n_known, float* memory,
                       const std::int64_t* keys, std::uint32_t* frames) {
  ++call_;
  cold_.clear();
  std::size_t n_new = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t r = rows[i];
    if (r == RowMap::npos) continue;
    const std::uint32_t at = r < n_known ? place(r) : nowhere;
    if (r >= n_known) {
      ++n_new;
    } else if ((at & in_file) != 0) {
      cold_.push_back({at & ~in_file, static_cast<std::uint32_t>(i)});
    } else {
      used_[at] = call_;
      recent_[at] = 1;
    }
  }
  std::sort(cold_.begin(), cold_.end(),
            [](const Wanted& a, const Wanted& b) { return a.slot < b.slot; });
  const std::size_t n_needed = cold_.size() + n_new;
  if (free_frames_.size() < n_needed) demote(n_needed - free_frames_.size(), memory, keys);

  read_all(cold_);
  for (std::size_t k = 0; k < cold_.size(); ++k) {
    const std::uint32_t r = rows[cold_[k].index], slot = cold_[k].slot;
    if (k != 0 && cold_[k - 1].slot == slot) continue;
    const std::uint8_t* row = checked(buffer_.data() + k * record_bytes_, keys[r]);
    const std::uint32_t f = free_frames_.back();
    std::uint8_t* to = reinterpret_cast<std::uint8_t*>(memory) + f * row_bytes_;
    std::memcpy(to, row, row_bytes_ / 2);
    fault::at(fault::Point::row_reading);
    std::memcpy(to + row_bytes_ / 2, row + row_bytes_ / 2, row_bytes_ - row_bytes_ / 2);
    Journal::barrier();
    places_to_set()[r] = f;
    Journal::barrier();
    free_frames_.pop_back();
    row_of_[f] = r;
    used_[f] = call_;
    recent_[f] = 1;
    leave_slot(slot);
    --n_in_file_;
    ++n_promoted_;
    fault::at(fault::Point::row_placed);
  }
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t r = rows[i];
    if (r == RowMap::npos) {
      frames[i] = r;
      continue;
    }
    std::uint32_t f = place(r);
    // A new row that comes twice has its frame already.
    if (r >= n_known && (f >= n_frames_ || row_of_[f] != r || used_[f] != call_)) {
      f = free_frames_.back();
      free_frames_.pop_back();
      row_of_[f] = r;
      used_[f] = call_;
      recent_[f] = 1;
      places_to_set()[r] = f;
    }
    frames[i] = f;
  }
}

// Choose n frames whose rows were not used for longest, roughly (CLOCK).
void RowStorage::choose_frames(std::size_t n) {
  chosen_.clear();
  while (chosen_.size() < n) {
    hand_ = hand_ + 1 < n_frames_ ? hand_ + 1 : 0;
    if (used_[hand_] == call_ || row_of_[hand_] == nowhere) continue;
    if (recent_[hand_] != 0) {
      recent_[hand_] = 0;
      continue;
    }
    chosen_.push_back(static_cast<std::uint32_t>(hand_));
    used_[hand_] = call_;
  }
}

// Move n rows to the file.
void RowStorage::demote(std::size_t n, const float* memory, const std::int64_t* keys) {
  take_slots(n);
  choose_frames(n);
  buffer_.resize(n * record_bytes_);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint8_t* record = buffer_.data() + i * record_bytes_;
    const float* row = memory + chosen_[i] * (row_bytes_ / sizeof(float));
    const RecordHead head{keys[row_of_[chosen_[i]]], checksum_of(keys[row_of_[chosen_[i]]], row)};
    std::memcpy(record, &head, sizeof head);
    std::memcpy(record + sizeof head, row, row_bytes_);
  }
  try {
    write_taken();
  } catch (...) {
    // All rows are still in memory.
    for (const std::uint32_t slot : taken_slots_) free_slot(slot);
    throw;
  }
  for (std::size_t i = 0; i < n; ++i) {
    fault::at(fault::Point::row_written);
    const std::uint32_t f = chosen_[i];
    Journal::barrier();
    places_to_set()[row_of_[f]] = taken_slots_[i] | in_file;
    Journal::barrier();
    row_of_[f] = nowhere;
    free_frames_.push_back(f);
    fault::at(fault::Point::row_placed);
  }
  n_in_file_ += n;
  n_demoted_ += n;
}

// Write the records in `buffer_` into the slots that are taken for them. Slots with few others
// between them are written by one call.
void RowStorage::write_taken() {
  const std::size_t n = taken_slots_.size();
  for (std::size_t i = 0, stop = 1; i < n; i = stop, ++stop) {
    std::size_t gaps = 0;
    for (; stop < n; ++stop) {
      const std::size_t gap = taken_slots_[stop] - taken_slots_[stop - 1] - 1;
      if (gap * record_bytes_ > most_gap_bytes) break;
      gaps += gap;
    }
    const std::uint8_t* records = buffer_.data() + i * record_bytes_;
    const std::uint64_t at = offset_of(taken_slots_[i]);
    if (gaps == 0) {
      write_all(records, (stop - i) * record_bytes_, at);
      continue;
    }
    span_.resize((stop - i + gaps) * record_bytes_);
    read_run(at, span_.data(), span_.size());
    for (std::size_t k = i; k < stop; ++k)
      std::memcpy(span_.data() + (taken_slots_[k] - taken_slots_[i]) * record_bytes_,
                  buffer_.data() + k * record_bytes_, record_bytes_);
    write_all(span_.data(), span_.size(), at);
  }
}

void RowStorage::write_all(const std::uint8_t* from, std::size_t bytes, std::uint64_t at) const {
  // While a point is armed, a write is made in two calls.
  std::size_t first = fault::armed() ? bytes / 2 : bytes;
  while (bytes != 0) {
    const ssize_t n = pwrite(fd_, from, first, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("write", n == 0 ? EIO : errno);
    from += n;
    at += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
    first = bytes;
    if (bytes != 0) fault::at(fault::Point::row_writing);
  }
}

// Return how many of the records from `from` on are read by one call.
std::size_t RowStorage::run_length(const std::vector<Wanted>& wanted,
                                   std::size_t from) const noexcept {
  std::size_t n = 1;
  while (from + n < wanted.size() && wanted[from + n].slot == wanted[from].slot + n &&
         (n + 1) * record_bytes_ <= most_run_bytes)
    ++n;
  return n;
}

// Read records, which are sorted by slot, into `buffer_`. Those that are not in the page cache are
// all asked for before the first of them is waited for, so the disk reads many at a time.
void RowStorage::read_all(const std::vector<Wanted>& wanted) const {
  buffer_.resize(wanted.size() * record_bytes_);
  std::vector<std::pair<std::size_t, std::size_t>> missing;
  for (std::size_t i = 0, n = 0; i < wanted.size(); i += n) {
    n = run_length(wanted, i);
    const std::uint64_t at = offset_of(wanted[i].slot);
    if (read_now(at, buffer_.data() + i * record_bytes_, n * record_bytes_)) continue;
    posix_fadvise(fd_, static_cast<off_t>(at), static_cast<off_t>(n * record_bytes_),
                  POSIX_FADV_WILLNEED);
    missing.emplace_back(i, n);
  }
  for (const auto& [i, n] : missing)
    read_run(offset_of(wanted[i].slot), buffer_.data() + i * record_bytes_, n * record_bytes_);
}

// Read what is in the page cache; return false if not all of it is.
bool RowStorage::read_now(std::uint64_t at, std::uint8_t* to, std::size_t bytes) const noexcept {
  const iovec part{to, bytes};
  return preadv2(fd_, &part, 1, static_cast<off_t>(at), RWF_NOWAIT) == static_cast<ssize_t>(bytes);
}

void RowStorage::read_run(std::uint64_t at, std::uint8_t* to, std::size_t bytes) const {
  while (bytes != 0) {
    const ssize_t n = pread(fd_, to, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", errno);
    if (n == 0) throw StorageError(about() + " ends too early");
    to += n;
    at += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

std::uint64_t RowStorage::checksum_of(std::int64_t key, const void* row) const noexcept {
  return hash(row, row_bytes_, static_cast<std::uint64_t>(key));
}

// Return the row of a record. Throws StorageError if it is not a whole record of this key.
const std::uint8_t* RowStorage::checked(const std::uint8_t* record, std::int64_t key) const {
  RecordHead head{};
  std::memcpy(&head, record, sizeof head);
  if (head.key != key || head.checksum != checksum_of(key, record + sizeof head))
    throw StorageError(about() + " is damaged: the record of key " + std::to_string(key) +
                       " is not what was written");
  return record + sizeof head;
}

void RowStorage::read_slot(std::uint32_t place, std::int64_t key, float* out) const {
  buffer_.resize(record_bytes_);
  read_run(offset_of(place & ~in_file), buffer_.data(), record_bytes_);
  std::memcpy(out, checked(buffer_.data(), key), row_bytes_);
}

void RowStorage::read_slots(std::uint64_t view, const std::uint32_t* places,
                            const std::int64_t* keys, std::size_t n, float* out) const {
  if (view == 0 || view != view_)
    throw StorageFull(about() +
                      " is on a full disk, which has no space for the rows of a checkpoint "
                      "beside newer ones");
  for (std::size_t from = 0; from < n; from += most_rows_at_once) {
    const std::size_t stop = std::min(from + most_rows_at_once, n);
    std::vector<Wanted> wanted;
    for (std::size_t i = from; i < stop; ++i) {
      if ((places[i] & in_file) == 0 || (places[i] & ~in_file) >= n_slots_)
        throw std::invalid_argument("a place that is no slot of the file");
      wanted.push_back({places[i] & ~in_file, static_cast<std::uint32_t>(i)});
    }
    std::sort(wanted.begin(), wanted.end(),
              [](const Wanted& a, const Wanted& b) { return a.slot < b.slot; });
    read_all(wanted);
    for (std::size_t k = 0; k < wanted.size(); ++k)
      std::memcpy(reinterpret_cast<std::uint8_t*>(out) + wanted[k].index * row_bytes_,
                  checked(buffer_.data() + k * record_bytes_, keys[wanted[k].index]), row_bytes_);
  }
}

std::size_t RowStorage::memory_bytes() const noexcept {
  return place_memory_->size() + n_frames_ * (2 * sizeof(std::uint32_t) + 1) +
         free_slots_.capacity() * sizeof(std::uint64_t) +
         viewed_slots_.capacity() * sizeof(std::uint32_t) + buffer_.capacity() + span_.capacity();
}

}  // namespace mpips
