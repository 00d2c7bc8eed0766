#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <vector>

// The events of one rank while it is traced: a ring of fixed size in the rank's own memory, whose
// oldest events are overwritten. One thread, the rank's, writes and reads it, so nothing orders
// accesses. Code on hot paths has a pointer to it that is null while nothing is traced: then an
// event costs one branch.
namespace mpips {

// Written to files as they lie in memory; see mpips/rundir/tracing.py.
enum class TraceKind : std::uint16_t {
  push = 1,      // a worker pushes: from the call to its end
  pull = 2,      // a worker pulls
  wait = 3,      // a worker waits
  tick = 4,      // a worker ends its clock
  snapshot = 5,  // a part in a checkpoint
  sent = 6,      // a worker has written the record that ends a push; no length
  apply = 7,     // a server consumes the record that ends a push
  segment = 8,   // a server consumes another record of a push
  answer = 9,    // a server answers a pull of rows
  clock = 10,    // a server consumes a tick; under BSP the last one applies the clock
  taken = 11,    // a worker knows that a push is consumed; no length
  other = 12,    // a server consumes a record of another kind
};

struct TraceEvent {
  std::uint64_t begin_ns, end_ns;  // CLOCK_MONOTONIC
  std::uint64_t sequence;          // of the record in its ring; 0 without a record
  std::uint64_t clock;             // of the worker
  std::uint16_t kind, table, peer,
      unused;  // peer: server of a worker's event, worker of a server's
};
static_assert(sizeof(TraceEvent) == 40);

class TraceRing {
 public:
  explicit TraceRing(std::size_t capacity) : events_(capacity) {}

  // Return CLOCK_MONOTONIC, which all processes of a node share.
  static std::uint64_t now_ns() noexcept {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1000000000U +
           static_cast<std::uint64_t>(t.tv_nsec);
  }

  void add(TraceKind kind, std::uint64_t begin_ns, std::uint64_t end_ns, std::uint64_t sequence,
           std::uint64_t clock, std::uint16_t table, std::uint16_t peer) noexcept {
    events_[next_] = {begin_ns, end_ns, sequence, clock, static_cast<std::uint16_t>(kind),
                      table,    peer,   0};
    if (++next_ == events_.size()) next_ = 0;
    ++written_;
  }

  // Forget all events.
  void clear() noexcept { next_ = 0, written_ = 0; }
  // Return the number of all events since the start, also of those that are overwritten.
  std::uint64_t written() const noexcept { return written_; }
  std::size_t capacity() const noexcept { return events_.size(); }

  // Return the events that are still there, the oldest first.
  std::vector<TraceEvent> events() const {
    if (written_ <= events_.size())
      return {events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(written_)};
    std::vector<TraceEvent> found(events_.begin() + static_cast<std::ptrdiff_t>(next_),
                                  events_.end());
    found.insert(found.end(), events_.begin(),
                 events_.begin() + static_cast<std::ptrdiff_t>(next_));
    return found;
  }

 private:
  std::vector<TraceEvent> events_;
  std::size_t next_ = 0;
  std::uint64_t written_ = 0;
};

}  // namespace mpips
