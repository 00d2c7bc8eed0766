#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace mpips {

// A thread that replaces this process by a command unless it is cancelled in time.
//
// It guards a call that may never return and that holds the interpreter's lock, such as the start
// of MPI: no Python thread can run meanwhile, and this thread needs no interpreter. The command
// keeps the process id, the environment and the inheritable open descriptors, so it can report what
// happened and exit with the right code.
class Deadline {
 public:
  // `seconds`: from now until the command runs, while the process is not suspended. `name`: the
  // thread's name in /proc, at most 15 bytes. Other processes read it to see that this process has
  // come so far. `command`: path and arguments.
  Deadline(double seconds, std::string name, std::vector<std::string> command);
  ~Deadline() { cancel(); }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  // Stop the thread and wait for its end. Nothing happens if it is cancelled already.
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
