#include "process/deadline.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "shm/backoff.hpp"

namespace mpips {

// As in mpips/process/patience.py.
constexpr double jump_s = 1.0;
constexpr double slice_s = 0.1;

Deadline::Deadline(double seconds, std::string name, std::vector<std::string> command)
    : name_(std::move(name)), command_(std::move(command)) {
  for (std::string& part : command_) arguments_.push_back(part.data());
  arguments_.push_back(nullptr);
  // Block all signals in the thread, because they are for Python's threads. The command starts with
  // the mask of before: it must not begin with all signals blocked.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, seconds, before] {
    if (is_cancelled_within(seconds)) return;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    execv(arguments_[0], arguments_.data());
    _exit(127);
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool Deadline::is_cancelled_within(double seconds) {
  pthread_setname_np(pthread_self(), name_.c_str());
  std::unique_lock<std::mutex> lock(mutex_);
  // Count time in short waits. One that lasts much longer than it should contains a suspension of
  // the process (SIGSTOP, a frozen control group). Then the other processes of the job, which were
  // suspended, too, have the full time again, but at most twice the time in all.
  double passed = 0.0, total = 0.0;
  while (passed < seconds && total < 2.0 * (seconds + jump_s)) {
    const double began = now_s();
    const std::chrono::duration<double> slice(std::min(slice_s, seconds - passed));
    if (changed_.wait_for(lock, slice, [this] { return cancelled_; })) return true;
    const double took = now_s() - began;
    total += std::min(took, jump_s);
    passed = took > jump_s ? 0.0 : passed + took;
  }
  return cancelled_;
}

void Deadline::cancel() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace mpips
