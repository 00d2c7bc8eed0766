#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "keys/mix.hpp"

namespace mpips::data {

// The samples to return, and how features are numbered.
struct LibsvmOptions {
  std::int64_t stride;     // number of workers
  std::int64_t offset;     // this worker; its samples are returned, see `owner`
  int base;                // 0, 1, or kAutoBase
  bool mixed = false;      // rule "mixed" of mpips/data/shares.py; false: "interleaved"
  std::int64_t first = 0;  // number of the first sample of the text
  bool several = false;    // a sample has any number of labels, which become entries
};

constexpr int kAutoBase = -1;
// Fields of entries if a sample has several labels; the same as in mpips/data/label_sets.py.
constexpr std::int32_t kFeatureField = 0, kLabelField = 1;

// Return the worker that sample i belongs to. Its definition is mpips/data/shares.py.
inline std::int64_t owner(std::int64_t i, const LibsvmOptions& o) noexcept {
  if (!o.mixed) return i % o.stride;
  const auto block = static_cast<std::uint64_t>(i / o.stride);
  const std::uint64_t bits = mix_splitmix((block + 1) * splitmix_step) >> 32;
  const std::uint64_t shift = (bits * static_cast<std::uint64_t>(o.stride)) >> 32;
  return (i + static_cast<std::int64_t>(shift)) % o.stride;
}

// The samples of one worker in compressed rows, and facts about the whole text.
struct LibsvmPart {
  std::vector<double> labels;  // 0 if a sample has several labels
  std::vector<std::int64_t> indptr{0};
  std::vector<std::int64_t> indices;  // counted from 0, ascending in each row; labels come first
  std::vector<float> values;
  std::vector<std::int32_t> fields;  // of each entry if a sample has several labels; else empty
  std::int64_t n_samples = 0;        // in the whole text
  std::int64_t min_index = -1;       // as written, over the whole text; -1 if there is no feature
  std::int64_t max_index = -1;
  int base = 0;  // subtracted from the indices
};

// An error in the text; what() is "line:column: message".
struct LibsvmError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Parse a whole file in memory. Samples of this worker are checked in full. Of the others only the
// indices are read, so that a worker spends little time on them.
LibsvmPart parse_libsvm(const char* text, std::size_t length, const LibsvmOptions& options);

}  // namespace mpips::data
