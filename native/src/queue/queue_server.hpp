#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "queue/sample_queue.hpp"

namespace mpips {

// The worker's end of a queue of samples; see sample_queue.hpp.
class QueueServer {
 public:
  struct Field {
    std::string name;
    std::uint32_t type;
    std::vector<std::uint64_t> shape;
  };

  // Take the queue that an earlier launch has left, or make a new one.
  //
  // An earlier queue is taken if it is of the same stream and form, `produced` lies between the
  // samples that were taken from it and those that were written, and the stream has samples or a
  // program is attached. Otherwise its samples belong to another job. Throws std::runtime_error if
  // another worker serves it.
  QueueServer(const std::string& name, std::uint64_t number, const std::vector<Field>& fields,
              std::uint64_t n_slots, std::uint64_t n_steer, std::uint64_t declaration,
              bool check_finite, std::uint64_t produced, std::uint64_t worker);

  // Remove the name; the program keeps its mapping.
  void unlink() noexcept;
  // Give the file the current time, from which its retention counts.
  void touch() noexcept { file_.touch(); }

  // True: an earlier launch has made the queue.
  bool is_continued() const noexcept { return continued_; }
  // Return the number of samples that the program has written.
  std::uint64_t written() const noexcept { return load_acquire(&file_.header()->written); }
  std::uint64_t taken() const noexcept { return load_relaxed(&file_.header()->taken); }
  // True: the program has ended the producer; read it before `written`.
  bool is_closed() const noexcept { return load_acquire(&file_.header()->closed) != 0; }
  bool is_attached() const noexcept { return file_.is_locked(program_byte); }
  std::uint64_t program_pid() const noexcept { return load_relaxed(&file_.header()->program_pid); }

  const std::uint8_t* sample(std::uint64_t number) const noexcept { return file_.slot(number); }
  std::uint64_t offset(std::size_t field) const { return offsets_.at(field); }
  std::uint64_t n_steer() const noexcept { return file_.header()->n_steer; }
  std::uint64_t slot_bytes() const noexcept { return file_.header()->slot_bytes; }

  // Free the slots of all samples before `number`.
  void take(std::uint64_t number) noexcept { store_release(&file_.header()->taken, number); }
  // Note that the worker pushes from this queue in a clock.
  void note_push(std::uint64_t clock) noexcept {
    store_release(&file_.header()->pushing, clock + 1);
  }
  // Return true if this was the last clock in which a worker pushed from this queue.
  bool has_pushed_in(std::uint64_t clock) const noexcept {
    return load_relaxed(&file_.header()->pushing) == clock + 1;
  }
  // Note that the servers hold the end of the producer.
  void end() noexcept { store_release(&file_.header()->ended, std::uint64_t{1}); }
  // Publish values for the program, `n_steer` of them.
  void publish(const float* values) noexcept;

 private:
  std::string path_;
  QueueFile file_;
  std::vector<std::uint64_t> offsets_;  // of fields, bytes into a slot
  bool continued_ = false;
};

}  // namespace mpips
