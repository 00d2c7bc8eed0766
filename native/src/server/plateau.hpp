#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/shard.hpp"

namespace mpips {

// Clocks from the lowest clock of all workers to the switch that is decided on at it; see
// server/server_switch.cpp.
constexpr std::uint64_t switch_lead = 3;

// The measure of Switch(BSP(), ASP(), at="plateau"): the noise of the gradient of a clock, which is
// the sum of all workers' pushes under BSP, beside the gradient itself.
//
// Two clocks that follow each other have almost the same expected gradient G and independent noise.
// So the mean of the inner products of their sums is |G|^2, and the mean of their own squared norms
// is |G|^2 + s^2, with s^2 the variance of a sum. The plateau has come when s^2 >= ratio * |G|^2,
// with ratio 1 but in tests.
//
// With n workers s^2 / |G|^2 is sigma^2 / (n |grad f|^2), sigma^2 being the variance of the
// gradient of one worker. So the condition is R >= n, with R = sigma^2 / |grad f|^2 of Ringmaster
// ASGD (server/delay_threshold.hpp): updates of a staleness up to R slow training down by a
// constant factor at most, and under ASP an even job of n workers has a staleness of about n - 1.
//
// One pair of clocks in `every` is taken, those whose clocks of the run are 0 and 1 modulo `every`,
// and `pairs` of them make an estimate, over all tables together. All of it depends on the sums of
// a launch alone, whose bits do not depend on timing. A launch begins to count anew.
class Plateau {
 public:
  // `every`: clocks from pair to pair, 2 at least; `pairs`: pairs of an estimate, 1 at least.
  Plateau(std::size_t n_tables, std::uint64_t every, std::uint64_t pairs, double ratio)
      : every_(every), pairs_(pairs), ratio_(ratio), first_(n_tables) {
    if (every < 2 || pairs < 1)
      throw std::invalid_argument("every = " + std::to_string(every) + " and pairs = " +
                                  std::to_string(pairs) + ": must be 2 and 1 at least");
  }

  // Note the sum of a table in a clock of the run, before it is applied.
  void note(std::size_t table, std::uint64_t clock, const OpenSum& sum);
  // Note the end of a clock. Return true if there is a new estimate, and it is a plateau.
  bool close(std::uint64_t clock);

  // The last estimate: |G|^2, and s^2; 0 before the first one.
  double signal() const noexcept { return signal_; }
  double noise() const noexcept { return noise_; }

 private:
  // The sum of a table in the first clock of a pair.
  struct First {
    std::vector<float> values;
    std::unordered_map<std::int64_t, std::size_t> rows;  // of an embedding table, by key
  };

  std::uint64_t every_, pairs_;
  double ratio_;
  std::vector<First> first_;            // by table
  bool has_first_ = false;              // the first clock of this pair was one of this launch
  double inner_ = 0.0, squares_ = 0.0;  // of the present pair, over all tables
  double all_inner_ = 0.0, all_squares_ = 0.0;  // of the pairs so far
  std::uint64_t n_pairs_ = 0;
  double signal_ = 0.0, noise_ = 0.0;
};

}  // namespace mpips
