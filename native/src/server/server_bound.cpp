#include <stdexcept>
#include <string>

#include "server/server_core.hpp"

// The bound of SSP("auto"): how a decision becomes valid at the same clock for all workers.
//
// One server decides for the job: server 0. It publishes each decision in one word, the `decision`
// of the head of the job's first table with such a bound. That table's min_clock is the clock that
// all workers have reached, M(t). With `most` the greatest bound:
//
// Writer. Only the thread of this server writes the word and min_clock, each with release. A
// decision that it takes while min_clock is m is in force from clock m + most + 2 on. It takes the
// next decision only when min_clock has reached that clock, so a word has all that workers need:
// no worker asks for a clock below min_clock.
//
// Reader. A worker reads min_clock (acquire), say m, and then the word. It sees all decisions that
// were published before min_clock became m. Those that it may miss were taken while min_clock was m
// or more, so they are in force from clock m + most + 2 or later. So the bounds that it has read
// are final for all clocks up to m + most + 1, and every worker that asks for one of them gets the
// same number, whenever it asks. For a later clock it waits: a pull there has to wait for
// min_clock >= clock - most anyway.
//
// Restart. Processes that read decisions are those of one launch. A launch begins with the bound
// that was in force last, from clock 0 on; workers use 0, which every bound allows, before their
// first tick. So neither a decision that was published half, nor one that a worker of the launch
// before has not seen, can be taken for another.
namespace mpips {

void ServerCore::decide_bounds(std::uint16_t table, std::uint64_t most, std::uint64_t bound) {
  if (most > NumberDecision::most_number || bound > most)
    throw std::invalid_argument("bound = " + std::to_string(bound) + " of at most " +
                                std::to_string(most) + ": at most 255 are accepted");
  bound_table_ = table;
  most_ = most;
  intervals_ = std::make_unique<PushIntervals>(rings_.size(), most);
  publish_decision({0, bound, bound});
}

std::uint64_t ServerCore::set_bound(std::uint64_t bound) {
  if (!intervals_ || bound > most_)
    throw std::invalid_argument("bound = " + std::to_string(bound) + ": at most " +
                                std::to_string(intervals_ ? most_ : 0) + " is accepted");
  const NumberDecision& before = intervals_->decision();
  const std::uint64_t least = clocks_.min_clock();
  if (least < before.from || least > NumberDecision::most_clock - most_ - 2) return 0;
  const std::uint64_t from = least + most_ + 2;
  publish_decision({from, bound, before.number});
  return from;
}

void ServerCore::publish_decision(const NumberDecision& decision) {
  intervals_->decide(decision);
  publish(&tables_[bound_table_].head->decision, decision.word());
}

}  // namespace mpips
