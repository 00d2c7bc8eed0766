#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>

// Files with locks that must end with this process. A forked child shares the descriptors and the
// mappings of its parent, and each of them would hold the parent's locks until the child ends. So
// the child closes the descriptors at the fork, and files are mapped through a second descriptor.
namespace mpips {

// The descriptors with locks of this process. Thread-safe.
class Descriptors {
 public:
  static Descriptors& all();
  // Close `fd` in children that are forked from now on.
  void add(int fd);
  // Close `fd` in this process, which must be the one that has added it.
  void close(int fd) noexcept;

 private:
  Descriptors();
  void close_in_child() noexcept;

  std::mutex mutex_;
  std::set<int> open_;
};

// Map a file through a descriptor without its locks; see mmap. Return MAP_FAILED with errno set if
// the kernel refuses.
void* map_without_locks(int fd, std::size_t bytes, int protection, int flags, void* at = nullptr,
                        std::size_t offset = 0) noexcept;

// Take a write lock of the open file description on one byte; return false with errno set if
// another one has it.
bool lock_byte(int fd, int byte) noexcept;

// Give up a lock that lock_byte has taken.
void unlock_byte(int fd, int byte) noexcept;

// Return true if another open file description has a lock on the byte.
bool is_byte_locked(int fd, int byte) noexcept;

// Return true if `path` still leads to the file behind `fd`.
bool is_named(int fd, const std::string& path) noexcept;

}  // namespace mpips
