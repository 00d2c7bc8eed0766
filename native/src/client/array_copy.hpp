#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "queue/sample_queue.hpp"

namespace mpips {

// Copies of an array of the application, with its strides, into its place in a slot, where it is
// contiguous with the last index fastest.
class ArrayCopy {
 public:
  // `strides`: in values, by dimension of the field; null: contiguous. `type`: of the application's
  // values, which is that of the field, or float64 for a field of float32.
  ArrayCopy(const QueueField& field, std::uint32_t type, const std::int64_t* strides);

  // Copy, and check floating-point values in the same pass. Return true if none is NaN or infinite
  // in the type of the field.
  bool to(std::uint8_t* to, const void* from) const noexcept;

 private:
  struct Dim {
    std::uint64_t n;
    std::int64_t stride;  // bytes
  };
  using Run = bool (*)(std::uint8_t* to, const std::uint8_t* from, std::uint64_t n,
                       std::int64_t stride);

  std::vector<Dim> outer_;   // slowest first
  std::uint64_t n_;          // values of a run
  std::int64_t stride_;      // bytes between values of a run
  std::uint64_t run_bytes_;  // of a run in the slot
  Run run_;
};

}  // namespace mpips
