#include "queue/sample_queue.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace mpips {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path, int error) {
  throw std::system_error(error, std::generic_category(), "cannot " + what + " " + path);
}

struct flock lock_of(int byte, short type) noexcept {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

std::uint8_t* map(int fd, std::size_t bytes) noexcept {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return p == MAP_FAILED ? nullptr : static_cast<std::uint8_t*>(p);
}

}  // namespace

std::string queue_path(const std::string& name, std::uint64_t number) {
  return "/dev/shm/mpips_queue." + std::to_string(geteuid()) + "." + name + "." +
         std::to_string(number);
}

bool is_queue_name(const std::string& name) noexcept {
  if (name.empty() || name.size() > 64 || name[0] == '.') return false;
  for (const char c : name) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!is_letter && !(c >= '0' && c <= '9') && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

QueueFile QueueFile::create(const std::string& path, std::size_t bytes) {
  const int fd =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) fail("create", path, errno);
  // Reserve pages now, so that a full file system is an error here and not a signal at first touch.
  int error = 0;
  do {
    error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  QueueFile file;
  file.data_ = error == 0 ? map(fd, bytes) : nullptr;
  if (file.data_ == nullptr) {
    if (error == 0) error = errno;
    unlink(path.c_str());
    ::close(fd);
    fail("make a file of " + std::to_string(bytes >> 20) + " MiB,", path, error);
  }
  file.bytes_ = bytes;
  file.fd_ = fd;
  return file;
}

QueueFile QueueFile::open(const std::string& path) {
  QueueFile file;
  const int fd = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return file;
  if (fd < 0) fail("open", path, errno);
  struct stat status{};
  int error = fstat(fd, &status) == 0 ? 0 : errno;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (error == 0 && (status.st_uid != geteuid() || (status.st_mode & 0077) != 0)) error = EPERM;
  if (error == 0 && bytes < sizeof(QueueHeader)) error = EINVAL;
  if (error == 0 && (file.data_ = map(fd, bytes)) == nullptr) error = errno;
  if (error != 0) {
    ::close(fd);
    fail("use", path, error);
  }
  file.bytes_ = bytes;
  file.fd_ = fd;
  return file;
}

QueueFile::QueueFile(QueueFile&& other) noexcept { *this = std::move(other); }

QueueFile& QueueFile::operator=(QueueFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

bool QueueFile::lock(int byte) noexcept {
  struct flock wanted = lock_of(byte, F_WRLCK);
  return fcntl(fd_, F_OFD_SETLK, &wanted) == 0;
}

bool QueueFile::is_locked(int byte) const noexcept {
  struct flock asked = lock_of(byte, F_WRLCK);
  return fcntl(fd_, F_OFD_GETLK, &asked) == 0 && asked.l_type != F_UNLCK;
}

bool QueueFile::is_at(const std::string& path) const noexcept {
  struct stat mine{}, named{};
  return fstat(fd_, &mine) == 0 && lstat(path.c_str(), &named) == 0 &&
         mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

bool QueueFile::is_sound() const noexcept {
  const QueueHeader& h = *header();
  if (h.magic != queue_magic || h.format != queue_format || h.total_bytes != bytes_) return false;
  if (h.n_fields == 0 || h.n_fields > most_fields || h.n_slots == 0 || h.n_steer > most_steer)
    return false;
  if (h.slots_offset < sizeof h + h.n_fields * sizeof(QueueField) || h.slots_offset > bytes_)
    return false;
  if (h.slot_bytes == 0 || h.n_slots > (bytes_ - h.slots_offset) / h.slot_bytes) return false;
  return h.steer_offset >= h.slots_offset + h.n_slots * h.slot_bytes && h.steer_offset < bytes_ &&
         sizeof(SteerHead) + h.n_steer * sizeof(float) <= bytes_ - h.steer_offset;
}

void QueueFile::close() noexcept {
  if (data_ == nullptr) return;
  munmap(data_, bytes_);
  ::close(fd_);
  data_ = nullptr;
  fd_ = -1;
}

}  // namespace mpips
