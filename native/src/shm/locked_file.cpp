#include "shm/locked_file.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace mpips {
namespace {

struct flock write_lock(int byte) noexcept {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

}  // namespace

Descriptors& Descriptors::all() {
  // Never destroy it: Python objects may outlive static ones.
  static auto* const descriptors = new Descriptors;
  return *descriptors;
}

Descriptors::Descriptors() {
  pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); },
                 [] { all().close_in_child(); });
}

void Descriptors::add(int fd) {
  const std::lock_guard<std::mutex> guard(mutex_);
  open_.insert(fd);
}

void Descriptors::close(int fd) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  open_.erase(fd);
  ::close(fd);
}

void Descriptors::close_in_child() noexcept {
  for (const int fd : open_) ::close(fd);
  open_.clear();
  mutex_.unlock();
}

void* map_without_locks(int fd, std::size_t bytes, int protection, int flags, void* at,
                        std::size_t offset) noexcept {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const int other = ::open(path, O_RDWR | O_CLOEXEC);
  if (other < 0) return MAP_FAILED;
  void* p = mmap(at, bytes, protection, flags, other, static_cast<off_t>(offset));
  const int error = errno;
  ::close(other);
  errno = error;
  return p;
}

bool lock_byte(int fd, int byte) noexcept {
  struct flock wanted = write_lock(byte);
  return fcntl(fd, F_OFD_SETLK, &wanted) == 0;
}

void unlock_byte(int fd, int byte) noexcept {
  struct flock held = write_lock(byte);
  held.l_type = F_UNLCK;
  fcntl(fd, F_OFD_SETLK, &held);
}

bool is_byte_locked(int fd, int byte) noexcept {
  struct flock asked = write_lock(byte);
  return fcntl(fd, F_OFD_GETLK, &asked) == 0 && asked.l_type != F_UNLCK;
}

bool is_named(int fd, const std::string& path) noexcept {
  struct stat mine{}, named{};
  return fstat(fd, &mine) == 0 && lstat(path.c_str(), &named) == 0 && mine.st_ino == named.st_ino &&
         mine.st_dev == named.st_dev;
}

}  // namespace mpips
