#include "shm/shared_memory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ring/layout.hpp"
#include "shm/locked_file.hpp"

namespace mpips {
namespace {

std::string reason(int error) { return std::string(std::strerror(error)); }

[[noreturn]] void fail(const std::string& what, const std::string& name, int error) {
  throw SharedMemoryError("cannot " + what + " shared memory /dev/shm/" + name + ": " +
                          reason(error));
}

std::string mib(std::size_t bytes) { return std::to_string((bytes >> 20) + 1) + " MiB"; }

// Return how many bytes of a file have pages, if the range is all of it; else 0.
std::size_t taken_of_all(int fd, std::size_t offset, std::size_t bytes) noexcept {
  constexpr std::size_t block_bytes = 512;
  struct stat file{};
  const bool is_all = fstat(fd, &file) == 0 && offset == 0 &&
                      round_up(bytes, page_bytes) >= static_cast<std::size_t>(file.st_size);
  return is_all ? static_cast<std::size_t>(file.st_blocks) * block_bytes : 0;
}

// Reserve pages now, so that a full file system is an error here and not a signal at first touch.
void take_pages(int fd, const std::string& name, std::size_t offset, std::size_t bytes) {
  // Refuse what cannot fit before trying it: an attempt takes the memory of all other users first.
  struct statvfs fs{};
  const bool known = fstatvfs(fd, &fs) == 0 && fs.f_blocks != 0;
  // Pages that another process takes between the calls count as free and as taken: a file that
  // fits is not refused.
  const std::size_t missing = bytes - std::min(bytes, taken_of_all(fd, offset, bytes));
  int error = ENOSPC;
  if (!known || missing / fs.f_frsize <= fs.f_bavail) {
    do {
      error = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (error == EINTR);
  }
  if (error == 0) return;
  if (error != ENOSPC && error != ENOMEM) fail("size", name, error);
  throw SharedMemoryError(
      "/dev/shm is too small: " + mib(missing) + " more are needed, " +
      (known ? mib(static_cast<std::size_t>(fs.f_bavail) * fs.f_frsize) + " of " +
                   mib(static_cast<std::size_t>(fs.f_blocks) * fs.f_frsize) + " are free"
             : std::string("it is full")) +
      "; enlarge it (mount -o remount,size=..., docker --shm-size) or use fewer or smaller tables");
}

std::uint8_t* map(int fd, std::size_t bytes, int protection, int flags, void* at,
                  const std::string& name, std::size_t offset = 0) {
  void* p = map_without_locks(fd, bytes, protection, flags, at, offset);
  if (p == MAP_FAILED) fail("map", name, errno);
  return static_cast<std::uint8_t*>(p);
}

// Fill the page tables now, where the kernel can, so that the first update does not pay for it.
// Call it only for pages that are reserved: it must not fail.
void populate(std::uint8_t* data, std::size_t bytes) noexcept {
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, since Linux 5.14
  madvise(data, bytes, populate_write);
}

// Return the limit of the process' address space in bytes (ulimit -v, h_vmem); 0: there is none.
std::size_t address_limit() noexcept {
  struct rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? static_cast<std::size_t>(limit.rlim_cur) : 0;
}

void* try_addresses(std::size_t bytes) noexcept {
  return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// Reserve address space of `*wanted` bytes. A reservation saves moves of growing memory and is
// never needed for them, so it must not take what other memory of the process needs: where address
// space is limited or too small, lower `*wanted` to an eighth of what is available, but not below
// `least`. Both are multiples of the page size.
std::uint8_t* reserve_addresses(std::size_t* wanted, std::size_t least, const std::string& name) {
  void* p = try_addresses(*wanted);
  if (*wanted > least && (p == MAP_FAILED || address_limit() != 0)) {
    std::size_t available = *wanted;
    for (; p == MAP_FAILED && available > least; p = try_addresses(available))
      available = std::max(round_up(available / 2, page_bytes), least);
    if (p != MAP_FAILED) munmap(p, available);
    *wanted = std::min(*wanted, std::max(round_up(available / 8, page_bytes), least));
    p = try_addresses(*wanted);
  }
  if (p == MAP_FAILED) {
    const int error = errno;
    const std::size_t limit = address_limit();
    if (limit == 0) fail("reserve addresses for", name, error);
    throw SharedMemoryError("the address space of this process is limited to " + mib(limit) +
                            " (ulimit -v, h_vmem), and /dev/shm/" + name + " needs " + mib(least) +
                            " of it: raise the limit, or use fewer or smaller tables");
  }
  return static_cast<std::uint8_t*>(p);
}

// Take the owner's lock, which one process at a time can hold; return false if another one has it.
bool lock_as_owner(int fd) noexcept { return lock_byte(fd, 0); }

std::string path_of(const std::string& name) { return "/dev/shm/" + name; }

int create_file(const std::string& name) {
  // A concurrent `remove_if_unused` may remove the fresh file before it is locked: try again. With
  // busy cores this can happen many times in a row.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int fd = open(path_of(name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                        S_IRUSR | S_IWUSR);
    if (fd < 0) fail("create", name, errno);
    if (lock_as_owner(fd) && flock(fd, LOCK_SH) == 0 && is_named(fd, path_of(name))) return fd;
    close(fd);
  }
  fail("lock", name, EAGAIN);
}

// Open an existing file; refuse one of another user or with access for others.
int open_file(const std::string& name, std::size_t* bytes) {
  const int fd = open(path_of(name).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) fail("attach", name, errno);
  struct stat status{};
  const bool known = fstat(fd, &status) == 0;
  const int error = errno;
  if (known && status.st_uid == geteuid() && (status.st_mode & 0077) == 0) {
    *bytes = static_cast<std::size_t>(status.st_size);
    return fd;
  }
  close(fd);
  if (!known) fail("attach", name, error);
  throw SharedMemoryError("shared memory /dev/shm/" + name +
                          " belongs to another user or is open to others, so it is not used; "
                          "see ls -l /dev/shm");
}

}  // namespace

void close_in_children(int fd) { Descriptors::all().add(fd); }

void close_locked(int fd) noexcept { Descriptors::all().close(fd); }

SharedMemory SharedMemory::create(const std::string& name, std::size_t bytes, std::size_t reserve) {
  SharedMemory m = create_sparse(name, bytes);
  take_pages(m.fd_, name, 0, m.bytes_);
  if (reserve > m.bytes_) {
    munmap(m.data_, m.bytes_);
    m.data_ = nullptr;
    std::size_t reserved = round_up(reserve, page_bytes);
    m.data_ = reserve_addresses(&reserved, m.bytes_, name);
    m.reserve_ = reserved;
    map(m.fd_, m.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m.data_, name);
  }
  populate(m.data_, m.bytes_);
  return m;
}

SharedMemory SharedMemory::create_sparse(const std::string& name, std::size_t bytes) {
  SharedMemory m;
  m.name_ = name;
  m.hold(create_file(name));
  m.owner_ = getpid();
  m.bytes_ = m.reserve_ = m.writable_ = round_up(bytes ? bytes : 1, page_bytes);
  if (ftruncate(m.fd_, static_cast<off_t>(m.bytes_)) != 0) fail("size", name, errno);
  m.data_ = map(m.fd_, m.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, nullptr, name);
  return m;
}

SharedMemory SharedMemory::anonymous(std::size_t bytes, std::size_t reserve, bool huge) {
  SharedMemory m;
  m.bytes_ = m.writable_ = round_up(bytes ? bytes : 1, page_bytes);
  std::size_t reserved = round_up(std::max(reserve, m.bytes_), page_bytes);
  m.data_ = reserve_addresses(&reserved, m.bytes_, "(anonymous)");
  m.reserve_ = reserved;
  if (mprotect(m.data_, m.bytes_, PROT_READ | PROT_WRITE) != 0) fail("map", "(anonymous)", errno);

  // Ask for huge pages: rows of a large table miss the TLB on 4 KiB pages. Memory of which only
  // parts are used must not have them, because each use takes 2 MiB then. A refusal costs only
  // speed or memory.
  madvise(m.data_, m.reserve_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return m;
}

SharedMemory SharedMemory::attach(const std::string& name, std::size_t writable) {
  SharedMemory m;
  m.name_ = name;
  m.hold(open_file(name, &m.bytes_));
  if (flock(m.fd_, LOCK_SH | LOCK_NB) != 0) fail("lock", name, errno);
  m.reserve_ = m.bytes_;
  m.writable_ = round_up(writable < m.bytes_ ? writable : m.bytes_, page_bytes);
  m.data_ = map(m.fd_, m.bytes_, PROT_READ, MAP_SHARED, nullptr, name);
  if (m.writable_ != 0 && mprotect(m.data_, m.writable_, PROT_READ | PROT_WRITE) != 0)
    fail("map", name, errno);
  return m;
}

SharedMemory SharedMemory::reopen(const std::string& name, std::size_t reserve) {
  SharedMemory m;
  m.name_ = name;
  m.hold(open_file(name, &m.bytes_));
  if (!lock_as_owner(m.fd_) || flock(m.fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EACCES) fail("take over", name, errno);
    throw SharedMemoryBusy("shared memory /dev/shm/" + name +
                           ": a running process uses it; end that process first (fuser -v "
                           "/dev/shm/" +
                           name + " names it)");
  }

  // The exchange of the locks releases the first one for a moment, in which another process may
  // have removed the file.
  if (flock(m.fd_, LOCK_SH) != 0 || !is_named(m.fd_, path_of(name))) fail("keep", name, ENOENT);
  m.owner_ = getpid();
  m.writable_ = m.bytes_;
  std::size_t reserved = round_up(std::max(reserve, m.bytes_), page_bytes);
  m.data_ = reserve_addresses(&reserved, m.bytes_, name);
  m.reserve_ = reserved;
  map(m.fd_, m.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m.data_, name);
  return m;
}

void SharedMemory::grow(std::size_t bytes) {
  const std::size_t wanted = round_up(bytes, page_bytes);
  if (wanted <= bytes_) return;
  check_process();
  if (wanted > reserve_) move(wanted);
  if (fd_ < 0) {
    if (mprotect(data_ + bytes_, wanted - bytes_, PROT_READ | PROT_WRITE) != 0)
      fail("grow", "(anonymous)", errno);
  } else {
    take_pages(fd_, name_, bytes_, wanted - bytes_);
    map(fd_, wanted - bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, data_ + bytes_, name_,
        bytes_);
    populate(data_ + bytes_, wanted - bytes_);
  }
  bytes_ = writable_ = wanted;
}

void SharedMemory::shrink(std::size_t bytes) {
  const std::size_t wanted = round_up(bytes ? bytes : 1, page_bytes);
  if (wanted >= bytes_) return;
  check_process();
  // Replace the mapping first: nothing may reach pages that the file no longer has.
  if (mmap(data_ + wanted, bytes_ - wanted, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
    fail("shrink", fd_ < 0 ? "(anonymous)" : name_, errno);
  bytes_ = writable_ = wanted;
  if (fd_ >= 0 && ftruncate(fd_, static_cast<off_t>(wanted)) != 0) fail("shrink", name_, errno);
}

// Move the mapping to addresses with room for twice as much.
void SharedMemory::move(std::size_t wanted) {
  std::size_t reserved = 2 * wanted;
  std::uint8_t* to = reserve_addresses(&reserved, wanted, name_);
  if (fd_ < 0) madvise(to, reserved, MADV_HUGEPAGE);
  if (mremap(data_, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED) {
    // Release the rest of the old reservation. The addresses of the moved pages are free already
    // and may be in use again.
    if (reserve_ != bytes_) munmap(data_ + bytes_, reserve_ - bytes_);
  } else {
    // The kernel moves a single mapping only, and memory that grew in steps may consist of several:
    // map the file anew, or copy.
    if (fd_ >= 0) {
      map(fd_, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, to, name_);
      populate(to, bytes_);
    } else {
      if (mprotect(to, bytes_, PROT_READ | PROT_WRITE) != 0) fail("grow", "(anonymous)", errno);
      std::memcpy(to, data_, bytes_);
    }
    munmap(data_, reserve_);
  }
  data_ = to;
  reserve_ = reserved;
}

void SharedMemory::commit(std::size_t offset, std::size_t bytes) {
  if (offset > bytes_ || bytes > bytes_ - offset)
    throw std::out_of_range("a range that ends beyond the shared memory");
  check_process();
  if (fd_ < 0 || bytes == 0) return;
  take_pages(fd_, name_, offset, bytes);
  const std::size_t first = offset / page_bytes * page_bytes;
  populate(data_ + first, round_up(offset + bytes, page_bytes) - first);
}

void SharedMemory::unlink() noexcept {
  if (owner_ != getpid() || fd_ < 0) return;  // a forked child does not own the name
  if (is_named(fd_, path_of(name_))) ::unlink(path_of(name_).c_str());
  owner_ = 0;
}

void SharedMemory::close() noexcept { release(); }

bool SharedMemory::remove_if_unused(const std::string& name) {
  const int fd = open(path_of(name).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat status{};
  const bool free = fstat(fd, &status) == 0 && status.st_uid == geteuid() &&
                    flock(fd, LOCK_EX | LOCK_NB) == 0 && is_named(fd, path_of(name)) &&
                    ::unlink(path_of(name).c_str()) == 0;
  ::close(fd);
  return free;
}

void SharedMemory::hold(int fd) {
  fd_ = fd;
  opener_ = getpid();
  Descriptors::all().add(fd);
}

void SharedMemory::check_process() const {
  if (fd_ >= 0 && opener_ != getpid())
    throw SharedMemoryError("shared memory /dev/shm/" + name_ +
                            " belongs to the parent of this forked process and cannot grow here");
}

void SharedMemory::release() noexcept {
  unlink();
  if (data_ != nullptr) munmap(data_, reserve_);
  if (fd_ >= 0 && opener_ == getpid()) Descriptors::all().close(fd_);
  data_ = nullptr;
  fd_ = -1;
  bytes_ = reserve_ = writable_ = 0;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  name_ = std::move(other.name_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  reserve_ = std::exchange(other.reserve_, 0);
  writable_ = std::exchange(other.writable_, 0);
  fd_ = std::exchange(other.fd_, -1);
  owner_ = std::exchange(other.owner_, 0);
  opener_ = std::exchange(other.opener_, 0);
  return *this;
}

SharedMemory::~SharedMemory() { release(); }

}  // namespace mpips
