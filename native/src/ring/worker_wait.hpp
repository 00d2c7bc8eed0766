#pragma once

#include "ring/ring_writer.hpp"
#include "shm/backoff.hpp"

// Bounded waits of a worker for memory that a server writes. Each returns after `max_s` seconds at
// the latest, so that the caller can check signals, deadlines and the scheduler.
namespace mpips {

// Reached after 20 ms of waiting, since a sleep is 1 % of the wait.
constexpr std::uint32_t max_worker_sleep_us = 200;

// Wait until `done()`; return false if it is still false after `max_s` seconds. Add the time to
// `*waited_s`: up to the last read of the time, so that a wait reads it no more often than without.
template <class Done>
bool wait_until(Done done, double max_s, bool oversubscribed, double* waited_s) {
  if (done()) return true;
  const double began = now_s();
  double now = began;
  Backoff backoff(oversubscribed, max_worker_sleep_us);
  bool found = false;
  do {
    backoff.pause();
    found = done();
    // A sleep is no short time: read its end.
    if (!found || !backoff.spinning()) now = now_s();
  } while (!found && now < began + max_s);
  *waited_s += now - began;
  return found;
}

template <class Done>
bool wait_until(Done done, double max_s, bool oversubscribed) {
  double ignored = 0.0;
  return wait_until(done, max_s, oversubscribed, &ignored);
}

// Return true if a table has reached this version and all workers this clock; 0 requires nothing.
inline bool head_reached(const TableHead* head, std::uint64_t version, std::uint64_t min_clock) {
  std::uint64_t value = 0;
  if (version != 0 && (!read_pair(&head->version, &value) || value < version)) return false;
  return min_clock == 0 || (read_pair(&head->min_clock, &value) && value >= min_clock);
}

}  // namespace mpips
