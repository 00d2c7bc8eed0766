#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "keys/mix.hpp"

namespace mpips::data {

// Which samples to keep and how features are numbered.
struct LibsvmOptions {
  std::int64_t stride;  // number of workers
  std::int64_t offset;  // keep the samples of this worker, see `owner`
  int base;             // 0, 1, or kAutoBase
  bool mixed = false;
};

constexpr int kAutoBase = -1;

// The worker that sample i belongs to; its definition is mpips/data/shares.py.
inline std::int64_t owner(std::int64_t i, const LibsvmOptions& o) noexcept {
  if (!o.mixed) return i % o.stride;
  const auto block = static_cast<std::uint64_t>(i / o.stride);
  const std::uint64_t bits = mix_splitmix((block + 1) * splitmix_step) >> 32;
  const std::uint64_t turn = (bits * static_cast<std::uint64_t>(o.stride)) >> 32;
  return (i + static_cast<std::int64_t>(turn)) % o.stride;
}

// The kept samples in compressed rows, and facts about the whole file.
struct LibsvmPart {
  std::vector<double> labels;
  std::vector<std::int64_t> indptr{0};
  std::vector<std::int64_t> indices;  // counted from 0, ascending in each row
  std::vector<float> values;
  std::int64_t n_samples = 0;   // kept or not
  std::int64_t min_index = -1;  // as written, over all samples; -1 if there is no feature
  std::int64_t max_index = -1;
  int base = 0;  // what was subtracted from the indices
};

// what() reads "line:column: message".
struct LibsvmError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Parse a whole file held in memory. Kept samples are checked in full; of the others the
// labels and values are skipped, so that a worker spends little time on samples that are not its
// own.
LibsvmPart parse_libsvm(const char* text, std::size_t length, const LibsvmOptions& options);

}  // namespace mpips::data
