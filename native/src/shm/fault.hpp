#pragma once

#include <cstdint>

// Places where a test lets the process die, as by SIGKILL at that instruction: MPIPS_FAULT=point:n
// kills at the n-th passage of the point, "any:n" at the n-th passage of any of them, in the first
// launch of a run; with several, "stamped:9,taken-over:1", the second is for the second launch, and
// so on. Read once, when the module is loaded; without it a point costs one test of a bool that
// never changes.
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
  // What Python passes:
  taken_over,     // a server has recovered, nobody has joined it
  resumed,        // a worker's ring goes on
  cut_held,       // a server's rings stand at a cut, nothing is copied
  cut_copied,     // the copy is made, nobody knows
  block_written,  // a block of a checkpoint is written
  synced,         // all of it is durable under its temporary name
  named,          // it has its name, `latest` still leads elsewhere
  unmarked,       // the run is done, and nothing says so
  // A worker's clock, in order:
  clock_begun,  // nothing of it is written
  placed,       // the servers have the worker's place, none has a tick
  ticking,      // before the tick of each server is written
  ticked,       // the ticks are written; over a network none has left
  sending,      // before what is written leaves for each server
  clock_ended,  // the ticks have left
};

extern bool armed;
void pass(Point point) noexcept;
// The same by name; throws std::invalid_argument for one that there is not. Only while armed.
void pass_named(const char* name);
// Anew, for a process that goes on after a fork; "" disarms. Throws std::invalid_argument.
void arm(const char* text);
// Points passed since the last `arm`.
std::uint64_t passed() noexcept;

inline void at(Point point) noexcept {
  if (__builtin_expect(armed, 0)) pass(point);
}

}  // namespace mpips::fault
