#pragma once

#include "shm/backoff.hpp"

namespace mpips {

// Call `is_there` until it returns true; return false after the timeout.
template <class Condition>
bool wait_until(double timeout_s, Condition is_there) noexcept {
  if (is_there()) return true;
  Backoff backoff(true, 1000);
  for (const double end = now_s() + timeout_s; now_s() < end;) {
    backoff.pause();
    if (is_there()) return true;
  }
  return false;
}

}  // namespace mpips
