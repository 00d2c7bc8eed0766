#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel_table.hpp"
#include "ring/dense_view.hpp"
#include "ring/ring_writer.hpp"
#include "ring/worker_wait.hpp"

// The short way of a worker to a dense table whose shards all lie on its node: one call from Python
// pushes, one pulls, without a detour through channels. Whatever needs a long wait, a conversion or
// an error message is refused here with nothing written, and goes the general way.
namespace mpips {

// What all handles of a worker share. Written by the worker's thread only.
struct WorkerClock {
  std::uint64_t now = 0;        // number of clocks that this worker has ended
  std::int64_t pushed_at = -1;  // the clock of its last push
  double next_poll_s = 0.0;
  std::uint32_t calls = 0;

  // Time to look at signals and the scheduler: every few milliseconds, asked at every call.
  bool poll_due() noexcept {
    if ((++calls & 15) != 0) return false;
    const double now_is = now_s();
    if (now_is < next_poll_s) return false;
    next_poll_s = now_is + 5e-3;
    return true;
  }
};

// Where the record of a push is: enough to wait for it and to read its result.
struct PushEnd {
  RingWriter* writer;
  std::uint64_t sequence;
};

// What became of a push: sent; or not, with nothing written, since it must wait for room; or since
// it is none of a port's (too large for it, or not finite).
enum class Sent : std::uint8_t { yes, no_room, other_way };

class DensePort {
 public:
  struct Part {
    RingWriter* writer;
    const std::uint8_t* region;  // of the server, mapped here
    std::size_t start, stop;     // elements of the flattened tensor
    std::size_t head, versions, values;
  };

  DensePort(WorkerClock* clock, std::uint16_t table, std::vector<Part> parts, bool bsp,
            std::int64_t bound, bool check_finite, bool oversubscribed)
      : clock_(clock),
        table_(table),
        parts_(std::move(parts)),
        bsp_(bsp),
        bound_(bound),
        check_finite_(check_finite),
        oversubscribed_(oversubscribed) {
    for (const Part& part : parts_) n_ = part.stop > n_ ? part.stop : n_;
  }

  // The worker's own memory that servers of this node read in place.
  void set_staging(std::uint8_t* data, std::size_t bytes) noexcept {
    staging_ = data;
    staging_bytes_ = bytes;
  }

  std::size_t size() const noexcept { return n_; }
  WorkerClock* clock() const noexcept { return clock_; }
  bool oversubscribed() const noexcept { return oversubscribed_; }

  // A buffer in the staging memory, as long as the table: updates that are larger than a record are
  // copied there, so that the server reads them in place. With two, copying goes on beside
  // applying.
  void add_bounce(std::size_t offset) { bounces_.push_back({offset, {}}); }
  bool has_bounce() const noexcept { return !bounces_.empty(); }

  // Writes one record to each part's ring.
  Sent push(const float* update, std::vector<PushEnd>* ends);
  // Waits until `push` finds room.
  bool wait_room(double max_s);
  // Index of the first part that still reads the bounce buffer that is next.
  std::size_t waits_for() const noexcept;

  // Copies all values, if within a short time the worker's own pushes are applied and the
  // consistency model allows it. False: not yet; `out` may hold some values.
  bool pull(float* out);

 private:
  struct Bounce {
    std::size_t offset;
    std::vector<PushEnd> ends;  // of the push that was copied there last
  };

  bool staged(const float* update) const noexcept;
  bool fits_records() const noexcept;
  bool has_credits() const noexcept;
  static bool is_free(const Bounce& bounce) noexcept;
  Sent push_records(const float* update, std::vector<PushEnd>* ends);
  Sent push_by_bounce(const float* update, std::vector<PushEnd>* ends);
  void push_in_place(const float* update, std::vector<PushEnd>* ends);
  bool settled() noexcept;

  WorkerClock* clock_;
  std::uint16_t table_;
  std::vector<Part> parts_;
  std::size_t n_ = 0;
  bool bsp_;
  std::int64_t bound_;  // SSP: clocks that a worker may run ahead; negative: no such bound
  bool check_finite_, oversubscribed_;
  std::uint8_t* staging_ = nullptr;
  std::size_t staging_bytes_ = 0;
  std::vector<Bounce> bounces_;
  std::size_t next_bounce_ = 0;
};

}  // namespace mpips
