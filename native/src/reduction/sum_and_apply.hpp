#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/kernel_table.hpp"
#include "reduction/node_layout.hpp"
#include "shm/fault.hpp"

// The arithmetic of one update of a replicated table.
namespace mpips {

// Elements that are summed and applied together: they and their state stay in the first-level
// cache.
constexpr std::size_t update_block = 2048;

struct UpdateOfTable {
  const OptimizerConfig& optimizer;
  std::uint64_t step;  // number of the update, from 1
  float scale;         // of the sum
  bool replaces;       // no optimizer: the sum, scaled, replaces the values
};

// Store what a version contains, before its first byte changes. Memory of a process that is killed
// keeps all stores that it made, and x86 makes them visible in order; the fence binds the compiler.
inline void announce(VersionLine* line, std::uint64_t n_clocks, std::uint64_t steps) noexcept {
  store_relaxed(&line->steps, steps);
  store_release(&line->after, n_clocks + 1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Sum the slice of all sources in their order, and apply it. `from` and `to`: values and state of
// the version before and of the new one; they may be the same.
inline void sum_and_apply(const UpdateOfTable& update, const std::vector<const float*>& sources,
                          Slice slice, std::size_t n_state, const float* const* from,
                          float* const* to, std::vector<float>* sum) {
  Factors factors;
  factors.gradient = update.scale;
  const UpdateArgs args = prepare(update.optimizer, update.step, factors);
  const KernelTable& k = kernels();
  for (std::size_t at = slice.start; at < slice.stop; at += update_block) {
    const std::size_t count = std::min(update_block, slice.stop - at);
    const float* added = sources.front() + at;
    if (sources.size() > 1) {
      std::memcpy(sum->data(), added, count * sizeof(float));
      for (std::size_t i = 1; i < sources.size(); ++i) k.add(sum->data(), sources[i] + at, count);
      added = sum->data();
    }
    if (update.replaces) {
      std::memcpy(to[0] + at, added, count * sizeof(float));
      if (update.scale != 1.0F) k.scale(to[0] + at, update.scale, count);
    } else {
      for (std::size_t slot = 0; from != to && slot <= n_state; ++slot)
        std::memcpy(to[slot] + at, from[slot] + at, count * sizeof(float));
      const auto state = [&](std::size_t i) { return i < n_state ? to[1 + i] + at : nullptr; };
      k.update[static_cast<std::size_t>(update.optimizer.kind)](to[0] + at, state(0), state(1),
                                                                added, count, args);
    }
    fault::at(fault::Point::part_summed);
  }
}

}  // namespace mpips
