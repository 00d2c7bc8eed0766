#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace mpips {

// Replaces this process by a command, unless it is cancelled in time.
//
// For a call that may never return and that holds the interpreter's lock, such as the start of MPI:
// no thread of Python runs meanwhile. The thread here needs no interpreter. What it executes keeps
// the process id, the environment and the open descriptors that are inherited, so it can say what
// happened and end with an exit code.
class Deadline {
 public:
  // `name`: of the thread, as /proc shows it, at most 15 bytes: other processes see by it that this
  // one has come so far.
  Deadline(double seconds, std::string name, std::vector<std::string> command);
  ~Deadline() { cancel(); }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  void cancel();

 private:
  bool is_cancelled_within(double seconds);

  std::string name_;
  std::vector<std::string> command_;
  std::vector<char*> arguments_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
  std::thread thread_;
};

}  // namespace mpips
