#pragma once

#include "ring/ring_writer.hpp"
#include "shm/backoff.hpp"

// Bounded waits of a worker for memory that a server writes. Each returns after `max_s` seconds at
// the latest, so that the caller can check signals, deadlines and the scheduler.
namespace mpips {

// Reached after 20 ms of waiting, since a sleep is 1 % of the wait.
constexpr std::uint32_t max_worker_sleep_us = 200;

// Wait until `done()`; return false if it is still false after `max_s` seconds.
template <class Done>
bool wait_until(Done done, double max_s, bool oversubscribed) {
  if (done()) return true;
  const double end = now_s() + max_s;
  Backoff backoff(oversubscribed, max_worker_sleep_us);
  do {
    backoff.pause();
    if (done()) return true;
  } while (now_s() < end);
  return false;
}

// Return true if a table has reached this version and all workers this clock; 0 requires nothing.
inline bool head_reached(const TableHead* head, std::uint64_t version, std::uint64_t min_clock) {
  std::uint64_t value = 0;
  if (version != 0 && (!read_pair(&head->version, &value) || value < version)) return false;
  return min_clock == 0 || (read_pair(&head->min_clock, &value) && value >= min_clock);
}

}  // namespace mpips
