#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ring/common_view.hpp"
#include "ring/feedback.hpp"
#include "server/array.hpp"
#include "server/shard.hpp"

namespace mpips {

// The server's side of pulls as differences: the common copy of one dense shard
// (ring/common_view.hpp). All of it lies in the region, so it outlives the process as the values
// do. Only the server's loop writes it.
//
// With a journal, an update of the copy is a part of the operation that closes the clock, in two
// steps behind the change of the values:
//   1. Encode the difference. It depends on values, which do not change any more in this operation,
//      and on the copy, which this step does not change. So it is one unit that may be done twice.
//   2. Add the difference to the copy (or copy the values), in units whose old bytes the journal
//      saves.
// The difference in the region is complete when step 2 begins and does not change in it. So after a
// kill anywhere, the repeated operation ends with the same bytes.
class CommonCopy {
 public:
  CommonCopy(std::uint8_t* region, const DenseExtent& extent, const Durable& durable,
             Progress progress);

  float* values() const noexcept { return copy_; }
  // Begin with these values, without a residual.
  void begin(const float* values) noexcept;
  // Set the number of the newest update, before the first one of this job.
  void set_number(std::uint64_t number) noexcept { head_->number = number; }
  // Make the sequence even after a kill; the operation in progress follows.
  void take_over() noexcept;
  // Publish the difference to these values, and add it to the copy. `number`: of the update.
  void update(const float* values, std::uint64_t number);

 private:
  void encode(const float* values);
  template <class Apply>
  void change(std::size_t first, std::size_t count, std::uint64_t part, const Apply& apply);

  std::size_t n_, capacity_;
  CodecKind kind_;
  CommonHead* head_;
  std::uint8_t* difference_;
  float* copy_;
  Durable durable_;
  Progress progress_;
  std::unique_ptr<std::uint8_t[]> memory_;  // of `feedback_`; not used between two updates
  Feedback feedback_;
  std::vector<float> scratch_;
};

}  // namespace mpips
