#include <algorithm>
#include <string>
#include <utility>

#include "ring/checksum.hpp"
#include "ring/ring_writer.hpp"

// A worker's replay after a warm restart: the pushes and ticks that its server has are compared
// with what the worker repeats, and not written again.
namespace mpips {

// Let a pull wait until the records of the earlier launch are applied, like this worker's own
// pushes.
void RingWriter::resume(std::uint64_t sequence, std::uint64_t applied, Replay before) {
  next_ = published_ = sequence;
  consumed_ = retired_ = applied;
  std::fill(pushed_before_.begin(), pushed_before_.end(), sequence);
  replays_ = true;
  before_ = std::move(before);
  repeated_ = 0;
  repeated_tag_ = no_pushes;
}

// Return false if the worker is past everything that it may repeat.
bool RingWriter::follows(std::uint64_t clock) {
  if (!mismatch_.empty()) throw ReplayMismatch(mismatch_);
  if (!before_.finished && clock > before_.clock) {
    const std::uint64_t made = repeated_clock_ == before_.clock ? repeated_ : 0;
    if (made < before_.pushes) mismatch(clock, "has not repeated its pushes of the previous clock");
    return replays_ = false;
  }
  if (clock != repeated_clock_) {
    repeated_clock_ = clock;
    repeated_ = 0;
    repeated_tag_ = no_pushes;
  }
  return true;
}

bool RingWriter::repeats_push(std::uint16_t table, std::uint64_t clock, std::uint64_t n,
                              const std::int64_t* keys) {
  if (!follows(clock)) return false;
  const bool ended = has_ended(clock);
  if (ended && clock >= before_.clock)
    mismatch(clock, "pushes in it, but had finished without a push before the restart");
  if (!ended && repeated_ == before_.pushes) return false;
  const std::uint64_t digest = keys == nullptr ? 0 : keys_digest(keys, static_cast<std::size_t>(n));
  repeated_tag_ = next_tag(repeated_tag_, table, n, digest);
  ++repeated_;
  if (!ended && repeated_ == before_.pushes) compare_pushes(clock);
  return true;
}

bool RingWriter::repeats_tick(RecordKind kind, std::uint64_t clock) {
  if (!follows(clock)) return false;
  if (kind == RecordKind::finish) {
    if (before_.finished) return true;
    if (clock < before_.clock && !before_.skips_clocks)
      mismatch(clock, "finishes, but had gone on to clock " + std::to_string(before_.clock) +
                          " before the restart");
  } else if (has_ended(clock)) {
    if (clock >= before_.clock) mismatch(clock, "ends it, but had finished before the restart");
    compare_ended(clock);
    return true;
  }
  if (clock == before_.clock && repeated_ != before_.pushes) compare_pushes(clock);
  return false;
}

// With backup workers, a worker that repeats clocks may stop at clocks that it skipped before.
void RingWriter::compare_ended(std::uint64_t clock) {
  for (const auto& [at, tag] : before_.ended) {
    if (at != clock) continue;
    if (tag != repeated_tag_) mismatch(clock, "makes other pushes than before");
    return;
  }
  if (!before_.skips_clocks)
    mismatch(clock, "is too far behind: its pushes of that clock are no longer known");
}

void RingWriter::compare_pushes(std::uint64_t clock) {
  if (repeated_ < before_.pushes)
    mismatch(clock, "makes " + std::to_string(repeated_) + " pushes, but had made " +
                        std::to_string(before_.pushes) + " before the restart");
  if (repeated_tag_ != before_.tag) mismatch(clock, "makes other pushes than before");
}

void RingWriter::mismatch(std::uint64_t clock, const std::string& what) {
  mismatch_ = "worker " + std::to_string(worker_) + " repeats clock " + std::to_string(clock) +
              " and " + what;
  throw ReplayMismatch(mismatch_);
}

}  // namespace mpips
