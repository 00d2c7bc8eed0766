#pragma once

#include <cstdint>

// Fault points: places where a test ends the process by SIGKILL.
//
// Only a build with the CMake option MPIPS_FAULTS=ON has them. In other builds every function of
// this header that product code calls is empty, and MPIPS_FAULT in the environment is an error at
// import of the module.
//
// MPIPS_FAULT=point:n kills the process when it passes the point for the n-th time; "any:n" counts
// the passages of all points together; n = 0 only counts. Entries separated by commas belong to
// the launches of a run in order: with "stamped:9,taken-over:1" the first launch ends at the 9th
// "stamped" and the second at its first "taken-over". MPIPS_GENERATION selects the entry. The
// variable is read once, when the module is loaded. While no point is armed, passing one costs a
// test of a bool.
//
// server/shard_faults.hpp has the part that the shards need in addition.
#ifndef MPIPS_FAULTS
#define MPIPS_FAULTS 0
#endif

namespace mpips::fault {

enum class Point : std::uint8_t {
  any,            // every point below
  payload,        // a record is written, its stamp is not
  stamped,        // a record is complete
  unit_saving,    // half of a unit's old bytes are in the scratch area
  unit_saved,     // all of them are, and the journal's position names the unit
  unit_changing,  // half of the unit is changed
  unit_changed,   // all of the unit is changed, the journal's position still names it
  unit_done,      // the journal's position is behind the unit
  rows_made,      // new rows are written, the number of rows is not
  row_moving,     // a row is removed, the last one is not or only partly in its place
  row_moved,      // the number of rows is reduced, the journal still names the move
  row_writing,    // half of a record is in the file of a table with storage
  row_written,    // all of it is, the row's place is still its frame
  row_reading,    // half of a record is in its frame
  row_placed,     // the row's place is changed
  copied,         // a segment is copied out of its slot
  word_logged,    // an old word is in the log, the new one is not in its place
  word_put,       // a word is changed
  committed,      // the operation is committed, its acknowledgement is not published
  acknowledged,   // the acknowledgement is published
  recovering,     // a step of recovery is made
  // Passed by Python code:
  taken_over,     // a server has recovered, no worker has joined it
  resumed,        // a worker's ring goes on after a restart
  cut_held,       // a server's rings stand at a cut, nothing is copied
  cut_copied,     // the copy is made, no other rank knows
  block_written,  // a block of a checkpoint is written
  synced,         // the whole checkpoint is durable under its temporary name
  named,          // the checkpoint has its name, `latest` still leads to another one
  unmarked,       // the run is done, its mark is not written
  // Passed while a worker ends its clock, in this order:
  clock_begun,  // nothing of the clock's end is written
  placed,       // the servers have the worker's position, none has a tick
  ticking,      // before the tick of each server is written
  ticked,       // the ticks are written; over a network none is sent
  sending,      // before the written records are sent to each server
  clock_ended,  // the ticks are sent
  // Passed while a worker writes its values of tables under LocalSGD and DiLoCo to memory:
  local_saving,  // an older image is no longer valid, the new one is not yet
  // Passed by workers with replicated tables:
  contributed,   // a push is in the node's memory, its clock is not closed
  part_summed,   // a block of an update is applied
  summed,        // a worker's slice is applied, the node does not know
  summed_clock,  // a worker's clock has ended for the other workers, and at no server
  // Passed at the end of a push with a residual, before the stamp of its last record:
  residual_made,    // the new half is complete, its tag is not there
  residual_tagged,  // the tag is there
};

// True in a build that has fault points.
inline constexpr bool built_in = MPIPS_FAULTS != 0;

// Arm from MPIPS_FAULT. Throws std::invalid_argument for a bad value, and std::runtime_error where
// the variable is set and the build has no fault points.
void arm_from_environment();
// Arm anew, for a process that goes on after a fork; "" disarms. Throws like
// `arm_from_environment`.
void arm(const char* text);
// Call `hook(name)` at the `first`-th passage of any point from here on, in place of SIGKILL; 0:
// at none until `hook_after` says so. The hook may switch to another stack and come back late or
// never. Null disarms. For simulations of a job in one thread.
using Hook = void (*)(const char* name);
void arm_hook(Hook hook, std::uint64_t first);
// Let so many passages go by until the next call of the hook; 0: it is called no more.
void hook_after(std::uint64_t passages) noexcept;
// Number of points passed since the last `arm`.
std::uint64_t passed() noexcept;
// Pass the point of this name. Throws std::invalid_argument for a name that does not exist.
void pass_named(const char* name);

namespace detail {
extern bool armed;  // defined only where `built_in`
void pass(Point point) noexcept;
}  // namespace detail

// True while a point is armed.
inline bool armed() noexcept {
  if constexpr (built_in) return __builtin_expect(detail::armed, 0);
  return false;
}

// Pass a point: the process ends here if this is the armed passage.
inline void at([[maybe_unused]] Point point) noexcept {
  if constexpr (built_in) {
    if (armed()) detail::pass(point);
  }
}

}  // namespace mpips::fault
