#include "process/deadline.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <utility>

namespace mpips {

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
  const std::chrono::duration<double> limit(seconds);
  return changed_.wait_for(lock, limit, [this] { return cancelled_; });
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
