#include "queue/sample_queue.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "shm/locked_file.hpp"

namespace mpips {
namespace {

[[noreturn]] void fail_file(const std::string& what, const std::string& path, int error) {
  throw std::system_error(error, std::generic_category(), "cannot " + what + " " + path);
}

bool is_sound_field(const QueueField& field, std::uint64_t slot_bytes) noexcept {
  if (field.type == 0 || field.type > n_value_types || field.n_dims > most_dims) return false;
  if (field.name[most_name] != '\0' || field.offset > slot_bytes) return false;
  const std::uint64_t most = (slot_bytes - field.offset) / value_bytes[field.type];
  std::uint64_t count = 1;
  for (std::uint32_t i = 0; i < field.n_dims; ++i) {
    if (field.shape[i] == 0 || field.shape[i] > most / count) return false;
    count *= field.shape[i];
  }
  return count == field.count && count <= most;
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
  QueueFile file;
  file.hold(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.fd_ < 0) fail_file("create", path, errno);
  // A file without a lock may be removed (remove_if_unused).
  if (!file.lock(worker_byte) || !file.is_at(path)) return {};
  // Reserve pages now, so that a full file system is an error here and not a signal at first touch.
  int error = 0;
  do {
    error = posix_fallocate(file.fd_, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error == 0) error = file.map(bytes);
  if (error != 0) {
    unlink(path.c_str());
    fail_file("fill", path, error);
  }
  return file;
}

QueueFile QueueFile::open(const std::string& path) {
  QueueFile file;
  file.hold(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (file.fd_ < 0 && errno == ENOENT) return {};
  if (file.fd_ < 0) fail_file("open", path, errno);
  struct stat status{};
  int error = fstat(file.fd_, &status) == 0 ? 0 : errno;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (error == 0 && (status.st_uid != geteuid() || (status.st_mode & 0077) != 0)) error = EPERM;
  if (error == 0 && bytes < sizeof(QueueHeader)) error = EINVAL;
  if (error == 0) error = file.map(bytes);
  if (error != 0) fail_file("use", path, error);
  return file;
}

bool QueueFile::remove_if_unused(const std::string& path) noexcept {
  const int fd = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat status{};
  // With both locks no other process has one, and none takes one before the name is gone.
  const bool is_removed = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
                          status.st_uid == geteuid() && lock_byte(fd, worker_byte) &&
                          lock_byte(fd, program_byte) && is_named(fd, path) &&
                          unlink(path.c_str()) == 0;
  ::close(fd);
  return is_removed;
}

QueueFile::QueueFile(QueueFile&& other) noexcept { *this = std::move(other); }

QueueFile& QueueFile::operator=(QueueFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  fd_ = std::exchange(other.fd_, -1);
  opener_ = std::exchange(other.opener_, 0);
  return *this;
}

bool QueueFile::lock(int byte) noexcept { return lock_byte(fd_, byte); }

void QueueFile::unlock(int byte) noexcept { unlock_byte(fd_, byte); }

bool QueueFile::is_locked(int byte) const noexcept { return is_byte_locked(fd_, byte); }

bool QueueFile::is_at(const std::string& path) const noexcept { return is_named(fd_, path); }

void QueueFile::touch() const noexcept {
  if (is_of_this_process()) futimens(fd_, nullptr);
}

bool QueueFile::is_of_this_process() const noexcept { return opener_ == getpid(); }

bool QueueFile::is_sound() const noexcept {
  const QueueHeader& h = *header();
  if (h.magic != queue_magic || h.format != queue_format || h.total_bytes != bytes_) return false;
  if (h.n_fields == 0 || h.n_fields > most_fields || h.n_slots == 0 || h.n_steer > most_steer)
    return false;
  if (h.slots_offset < sizeof h + h.n_fields * sizeof(QueueField) || h.slots_offset > bytes_)
    return false;
  if (h.slot_bytes == 0 || h.n_slots > (bytes_ - h.slots_offset) / h.slot_bytes) return false;
  for (std::uint32_t i = 0; i < h.n_fields; ++i)
    if (!is_sound_field(fields()[i], h.slot_bytes)) return false;
  return h.steer_offset >= h.slots_offset + h.n_slots * h.slot_bytes && h.steer_offset < bytes_ &&
         sizeof(SteerHead) + h.n_steer * sizeof(float) <= bytes_ - h.steer_offset;
}

void QueueFile::hold(int fd) {
  if (fd < 0) return;
  fd_ = fd;
  opener_ = getpid();
  Descriptors::all().add(fd);
}

int QueueFile::map(std::size_t bytes) noexcept {
  void* p = map_without_locks(fd_, bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (p == MAP_FAILED) return errno;
  data_ = static_cast<std::uint8_t*>(p);
  bytes_ = bytes;
  return 0;
}

void QueueFile::close() noexcept {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0 && is_of_this_process()) Descriptors::all().close(fd_);
  data_ = nullptr;
  fd_ = -1;
}

}  // namespace mpips
