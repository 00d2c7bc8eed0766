#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "server/embedding_shard.hpp"

// What the loops over the rows of an update need for each of them, inline.
namespace mpips {

// Rows between two calls of the progress function.
constexpr std::size_t progress_rows = 256;

// Return the rows of a unit of the journal: what it saves, and its copy, stay in the first-level
// cache.
inline std::size_t unit_rows_for(std::size_t row_bytes) noexcept {
  constexpr std::size_t unit_bytes = 16 << 10, most_unit_rows = 256;
  return std::clamp<std::size_t>(unit_bytes / row_bytes, 1, most_unit_rows);
}

template <int for_writing>
inline void EmbeddingShard::prefetch(std::uint32_t index, std::size_t n_lines) const noexcept {
  const auto* at = reinterpret_cast<const char*>(row(index));
  for (std::size_t line = 0; line < n_lines; ++line)
    __builtin_prefetch(at + line * line_bytes, for_writing);
}

inline RowsToChange EmbeddingShard::rows_of(const std::uint32_t* rows, const Update& update,
                                            std::size_t from) noexcept {
  const std::size_t left = update.count - from;
  return {row(0),    rows + from, std::min(progress_rows, left), left,
          stride_,   dim_,        update.values + from * dim_,   ahead_,
          row_lines_};
}

// Return true for rows whose rule counts their steps or whose updates are compensated: each is
// changed by its own call of a kernel.
inline bool EmbeddingShard::one_by_one(const Update& update, float lambda) const noexcept {
  return counts_steps_ || (update.base != nullptr && lambda != 0.0F);
}

inline std::uint32_t EmbeddingShard::steps_of(const float* r) const noexcept {
  std::uint32_t step = 0;
  std::memcpy(&step, r + stride_ - 1, sizeof step);
  // Count no further at the end of 32 bits: after 0 the bias correction would begin again.
  return std::min(step, std::numeric_limits<std::uint32_t>::max() - 1);
}

inline std::uint32_t EmbeddingShard::count_step(float* r) const noexcept {
  const std::uint32_t step = steps_of(r) + 1;
  std::memcpy(r + stride_ - 1, &step, sizeof step);
  return step;
}

inline const float* EmbeddingShard::compensated(const float* r, const float* update,
                                                const float* base, float lambda) {
  if (base == nullptr || lambda == 0.0F) return update;
  kernels().compensate(scratch_.data(), update, r, base, lambda, dim_);
  return scratch_.data();
}

}  // namespace mpips
