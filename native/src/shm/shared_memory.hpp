#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

// A stretch of memory with a stable address: a POSIX shared-memory segment or, for one process,
// anonymous memory. All segments of mpips are made, sized, attached and removed here.
//
// Life of a segment. The creator makes it exclusively (no link is followed, mode 0600) and holds a
// shared flock on it; everyone who attaches holds one too. A segment on which an exclusive flock
// can be had is therefore used by no living process, however its users ended, and may be removed.
// The owner, who made it or took it over, holds a write lock (fcntl, of the open file) as well:
// exchanging an exclusive flock for a shared one gives both up for a moment, in which a second
// process could take the segment over too.
// A forked child shares its parent's locks; it closes them at the fork, or it would hold them after
// the parent's end. What is mapped stays mapped in the child.
// Memory is reserved with posix_fallocate before it is touched: a full /dev/shm is an error here,
// not a SIGBUS later.
namespace mpips {

class SharedMemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A living process uses the memory that is to be taken over.
class SharedMemoryBusy : public SharedMemoryError {
 public:
  using SharedMemoryError::SharedMemoryError;
};

class SharedMemory {
 public:
  // Up to `reserve` bytes `grow` does not move the memory; it is less where address space is short.
  static SharedMemory create(const std::string& name, std::size_t bytes, std::size_t reserve);
  static SharedMemory anonymous(std::size_t bytes, std::size_t reserve);
  // The first `writable` bytes may be written, the rest is read-only. A sparse segment (see
  // `create_sparse`) may be attached before its pages exist.
  static SharedMemory attach(const std::string& name, std::size_t writable);
  // A segment of an earlier process, which is owned from here on as if it had been created here.
  // SharedMemoryBusy while any living process uses it.
  static SharedMemory reopen(const std::string& name, std::size_t reserve);
  // Sized but without pages: `commit` takes them piece by piece.
  static SharedMemory create_sparse(const std::string& name, std::size_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  std::uint8_t* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }
  std::size_t writable_bytes() const noexcept { return writable_; }
  const std::string& name() const noexcept { return name_; }

  // May move the memory, once it is larger than what was reserved: pointers into it must be made
  // anew.
  void grow(std::size_t bytes);
  void commit(std::size_t offset, std::size_t bytes);
  void unlink() noexcept;  // removes the name if this process created it; the memory stays mapped
  void keep() noexcept { owner_ = 0; }  // the name stays when this process ends
  void close() noexcept;                // unmaps

  // Removes the segment if no process uses it and it belongs to this user; true if removed.
  static bool remove_if_unused(const std::string& name);

 private:
  SharedMemory() = default;
  void release() noexcept;
  void hold(int fd);
  void check_process() const;
  void move(std::size_t wanted);

  std::string name_;
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0, reserve_ = 0, writable_ = 0;
  int fd_ = -1;
  int owner_ = 0;   // the process that created the segment, 0 where it was attached
  int opener_ = 0;  // the process that opened fd_; in its forked children fd_ is closed
};

}  // namespace mpips
