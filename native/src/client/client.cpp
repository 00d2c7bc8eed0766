#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "client/array_copy.hpp"
#include "client/mpips.h"
#include "client/producer.hpp"
#include "queue/sample_queue.hpp"
#include "queue/wait_until.hpp"

// The program's end of a queue of samples (queue/sample_queue.hpp), as a C library.
using mpips::QueueFile;
using mpips::QueueHeader;
using mpips::wait_until;

namespace {

thread_local char message[512] = "";

// Set the message, and return the code.
[[gnu::format(printf, 2, 3)]] int error(int code, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return code;
}

bool is_interrupted(const mpips_producer& p) noexcept {
  return p.is_interrupted != nullptr && p.is_interrupted();
}

int replaced(const mpips_producer& p) noexcept {
  const std::uint64_t samples = mpips::load_acquire(&p.header().replaced) - 1;
  return error(
      MPIPS_REPLACED,
      "producer %d of '%s': the job goes on with %llu samples of it, fewer than were pushed "
      "here, or as another job; call mpips_detach and mpips_open, and go on at "
      "mpips_produced",
      p.number, p.id(), static_cast<unsigned long long>(samples));
}

// The worker may take the mark back while the file is in its place (queue/queue_server.cpp).
bool is_replaced(const mpips_producer& p) noexcept {
  return mpips::load_acquire(&p.header().replaced) != 0 && !p.file.is_at(p.path);
}

// Set a message that names the late worker, and return the code.
int late(const mpips_producer& p, const char* call, const char* what) noexcept {
  const QueueHeader& h = p.header();
  const auto worker = static_cast<unsigned long long>(mpips::load_acquire(&h.worker));
  const auto pid = static_cast<unsigned long long>(mpips::load_acquire(&h.worker_pid));
  const char* state = p.file.is_locked(mpips::worker_byte)
                          ? "is running but late"
                          : "has ended, and no later launch of the job serves the queue yet";
  p.file.touch();
  return error(
      MPIPS_STALLED,
      "%s: producer %d of '%s': %s for %g s: worker %llu (process %llu) %s; samples taken: "
      "%llu of %llu",
      call, p.number, p.id(), what, p.timeout_s, worker, pid, state,
      static_cast<unsigned long long>(mpips::load_acquire(&h.taken)),
      static_cast<unsigned long long>(h.written));
}

std::string host_name() {
  char name[65] = "";  // HOST_NAME_MAX and the end
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

// Read a whole number below 2^24 from an environment variable, if it is set. Return MPIPS_OK, or
// the code of an error.
int read_number(const char* variable, int* number) noexcept {
  const char* text = std::getenv(variable);
  if (text == nullptr) return MPIPS_OK;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0' || value >= 1UL << 24)
    return error(MPIPS_USAGE,
                 "mpips_open: %s = '%s': must be a whole number, which `mpips run` sets", variable,
                 text);
  *number = static_cast<int>(value);
  return MPIPS_OK;
}

// Take name and number from the variables that `mpips run` sets for its programs.
int take_environment(mpips_producer* p) {
  const char* stream = std::getenv("MPIPS_STREAM");
  if (stream == nullptr || !mpips::is_queue_name(stream))
    return error(MPIPS_USAGE,
                 "mpips_open: no name is given, and MPIPS_STREAM has none: give a name, or let "
                 "`mpips run` start the program ([producers] of the job file)");
  p->name = stream;
  int first = 0, n = 1 << 24;
  if (const int code = read_number("MPIPS_PRODUCER", &first)) return code;
  if (const int code = read_number("MPIPS_PRODUCERS", &n)) return code;
  if (p->number >= n)
    return error(MPIPS_USAGE,
                 "mpips_open: number = %d: this program has %d of the producers of `mpips run`, "
                 "counted from 0: set producers.queues to the number of its ranks",
                 p->number, n);
  p->number += first;
  return MPIPS_OK;
}

// Take the name from the run directory `folder`; the code is MPIPS_FULL if it has none yet.
int take_folder(mpips_producer* p, const char* folder) {
  const std::string path = std::string(folder) + "/queue";
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return MPIPS_FULL;
  char text[80] = "";
  const bool is_read = std::fgets(text, sizeof text, file) != nullptr;
  std::fclose(file);
  if (is_read) text[std::strcspn(text, "\n")] = '\0';
  if (!mpips::is_queue_name(text))
    return error(MPIPS_USAGE, "mpips_open: %s contains no name of queues", path.c_str());
  p->name = text;
  return MPIPS_OK;
}

// Attach the queue if it is there; `code` is MPIPS_FULL if it is not, or not any more.
int try_attach(mpips_producer* p) {
  QueueFile file = QueueFile::open(p->path);
  if (!file.is_open()) return MPIPS_FULL;
  if (!file.is_sound())
    return error(MPIPS_USAGE, "mpips_open: %s was made by another version of mpips, or is damaged",
                 p->path.c_str());
  const bool is_free = wait_until(std::min(p->timeout_s, mpips::take_over_s), [&]() noexcept {
    return file.lock(mpips::program_byte) || !file.is_at(p->path);
  });
  if (!is_free) {
    const auto pid = static_cast<unsigned long long>(file.header()->program_pid);
    return error(MPIPS_USAGE, "mpips_open: process %llu is producer %d of '%s' already", pid,
                 p->number, p->id());
  }
  // The worker may have put another file in its place meanwhile, or removed it.
  if (!file.is_at(p->path) || mpips::load_acquire(&file.header()->replaced) != 0) return MPIPS_FULL;
  mpips::store_release(&file.header()->program_pid, static_cast<std::uint64_t>(getpid()));
  file.touch();
  p->file = std::move(file);
  return MPIPS_OK;
}

int check_handle(const mpips_producer* p, const char* call) noexcept {
  if (p == nullptr) return error(MPIPS_USAGE, "%s: the producer is NULL", call);
  if (!p->file.is_of_this_process())
    return error(MPIPS_USAGE,
                 "%s: producer %d of '%s' belongs to the parent of this forked process", call,
                 p->number, p->id());
  return MPIPS_OK;
}

int check_arrays(const mpips_producer& p, const char* call, const void* const* arrays) noexcept {
  const QueueHeader& h = p.header();
  if (p.declared.size() < h.n_fields) {
    for (std::uint32_t i = 0; i < h.n_fields; ++i) {
      const mpips::QueueField* field = p.file.fields() + i;
      const bool is_there =
          std::any_of(p.declared.begin(), p.declared.end(),
                      [=](const mpips::DeclaredField& d) { return d.field == field; });
      if (!is_there)
        return error(MPIPS_USAGE, "%s: field '%s' of '%s' is not declared: call mpips_declare",
                     call, field->name, p.id());
    }
  }
  if (arrays == nullptr) return error(MPIPS_USAGE, "%s: arrays is NULL", call);
  for (std::size_t i = 0; i < p.declared.size(); ++i)
    if (arrays[i] == nullptr)
      return error(MPIPS_USAGE, "%s: the array of field '%s' is NULL", call,
                   p.declared[i].field->name);
  if (h.closed != 0)
    return error(MPIPS_USAGE, "%s: producer %d of '%s' has ended", call, p.number, p.id());
  return MPIPS_OK;
}

bool has_room(const mpips_producer& p) noexcept {
  const QueueHeader& h = p.header();
  return h.written - mpips::load_acquire(&h.taken) < h.n_slots;
}

// Copy a sample into its slot, which is free, and hand it over.
int write(mpips_producer* p, const char* call, const void* const* arrays) noexcept {
  QueueHeader& h = p->header();
  std::uint8_t* slot = p->file.slot(h.written);
  for (std::size_t i = 0; i < p->declared.size(); ++i) {
    const mpips::DeclaredField& d = p->declared[i];
    if (!d.copy.to(slot + d.field->offset, arrays[i]) && h.check_finite != 0)
      return error(MPIPS_INVALID,
                   "%s: field '%s' of sample %llu of producer %d of '%s' contains NaN or infinity, "
                   "or a number beyond float32",
                   call, d.field->name, static_cast<unsigned long long>(h.written), p->number,
                   p->id());
  }
  mpips::store_release(&h.written, h.written + 1);
  return MPIPS_OK;
}

// Wait until `is_there`; return a code. `what`: what has not come.
template <class Condition>
int await(const mpips_producer& p, const char* call, const char* what,
          Condition is_there) noexcept {
  bool is_left = false;
  const auto is_over = [&] {
    return is_replaced(p) || is_there() || (is_left = is_interrupted(p));
  };
  if (!wait_until(p.timeout_s, is_over)) return late(p, call, what);
  if (is_left) return mpips::interrupted;
  return is_replaced(p) ? replaced(p) : MPIPS_OK;
}

int flush(const mpips_producer& p, const char* call) noexcept {
  const QueueHeader& h = p.header();
  return await(p, call, "servers do not hold all samples",
               [&] { return mpips::load_acquire(&h.taken) >= h.written; });
}

}  // namespace

namespace mpips {

int open_producer(mpips_producer** producer, const char* name, int number, double timeout_s,
                  bool (*interrupt)() noexcept) {
  if (producer == nullptr) return error(MPIPS_USAGE, "mpips_open: producer is NULL");
  *producer = nullptr;
  const bool is_given = name != nullptr && name[0] != '\0';
  const bool is_folder = is_given && std::strchr(name, '/') != nullptr;
  if (is_given && !is_folder && !is_queue_name(name))
    return error(MPIPS_USAGE,
                 "mpips_open: the name must have 1 to 64 letters, digits, '-', '_' and '.'");
  if (number < 0 || !(timeout_s >= 0.0))
    return error(MPIPS_USAGE, "mpips_open: number = %d, timeout_s = %g: must be 0 or more", number,
                 timeout_s);
  mpips_producer* p = nullptr;
  try {
    p = new mpips_producer{};
    p->number = number;
    p->timeout_s = timeout_s;
    p->is_interrupted = interrupt;
    p->declared.reserve(most_fields);
    int code = MPIPS_OK;
    if (!is_given)
      code = take_environment(p);
    else if (!is_folder)
      p->name = name;
    if (code != MPIPS_OK) {
      delete p;
      return code;
    }
    const bool is_there = wait_until(timeout_s, [&]() noexcept {
      try {
        code = p->name.empty() ? take_folder(p, name) : MPIPS_OK;
        if (code == MPIPS_OK) {
          p->path = queue_path(p->name, static_cast<std::uint64_t>(p->number));
          code = try_attach(p);
        }
      } catch (const std::exception& e) {
        code = error(MPIPS_SYSTEM, "mpips_open: %s", e.what());
      }
      if (code == MPIPS_FULL && is_interrupted(*p)) code = interrupted;
      return code != MPIPS_FULL;
    });
    if (is_there && code == MPIPS_OK) {
      *producer = p;
      return MPIPS_OK;
    }
    if (!is_there && p->name.empty())
      code = error(MPIPS_STALLED,
                   "mpips_open: for %g s %s has not been the directory of a run that `mpips run` "
                   "has begun: it has no file 'queue'",
                   timeout_s, name);
    else if (!is_there)
      code =
          error(MPIPS_STALLED,
                "mpips_open: for %g s no worker on this node, %s, has served producer %d of '%s' "
                "(%s): a worker of the job must call StreamTable.serve here, since samples do "
                "not go between nodes",
                timeout_s, host_name().c_str(), p->number, p->id(), p->path.c_str());
    delete p;
    return code;
  } catch (const std::bad_alloc&) {
    delete p;
    return error(MPIPS_SYSTEM, "mpips_open: no memory");
  }
}

}  // namespace mpips

extern "C" {

int mpips_open(mpips_producer** producer, const char* name, int number, double timeout_s) {
  return mpips::open_producer(producer, name, number, timeout_s, nullptr);
}

int mpips_declare(mpips_producer* p, const char* name, int type, int n_dims, const int64_t* shape,
                  const int64_t* strides) {
  if (const int code = check_handle(p, "mpips_declare")) return code;
  if (name == nullptr || (n_dims > 0 && shape == nullptr))
    return error(MPIPS_USAGE, "mpips_declare: name or shape is NULL");
  const mpips::QueueField* field = nullptr;
  for (std::uint32_t i = 0; i < p->header().n_fields; ++i)
    if (std::strcmp(p->file.fields()[i].name, name) == 0) field = p->file.fields() + i;
  if (field == nullptr)
    return error(MPIPS_USAGE, "mpips_declare: '%s' has no field '%s'", p->id(), name);
  for (const mpips::DeclaredField& d : p->declared)
    if (d.field == field)
      return error(MPIPS_USAGE, "mpips_declare: field '%s' is declared already", name);
  const bool converts = type == MPIPS_FLOAT64 && field->type == MPIPS_FLOAT32;
  if (type != static_cast<int>(field->type) && !converts)
    return error(MPIPS_USAGE,
                 "mpips_declare: field '%s' has type %d, the stream has type %u (see mpips.h)",
                 name, type, field->type);
  bool is_same = n_dims == static_cast<int>(field->n_dims);
  for (int i = 0; is_same && i < n_dims; ++i)
    is_same = shape[i] >= 0 && static_cast<std::uint64_t>(shape[i]) == field->shape[i];
  if (!is_same) {
    std::string declared;
    for (std::uint32_t i = 0; i < field->n_dims; ++i)
      declared += (i == 0 ? "" : ", ") + std::to_string(field->shape[i]);
    return error(MPIPS_USAGE, "mpips_declare: field '%s' has another shape than the stream, (%s)",
                 name, declared.c_str());
  }
  try {
    p->declared.push_back(
        {field, mpips::ArrayCopy(*field, static_cast<std::uint32_t>(type), strides)});
  } catch (const std::bad_alloc&) {
    return error(MPIPS_SYSTEM, "mpips_declare: no memory");
  }
  return MPIPS_OK;
}

int64_t mpips_produced(const mpips_producer* p) {
  return p == nullptr ? 0 : static_cast<int64_t>(p->header().written);
}

int mpips_push(mpips_producer* p, const void* const* arrays) {
  if (const int code = check_handle(p, "mpips_push")) return code;
  if (const int code = check_arrays(*p, "mpips_push", arrays)) return code;
  const int code = await(*p, "mpips_push", "the queue has no room", [&] { return has_room(*p); });
  return code != MPIPS_OK ? code : write(p, "mpips_push", arrays);
}

int mpips_try_push(mpips_producer* p, const void* const* arrays) {
  if (const int code = check_handle(p, "mpips_try_push")) return code;
  if (const int code = check_arrays(*p, "mpips_try_push", arrays)) return code;
  if (is_replaced(*p)) return replaced(*p);
  if (!has_room(*p))
    return error(MPIPS_FULL, "mpips_try_push: the queue of producer %d of '%s' has no room",
                 p->number, p->id());
  return write(p, "mpips_try_push", arrays);
}

int mpips_flush(mpips_producer* p) {
  if (const int code = check_handle(p, "mpips_flush")) return code;
  return flush(*p, "mpips_flush");
}

int mpips_steer(mpips_producer* p, float* values, int64_t n, int64_t* version) {
  if (const int code = check_handle(p, "mpips_steer")) return code;
  const auto there = static_cast<int64_t>(p->header().n_steer);
  if (values == nullptr || version == nullptr || n < 0 || n > there)
    return error(MPIPS_USAGE, "mpips_steer: n = %lld: the worker publishes %lld values",
                 static_cast<long long>(n), static_cast<long long>(there));
  const mpips::SteerHead* head = p->file.steer();
  std::vector<std::uint32_t> found;
  try {
    found.resize(static_cast<std::size_t>(n));
  } catch (const std::bad_alloc&) {
    return error(MPIPS_SYSTEM, "mpips_steer: no memory");
  }
  std::uint64_t before = 0;
  const auto is_read = [&]() noexcept {
    before = mpips::load_acquire(&head->sequence);
    if (before % 2 != 0) return false;
    const auto* from = reinterpret_cast<const std::uint32_t*>(p->file.steer_values());
    for (std::size_t i = 0; i < found.size(); ++i) found[i] = mpips::load_relaxed(from + i);
    mpips::fence_acquire();
    return mpips::load_relaxed(&head->sequence) == before;
  };
  if (const int code = await(*p, "mpips_steer", "values are half written", is_read)) return code;
  *version = static_cast<int64_t>(before / 2);
  if (before != 0 && n > 0) std::memcpy(values, found.data(), found.size() * sizeof(float));
  return MPIPS_OK;
}

int mpips_close(mpips_producer* p) {
  int code = check_handle(p, "mpips_close");
  if (code != MPIPS_OK) {
    delete p;
    return code;
  }
  QueueHeader& h = p->header();
  mpips::store_release(&h.closed, std::uint64_t{1});
  code = flush(*p, "mpips_close");
  if (code == MPIPS_OK)
    code = await(*p, "mpips_close", "servers do not hold the end of the producer",
                 [&] { return mpips::load_acquire(&h.ended) != 0; });
  delete p;
  return code;
}

int mpips_detach(mpips_producer* p) {
  if (p == nullptr) return error(MPIPS_USAGE, "mpips_detach: the producer is NULL");
  p->file.touch();
  delete p;
  return MPIPS_OK;
}

const char* mpips_message(void) { return message; }

}  // extern "C"
