#pragma once

#include <cstddef>
#include <cstdint>

namespace mpips::data {

// Samples in compressed rows: sample i has the entries [starts[i], starts[i + 1]).
struct SampleArrays {
  const std::int64_t* starts;
  const std::int64_t* indices;
  const float* values;
  const std::int32_t* fields;  // or null
};

// Copy the entries of the samples `rows` one after the other. The arrays of `out` have room for
// all; its `fields` is null exactly if that of `from` is.
struct EntryOutput {
  std::int64_t* indices;
  float* values;
  std::int32_t* fields;
};
void take_samples(const SampleArrays& from, const std::int64_t* rows, std::size_t n,
                  const EntryOutput& out) noexcept;

}  // namespace mpips::data
