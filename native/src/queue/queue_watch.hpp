#pragma once

#include <cstdint>
#include <string>

#include "queue/sample_queue.hpp"

namespace mpips {

// A queue of samples as seen by a process that is neither its program nor its worker: `mpips run`,
// which starts programs. It writes nothing but the end of the producer.
class QueueWatch {
 public:
  // Watch the queue of a producer, which need not exist yet.
  QueueWatch(const std::string& name, std::uint64_t number) : path_(queue_path(name, number)) {}

  // Attach the file that has the name now, unless it is attached already. A file that has lost its
  // name stays attached until another one has it. Return true if a file is attached. Throws
  // std::system_error if the file cannot be used.
  bool look();

  // The rest needs an attached file.
  // Return true if the file has the name, and a worker serves it.
  bool is_served() const noexcept { return file_.is_at(path_) && file_.is_locked(worker_byte); }
  bool is_attached() const noexcept { return file_.is_locked(program_byte); }
  bool is_closed() const noexcept { return load_acquire(&file_.header()->closed) != 0; }
  std::uint64_t written() const noexcept { return load_acquire(&file_.header()->written); }
  // Return how many other files have been attached before this one.
  std::uint64_t replacements() const noexcept { return replacements_; }

  // End the producer in place of its program, which has ended. Without effect if no file is
  // attached, or a program has the queue: then return false.
  bool close_producer() noexcept;

 private:
  std::string path_;
  QueueFile file_;
  std::uint64_t replacements_ = 0;
};

}  // namespace mpips
