#include "queue/queue_server.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "queue/wait_until.hpp"
#include "ring/layout.hpp"

namespace mpips {
namespace {

QueueField made(const QueueServer::Field& field, std::uint64_t* end) {
  QueueField f{};
  if (field.name.empty() || field.name.size() > most_name || field.shape.size() > most_dims ||
      field.type == 0 || field.type > n_value_types)
    throw std::invalid_argument("field '" + field.name +
                                "': programs can push fields with names of at most " +
                                std::to_string(most_name) + " bytes and at most " +
                                std::to_string(most_dims) + " dimensions");
  std::memcpy(f.name, field.name.data(), field.name.size());
  f.type = field.type;
  f.n_dims = static_cast<std::uint32_t>(field.shape.size());
  f.count = 1;
  for (std::size_t i = 0; i < field.shape.size(); ++i) f.count *= f.shape[i] = field.shape[i];
  f.offset = *end;
  *end = round_up(*end + f.count * value_bytes[f.type], line_bytes);
  return f;
}

// Create the file of a queue; see QueueFile::create.
QueueFile create_queue(const std::string& path, const std::string& name, const QueueHeader& h) {
  try {
    return QueueFile::create(path, h.total_bytes);
  } catch (const std::system_error& e) {
    if (e.code().value() != ENOSPC && e.code().value() != ENOMEM) throw;
    throw std::runtime_error("queue '" + name + "': slots = " + std::to_string(h.n_slots) +
                             " needs " + std::to_string(round_up(h.total_bytes, 1 << 20) >> 20) +
                             " MiB of /dev/shm: " + e.code().message() +
                             "; enlarge it (mount -o remount,size=..., docker --shm-size) or "
                             "serve with fewer slots");
  }
}

// Return true if a queue of an earlier launch has this form.
bool has_form(const QueueFile& file, const QueueHeader& h, const std::vector<QueueField>& fields) {
  const QueueHeader& found = *file.header();
  return file.is_sound() && std::memcmp(&found, &h, offsetof(QueueHeader, pad)) == 0 &&
         std::memcmp(file.fields(), fields.data(), fields.size() * sizeof(QueueField)) == 0;
}

}  // namespace

QueueServer::QueueServer(const std::string& name, std::uint64_t number,
                         const std::vector<Field>& fields, std::uint64_t n_slots,
                         std::uint64_t n_steer, std::uint64_t declaration, bool check_finite,
                         std::uint64_t produced, std::uint64_t worker) {
  if (!is_queue_name(name))
    throw std::invalid_argument("queue '" + name +
                                "': must have 1 to 64 letters, digits, '-', '_' and '.'");
  if (fields.empty() || fields.size() > most_fields)
    throw std::invalid_argument("queue '" + name + "': " + std::to_string(fields.size()) +
                                " fields: programs can push 1 to " + std::to_string(most_fields));
  if (n_slots < 1 || n_slots > 1 << 20 || n_steer > most_steer)
    throw std::invalid_argument("queue '" + name + "': must have 1 to 1048576 slots and at most " +
                                std::to_string(most_steer) + " values to steer by");
  std::vector<QueueField> written_fields;
  std::uint64_t slot_bytes = 0;
  for (const Field& field : fields) written_fields.push_back(made(field, &slot_bytes));
  for (const QueueField& field : written_fields) offsets_.push_back(field.offset);

  QueueHeader h{};
  h.magic = queue_magic;
  h.format = queue_format;
  h.n_fields = static_cast<std::uint32_t>(fields.size());
  h.n_slots = n_slots;
  h.slot_bytes = round_up(slot_bytes, page_bytes);
  h.slots_offset = round_up(sizeof h + fields.size() * sizeof(QueueField), page_bytes);
  h.steer_offset = h.slots_offset + n_slots * h.slot_bytes;
  h.n_steer = n_steer;
  h.total_bytes =
      round_up(h.steer_offset + sizeof(SteerHead) + n_steer * sizeof(float), page_bytes);
  h.declaration = declaration;
  h.check_finite = check_finite ? 1 : 0;
  h.taken = h.written = produced;
  h.worker = worker;
  h.worker_pid = static_cast<std::uint64_t>(getpid());

  path_ = queue_path(name, number);
  const std::string fresh = path_ + ".new-" + std::to_string(getpid());
  for (int attempt = 0; attempt < 1000; ++attempt) {
    QueueFile found = QueueFile::open(path_);
    if (found.is_open()) {
      const bool is_free = wait_until(
          take_over_s, [&]() noexcept { return found.lock(worker_byte) || !found.is_at(path_); });
      if (!is_free)
        throw std::runtime_error("a worker of another job, or another worker of this one, serves " +
                                 path_ +
                                 ": give each job a name of its own, and each producer one worker");
      if (!found.is_at(path_)) continue;  // another worker has replaced it meanwhile
      QueueHeader& earlier = *found.header();
      const bool fits = has_form(found, h, written_fields) &&
                        load_acquire(&earlier.replaced) == 0 && earlier.taken <= produced &&
                        produced <= load_acquire(&earlier.written);
      bool is_one_of_this_job = fits && (produced != 0 || found.is_locked(program_byte));
      if (!is_one_of_this_job) store_release(&earlier.replaced, produced + 1);
      // A program takes its lock before it reads `replaced`. So a program that does not see it is
      // seen here.
      if (!is_one_of_this_job && fits && found.is_locked(program_byte)) {
        store_release(&earlier.replaced, std::uint64_t{0});
        is_one_of_this_job = true;
      }
      if (is_one_of_this_job) {
        store_release(&earlier.worker, worker);
        store_release(&earlier.worker_pid, h.worker_pid);
        store_release(&earlier.taken, produced);
        found.touch();
        file_ = std::move(found);
        continued_ = true;
        return;
      }
    }
    ::unlink(fresh.c_str());
    QueueFile made_file = create_queue(fresh, name, h);
    if (!made_file.is_open()) continue;
    std::memcpy(made_file.header(), &h, sizeof h);
    std::memcpy(made_file.fields(), written_fields.data(),
                written_fields.size() * sizeof(QueueField));
    // This worker has the lock of the earlier file, so no other one replaces it.
    const bool is_there = found.is_open() ? rename(fresh.c_str(), path_.c_str()) == 0
                                          : link(fresh.c_str(), path_.c_str()) == 0;
    const int error = errno;
    ::unlink(fresh.c_str());
    if (is_there) {
      file_ = std::move(made_file);
      return;
    }
    if (error != EEXIST && error != ENOENT)
      throw std::system_error(error, std::generic_category(), "cannot make " + path_);
  }
  throw std::runtime_error("cannot make " + path_ +
                           ": other processes make and remove it all the time");
}

void QueueServer::unlink() noexcept {
  if (file_.is_at(path_)) ::unlink(path_.c_str());
}

void QueueServer::publish(const float* values) noexcept {
  std::uint64_t* sequence = &file_.steer()->sequence;
  // A worker that died while it published has left an odd number.
  const std::uint64_t odd = load_relaxed(sequence) | 1;
  store_relaxed(sequence, odd);
  fence_release();
  float* to = file_.steer_values();
  for (std::uint64_t i = 0; i < file_.header()->n_steer; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    store_relaxed(reinterpret_cast<std::uint32_t*>(to + i), bits);
  }
  store_release(sequence, odd + 1);
}

}  // namespace mpips
