#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel_table.hpp"
#include "record/pull_log.hpp"
#include "ring/dense_view.hpp"
#include "ring/ring_writer.hpp"
#include "ring/worker_wait.hpp"

// The fast path from a worker to a dense table whose shards all lie on its node: one call from
// Python per push or pull, without channels. A call that needs a long wait, a conversion or an
// error message is refused here with nothing written; the caller then takes the general path.
namespace mpips {

// Seconds that calls of one kind take. Long calls are all timed, of shorter ones every 13th or
// 97th, which stands for those before it: so a short call costs a decrement.
class CallTime {
 public:
  // Return true if this call is to be timed; `add` then follows.
  bool due() noexcept { return --left_ == 0; }
  void add(double seconds) noexcept {
    // A call that was interrupted stands for itself alone: others were as long as usual.
    total_s_ += seconds > long_s ? seconds + usual_s_ * (weight_ - 1) : seconds * weight_;
    if (seconds <= long_s) usual_s_ = seconds;
    weight_ = left_ = seconds > long_s ? 1 : seconds > short_s ? 13 : 97;
  }
  double total_s() const noexcept { return total_s_; }

 private:
  static constexpr double long_s = 20e-6, short_s = 2e-6;
  double total_s_ = 0.0, usual_s_ = 0.0;
  int weight_ = 1, left_ = 1;
};

// State that all handles of a worker share. Only the worker's thread writes it.
struct WorkerClock {
  std::uint64_t now = 0;        // number of clocks that this worker has ended
  std::int64_t pushed_at = -1;  // the clock of its last push; -1: no push yet
  double next_poll_s = 0.0;
  std::uint32_t calls = 0;
  CallTime pushes, pulls;             // direct ones
  double wait_s = 0.0;                // seconds of waits, in Python too
  double push_s = 0.0, pull_s = 0.0;  // seconds of other pushes and pulls, without their waits

  // Begin a push or a pull that is not direct; `end` adds its time to one of the sums above.
  void begin() noexcept { began_s = now_s() - wait_s; }
  void end(double* sum) noexcept { *sum += now_s() - wait_s - began_s; }
  double began_s = 0.0;
  TraceRing* trace = nullptr;  // of the worker; null: it is not traced

  // Return true every few milliseconds, when it is time to check signals and the scheduler. Called
  // at every operation; it reads the time at every 16th call.
  bool poll_due() noexcept {
    if ((++calls & 15) != 0) return false;
    const double now_is = now_s();
    if (now_is < next_poll_s) return false;
    next_poll_s = now_is + 5e-3;
    return true;
  }
};

// The record that ends a push: enough to wait for the push and to read its result.
struct PushEnd {
  RingWriter* writer;
  std::uint64_t sequence;
};

// Result of a push: sent; or nothing written because it must wait for room; or nothing written
// because the port does not handle it (too large, or not finite).
enum class Sent : std::uint8_t { yes, no_room, other_way };

class DensePort {
 public:
  struct Part {
    RingWriter* writer;
    const std::uint8_t* region;          // of the server, mapped into this process
    std::size_t start, stop;             // elements of the flattened tensor
    std::size_t head, versions, values;  // head, versions, values: offsets into the region
  };

  DensePort(WorkerClock* clock, std::uint16_t table, std::vector<Part> parts,
            std::uint64_t bsp_until, std::int64_t bound, bool check_finite, bool oversubscribed)
      : clock_(clock),
        table_(table),
        parts_(std::move(parts)),
        bsp_until_(bsp_until),
        bound_(bound),
        check_finite_(check_finite),
        oversubscribed_(oversubscribed) {
    for (const Part& part : parts_) n_ = part.stop > n_ ? part.stop : n_;
  }

  // Set the worker's own memory that servers of this node read in place.
  void set_staging(std::uint8_t* data, std::size_t bytes) noexcept {
    staging_ = data;
    staging_bytes_ = bytes;
  }

  std::size_t size() const noexcept { return n_; }
  std::size_t n_parts() const noexcept { return parts_.size(); }
  std::uint16_t table() const noexcept { return table_; }
  WorkerClock* clock() const noexcept { return clock_; }
  bool oversubscribed() const noexcept { return oversubscribed_; }

  // Add a bounce buffer in the staging memory, as long as the table. Updates larger than a record
  // are copied there, and the server reads them in place. With two buffers, one update is copied
  // while the server applies the other.
  void add_bounce(std::size_t offset) { bounces_.push_back({offset, {}}); }
  bool has_bounce() const noexcept { return !bounces_.empty(); }

  // Refuse pushes and pulls until the worker's clock ends: its push that closes the table was sent.
  void close() noexcept { closed_at_ = static_cast<std::int64_t>(clock_->now); }

  // Note what pulls see in `log`; `servers`: index of the server of each part.
  void set_log(PullLog* log, std::vector<std::size_t> servers) {
    log_ = log;
    servers_ = std::move(servers);
  }
  // Change the bound of SSP("auto"), at the begin of a clock.
  void set_bound(std::int64_t bound) noexcept { bound_ = bound; }
  // Set the clock of the launch at which BSP ends.
  void set_bsp_until(std::uint64_t clock) noexcept { bsp_until_ = clock; }
  // Refuse pulls: they take the general path.
  void leave_pulls() noexcept { pulls_ = false; }

  // Write one record to each part's ring.
  Sent push(const float* update, std::vector<PushEnd>* ends);
  // Wait until `push` finds room, at most `max_s` seconds.
  bool wait_room(double max_s);
  // Return the index of the first part whose server still reads the next bounce buffer.
  std::size_t waits_for() const noexcept;

  // Copy all values, if within a short time the worker's own pushes are applied and the consistency
  // model allows it. Return false if not; `out` may then have some of the values.
  bool pull(float* out);

 private:
  // Wait a short time until `done()`, and count the time; return false if it is still false.
  template <class Done>
  bool wait_short(Done done) noexcept;

  struct Bounce {
    std::size_t offset;
    std::vector<PushEnd> ends;  // of the last push that was copied there
  };

  bool is_closed() const noexcept { return closed_at_ == static_cast<std::int64_t>(clock_->now); }
  bool staged(const float* update) const noexcept;
  bool fits_records() const noexcept;
  bool has_credits() const noexcept;
  bool replays() const noexcept;
  static bool is_free(const Bounce& bounce) noexcept;
  Sent push_records(const float* update, std::vector<PushEnd>* ends);
  Sent push_by_bounce(const float* update, std::vector<PushEnd>* ends);
  void push_in_place(const float* update, std::vector<PushEnd>* ends);
  // Wait a short time until a pull is allowed.
  bool settled() noexcept;

  WorkerClock* clock_;
  std::uint16_t table_;
  std::vector<Part> parts_;
  std::size_t n_ = 0;
  // clock at which BSP ends: 0 under SSP and ASP, the largest number under BSP
  std::uint64_t bsp_until_;
  std::int64_t bound_;  // SSP: clocks that a worker may run ahead; negative: no bound
  bool check_finite_, oversubscribed_;
  std::int64_t closed_at_ = -1;  // the clock of the last push that closed the table; -1: none
  std::uint8_t* staging_ = nullptr;
  std::size_t staging_bytes_ = 0;
  std::vector<Bounce> bounces_;
  std::size_t next_bounce_ = 0;
  StoreChoice stores_;      // of copies to bounce buffers
  PullLog* log_ = nullptr;  // null: pulls are not recorded
  std::vector<std::size_t> servers_;
  bool pulls_ = true;
};

}  // namespace mpips
