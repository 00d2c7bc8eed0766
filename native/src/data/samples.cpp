#include "data/samples.hpp"

#include <algorithm>

namespace mpips::data {

void take_samples(const SampleArrays& from, const std::int64_t* rows, std::size_t n,
                  const EntryOutput& out) noexcept {
  std::size_t entry = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t begin = from.starts[rows[i]], end = from.starts[rows[i] + 1];
    std::copy(from.indices + begin, from.indices + end, out.indices + entry);
    std::copy(from.values + begin, from.values + end, out.values + entry);
    if (from.fields != nullptr)
      std::copy(from.fields + begin, from.fields + end, out.fields + entry);
    entry += static_cast<std::size_t>(end - begin);
  }
}

}  // namespace mpips::data
