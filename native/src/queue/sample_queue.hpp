#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "shm/memory_order.hpp"

// A queue of samples in shared memory, from a program that is no rank (libmpips_client) to a worker
// on its node that pushes them into a stream. One file for each producer of the stream:
//
//   QueueHeader | QueueField[n_fields] | slot[n_slots] | SteerHead, values
//
// Samples have the numbers of the producer in the stream, over all launches. One process writes
// each word, and these loads and stores order the slots:
// - The program loads `taken` (acquire) and copies sample q into slot q % n_slots only while
//   q - taken < n_slots. Then it stores written = q + 1 (release). So a program that is killed
//   while it copies has not written the sample.
// - The worker loads `written` (acquire) and reads sample q only if q < written. It stores
//   taken = q + 1 (release) when servers hold the sample and the counts that contain it, and no
//   later launch can repeat the push. Until then the sample stays in its slot, from which the
//   worker of the next launch takes it.
// - The worker alone writes the values for the program, between the stores of an odd and an even
//   number (a seqlock). The program reads them again if the number was odd or has changed.
//
// Lifetime. The worker creates the file under another name and links it into place when it is
// complete. It holds a write lock (of the open file description) on byte `worker_byte` while it
// serves the queue, and the program on `program_byte`: the kernel removes the locks of a process
// that ends, and forked children have none (shm/locked_file.hpp). A worker that finds a queue which
// it cannot continue sets `replaced` in it, and puts a new file in its place. The worker removes
// the name when the producer has ended; after a failure the file stays for the next launch. Both
// ends renew its time: a day after the last use, a file without locks is removed
// (transport/region.py).
namespace mpips {

constexpr std::uint64_t queue_magic = 0x657565757173706dULL;  // "mpsqueue"
constexpr std::uint32_t queue_format = 1;
constexpr std::size_t most_fields = 64, most_dims = 8, most_name = 63, most_steer = 1 << 20;
constexpr int program_byte = 0, worker_byte = 1;
// Seconds for which an end waits for the lock of a process that was killed and still closes files.
constexpr double take_over_s = 1.0;

// Types of values, by the numbers of mpips.h.
constexpr std::uint32_t n_value_types = 11;
constexpr std::size_t value_bytes[n_value_types + 1] = {0, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};

struct QueueField {
  char name[most_name + 1];
  std::uint32_t type, n_dims;
  std::uint64_t shape[most_dims];
  std::uint64_t count;   // values
  std::uint64_t offset;  // bytes into a slot; a multiple of 64
};
static_assert(sizeof(QueueField) == 152);

struct QueueHeader {
  std::uint64_t magic;
  std::uint32_t format, n_fields;
  std::uint64_t n_slots, slot_bytes, slots_offset, steer_offset, n_steer, total_bytes;
  std::uint64_t declaration;   // of the stream
  std::uint64_t check_finite;  // 1: a sample with NaN or infinity is refused by the program's push
  std::uint64_t pad[6];
  // Written by the worker.
  alignas(64) std::uint64_t taken;
  std::uint64_t
      replaced;          // 0, or one more than the number of samples with which the new file began
  std::uint64_t ended;   // 1: the servers hold the end of the producer
  std::uint64_t worker;  // index of the worker
  std::uint64_t worker_pid;
  // One more than the clock in which the worker pushes a sample, or the end, of this queue. A
  // worker that repeats that clock after a restart must push from the same queue. 0: none yet.
  std::uint64_t pushing;
  // Written by the program.
  alignas(64) std::uint64_t written;
  std::uint64_t closed;  // 1: no sample follows
  std::uint64_t program_pid;
};
static_assert(sizeof(QueueHeader) == 256);

struct SteerHead {
  std::uint64_t
      sequence;  // twice the number of values that were published; odd while one is written
  std::uint64_t pad[7];
};
static_assert(sizeof(SteerHead) == 64);

// Return the path of the file of a producer's queue, of this user.
std::string queue_path(const std::string& name, std::uint64_t number);

// Return true if a name has 1 to 64 letters, digits, '-', '_' and '.', and does not begin with '.'.
bool is_queue_name(const std::string& name) noexcept;

// A mapped file with locks. Errors of the system are std::system_error.
class QueueFile {
 public:
  // Create a file with all pages reserved and with the worker's lock. It must not exist.
  // is_open() is false if another process has removed it meanwhile.
  static QueueFile create(const std::string& path, std::size_t bytes);
  // Open a file of this user with at least a header. No file: is_open() is false.
  static QueueFile open(const std::string& path);
  // Remove a file of this user if neither a program nor a worker uses it, also a damaged one;
  // return true if it was removed.
  static bool remove_if_unused(const std::string& path) noexcept;

  QueueFile() = default;
  QueueFile(QueueFile&& other) noexcept;
  QueueFile& operator=(QueueFile&& other) noexcept;
  QueueFile(const QueueFile&) = delete;
  QueueFile& operator=(const QueueFile&) = delete;
  ~QueueFile() { close(); }

  bool is_open() const noexcept { return data_ != nullptr; }
  std::size_t size() const noexcept { return bytes_; }
  QueueHeader* header() const noexcept { return reinterpret_cast<QueueHeader*>(data_); }
  QueueField* fields() const noexcept {
    return reinterpret_cast<QueueField*>(data_ + sizeof(QueueHeader));
  }
  std::uint8_t* slot(std::uint64_t number) const noexcept {
    const QueueHeader& h = *header();
    return data_ + h.slots_offset + number % h.n_slots * h.slot_bytes;
  }
  SteerHead* steer() const noexcept {
    return reinterpret_cast<SteerHead*>(data_ + header()->steer_offset);
  }
  float* steer_values() const noexcept { return reinterpret_cast<float*>(steer() + 1); }

  // Take the lock of one end; return false if another process has it.
  bool lock(int byte) noexcept;
  void unlock(int byte) noexcept;
  // Return true if another process has the lock of an end.
  bool is_locked(int byte) const noexcept;
  // Return false in a forked child of the process that has opened the file.
  bool is_of_this_process() const noexcept;
  // Return true if `path` still leads to this file.
  bool is_at(const std::string& path) const noexcept;
  void touch() const noexcept;  // set the time of the last change to now
  // Return true if the sizes in header and fields agree with each other and with the file.
  bool is_sound() const noexcept;
  void close() noexcept;

 private:
  // Take a descriptor over; a negative one changes nothing.
  void hold(int fd);
  // Map the first bytes of the file. Return 0, or the number of the error.
  int map(std::size_t bytes) noexcept;

  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
  int fd_ = -1;
  int opener_ = 0;  // pid of the process that opened fd_; fd_ is closed in its forked children
};

}  // namespace mpips
