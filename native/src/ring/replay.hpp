#pragma once

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ring/push_tag.hpp"

namespace mpips {

// A worker repeats a clock with other pushes than the server has of it. Then it is unknown which of
// its updates count already.
class ReplayMismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The state that a server has of a worker that goes on after a warm restart.
struct Replay {
  std::uint64_t clock = 0;  // the clock that the worker was in
  bool finished = false;
  std::uint64_t pushes = 0, tag = no_pushes;  // complete pushes of that clock (push_tag.hpp)
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ended;  // (clock, tag) of clocks before it
  bool skips_clocks = false;  // with backup workers a worker may skip clocks
};

}  // namespace mpips
