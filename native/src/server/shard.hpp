#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/kernel_table.hpp"
#include "ring/layout.hpp"

namespace mpips {

enum class Model : std::uint8_t { bsp = 0, ssp = 1, asp = 2 };
enum class Policy : std::uint8_t { accept = 0, scale = 1, reject = 2, compensate = 3 };
constexpr const char* policy_names[] = {"accept", "scale", "reject", "compensate"};  // by Policy

struct ConsistencyConfig {
  Model model = Model::bsp;
  std::uint32_t bound = 0;          // SSP: clocks that a worker may run ahead, at most
  bool adaptive = false;            // SSP: the bound is decided on; pulls name the clock they need
  Policy policy = Policy::accept;   // what happens to a stale update
  std::uint32_t max_staleness = 0;  // reject: the highest staleness that is applied
  bool estimates = false;           // reject: it is estimated; see server/delay_threshold.hpp
  float lambda = 0.0F;              // compensate: DC-ASGD's variance control
  bool mean = true;                 // BSP: divide the reduced update by the number of its workers
  // clock of the run from which on BSP becomes ASP; 0: never, or with `finds_switch` not decided on
  std::uint64_t switch_at = 0;
  bool finds_switch = false;  // `switch_at` is decided on; see server/server_switch.cpp
  float rate = 1.0F;          // factor of the learning rate from that clock on
};

constexpr std::size_t staleness_bins = 65;  // 0 .. 63 and "64 or more"

struct TableStats {
  std::uint64_t pushed = 0;  // complete pushes that arrived
  // pushes that reached the values, including scaled and compensated ones
  std::uint64_t applied = 0;
  std::uint64_t scaled = 0, compensated = 0, rejected = 0, late = 0;
  std::uint64_t updates = 0;  // changes of the values: one per push, or one per clock under BSP
  // Rows of tables with limits (row_limits.hpp): made, refused (once for each clock with a push of
  // the key), removed, and made again soon after they were removed.
  std::uint64_t rows_made = 0, rows_refused = 0, rows_evicted = 0, rows_returned = 0;
  std::uint64_t pulled_rows = 0;
  std::array<std::uint64_t, staleness_bins> staleness{};
};

// A user's rule in Python: values (n), state (n_state arrays of n), update (n), step; all float32.
using PythonUpdate = std::function<void(float* values, float* const* state, std::size_t n_state,
                                        const float* update, std::size_t n, std::uint64_t step)>;
// Called between blocks of long work, so that a server with remote peers keeps entering MPI.
using Progress = std::function<void()>;

// The part of a push that one record has, or a whole push.
struct Update {
  std::size_t offset = 0, count = 0;   // elements (dense) or rows
  const std::int64_t* keys = nullptr;  // rows only
  const float* values = nullptr;
  const float* base = nullptr;  // the values that the update was computed on, or null
  // codec shared: for each block the exponent of its scale, then for each the exponent asked for
  const std::uint8_t* exponents = nullptr;
};

// The sum of the pushes of the open clock to a table, before it is applied: n rows of `dim` floats,
// or a tensor of n elements with `dim` 1.
struct OpenSum {
  std::size_t n = 0, dim = 1;
  const std::int64_t* keys = nullptr;  // rows only
  const float* values = nullptr;
};

// The weight of an update.
struct Weight {
  Factors factors;
  float lambda = 0.0F;  // delay compensation
};

struct Rule {
  OptimizerConfig optimizer;
  std::size_t n_state = 0;  // state values per parameter
  PythonUpdate python;      // set: replaces the kernel
};

// Apply only a share of what a user's rule changed. This has the effect of a factor of the learning
// rate if the rule moves the values in proportion to it.
inline void take_share(float* values, const float* before, std::size_t n, float share) noexcept {
  for (std::size_t i = 0; i < n; ++i) values[i] = before[i] + share * (values[i] - before[i]);
}

// The state of a worker's buffers (see Journal) that a later process needs to take them over.
using BufferWords = std::array<std::uint64_t, 4>;

// One server's part of a table. Not thread-safe: the server's loop is the only writer.
class Shard {
 public:
  virtual ~Shard() = default;

  const Rule& rule() const noexcept { return rule_; }
  // Let all later updates use these hyperparameters; the kind and what new state begins with must
  // be those of the present ones. Changes no value and no state.
  void set_optimizer(const OptimizerConfig& config) {
    rule_.optimizer = config;
    rule_.optimizer.bias_table = make_bias_table(config);
  }

  virtual BufferWords buffer_words(std::size_t number) const noexcept = 0;
  virtual void set_buffer_words(std::size_t number, const BufferWords& words) = 0;
  // Rebuild what can be derived, after all words are set.
  virtual void take_over() = 0;

  // Replace elements of the values (slot 0) or of a state, of a table that workers hold. Return
  // false if there are no such elements.
  virtual bool store(std::size_t slot, std::uint64_t offset, const float* values,
                     std::size_t n) = 0;

  // Return true if the update lies inside the shard.
  virtual bool accepts(const Update& part) const noexcept = 0;
  // Return true if a push ends with this part. `last` is the record's flag; it decides where pushes
  // may have any length.
  virtual bool ends_push(const Update& part, bool last) const noexcept = 0;
  // Copy a segment of a push that is not complete yet. `whole` returns the push once it is
  // complete.
  virtual void assemble(std::size_t worker, const Update& part, bool first) = 0;
  virtual Update whole(std::size_t worker) const = 0;
  // Change the values by one push.
  virtual void apply(const Update& update, const Weight& weight, std::uint64_t step) = 0;
  // BSP: add a part to a buffer; add the buffers in order, apply the sum and empty them.
  virtual void accumulate(std::size_t buffer, const Update& part) = 0;
  virtual bool apply_accumulated(const std::vector<std::size_t>& buffers, const Weight& weight,
                                 std::uint64_t step) = 0;
  virtual void discard(std::size_t buffer) = 0;
  // Say whether workers read the values on cores that are far from the server's.
  virtual void set_far(bool far) noexcept { (void)far; }
  // BSP without backup workers: return the sum of the open clock; n = 0: there is no push.
  virtual OpenSum open_sum() const noexcept = 0;
  virtual std::size_t memory_bytes() const = 0;

 protected:
  explicit Shard(Rule rule) : rule_(std::move(rule)) {}
  Rule rule_;
};

}  // namespace mpips
