#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

// Memory with a stable address: a POSIX shared-memory file or, for a single process, anonymous
// memory. All shared-memory files of mpips are created, sized, attached and removed here.
//
// Lifetime of a shared-memory file. The creator creates it exclusively (links are not followed,
// mode 0600) and holds a shared flock on it. Every process that attaches it holds a shared flock,
// too. So if an exclusive flock can be had, no running process uses the file, however its users
// ended, and it may be removed.
//
// Ownership. The owner (the process that created the file or took it over) also holds a write lock
// (fcntl, of the open file description). The flock alone is not enough to take a file over:
// exchanging an exclusive flock for a shared one gives both up for a moment, in which a second
// process could take the file over, too.
//
// Fork. A forked child has no locks (shm/locked_file.hpp). Mappings stay in the child.
//
// Size. Pages are reserved with posix_fallocate before they are touched, so a full /dev/shm is an
// error here and not a SIGBUS later.
namespace mpips {

class SharedMemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A running process uses the memory that is to be taken over.
class SharedMemoryBusy : public SharedMemoryError {
 public:
  using SharedMemoryError::SharedMemoryError;
};

// Let forked children close a descriptor at the fork, because they would hold its locks until their
// end. `close_locked` closes it in this process.
void close_in_children(int fd);
void close_locked(int fd) noexcept;

class SharedMemory {
 public:
  // Create a shared-memory file of `bytes` with all pages reserved, or (`anonymous`) memory of this
  // process alone. Up to `reserve` bytes, or fewer where address space is short, `grow` does not
  // move it.
  static SharedMemory create(const std::string& name, std::size_t bytes, std::size_t reserve);
  static SharedMemory anonymous(std::size_t bytes, std::size_t reserve, bool huge = true);
  // Attach a shared-memory file of this user. Its first `writable` bytes can be written, the rest
  // can only be read. A sparse file (see `create_sparse`) may be attached before its pages exist.
  static SharedMemory attach(const std::string& name, std::size_t writable);
  // Take over a shared-memory file of an earlier process; this process then owns it as if it had
  // created it. Throws SharedMemoryBusy while any running process uses it.
  static SharedMemory reopen(const std::string& name, std::size_t reserve);
  // Create a file of `bytes` without pages; `commit` reserves them piece by piece.
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

  // Grow to `bytes`. Moves the memory if `bytes` exceeds the reserved addresses: the caller must
  // compute pointers into it again.
  void grow(std::size_t bytes);
  // Give the pages behind the first `bytes` back. The memory does not move, and `grow` may follow.
  void shrink(std::size_t bytes);
  // Reserve the pages of a part of a sparse file.
  void commit(std::size_t offset, std::size_t bytes);
  void unlink() noexcept;  // remove the name if this process owns it; the mapping stays
  void keep() noexcept { owner_ = 0; }  // keep the name when this process ends
  void close() noexcept;                // unmap

  // Remove the file if no process uses it and it belongs to this user; return true if it is
  // removed.
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
  int owner_ = 0;   // pid of the process that owns the file; 0 if this object does not
  int opener_ = 0;  // pid of the process that opened fd_; fd_ is closed in its forked children
};

}  // namespace mpips
