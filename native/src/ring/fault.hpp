#pragma once

#include <cstdint>

// Places where a test lets the process die, as by SIGKILL at that instruction: MPIPS_FAULT=point:n
// kills at the n-th passage of the point, "any:n" at the n-th passage of any of them. Read once,
// when the module is loaded; without it a point costs one test of a bool that never changes.
namespace mpips::fault {

enum class Point : std::uint8_t {
  any,
  payload,        // a record is written, its stamp is not
  stamped,        // a record is complete
  unit_saving,    // half of a unit's old bytes are in the scratch area
  unit_saved,     // all of them, and it says so
  unit_changing,  // half of the unit is changed
  unit_changed,   // all of it, and nothing says so yet
  unit_done,      // the unit counts
  rows_made,      // new rows are written, their number is not
  copied,         // a segment is copied out of its slot
  word_logged,    // an old word is in the log, the new one is not in its place
  word_put,       // a word is changed
  committed,      // the operation counts, its acknowledgement is not published
  acknowledged,   // it is
  recovering,     // a step of recovery is made
};

extern bool armed;
void pass(Point point) noexcept;
// Anew, for a process that goes on after a fork; "" disarms. Throws std::invalid_argument.
void arm(const char* text);
// Points passed since the last `arm`.
std::uint64_t passed() noexcept;

inline void at(Point point) noexcept {
  if (__builtin_expect(armed, 0)) pass(point);
}

}  // namespace mpips::fault
