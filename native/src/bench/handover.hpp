#pragma once

#include <cstddef>
#include <cstdint>

// The cost for two processes of handing values over through shared memory: the least that a push of
// a worker to a server on its node can take on a machine. Lines that one core has written must move
// to the other one.
namespace mpips {

// Two words on cache lines of their own, in memory that both processes map; zero at the beginning.
//
// Each word has one writer: `asked` the first process, `answered` the second one. The first one
// writes `asked` after the values (release), and the second one reads the values after it has seen
// the word (acquire); `answered` orders the other direction in the same way.
struct HandoverWords {
  std::uint64_t asked;
  std::uint64_t unused[7];
  std::uint64_t answered;
};

// Return the seconds of one round trip of a flag, the mean of `n`. Both processes call it with the
// same `n`; `is_first` on one of them. Throws std::runtime_error if the other process does not
// answer in `limit_s`.
double flag_round_trip(HandoverWords& words, bool is_first, std::size_t n, double limit_s);

// Return the seconds of one handover, the mean of `n`, without the computation of the values.
//
// The first process computes `own` anew (its values change their sign), copies it to `shared` and
// raises the flag; the second one subtracts `shared` from its `own` and answers. `own` and `shared`
// have `size` values. On the second process the result is 0.
double handover(HandoverWords& words, float* shared, float* own, std::size_t size, bool is_first,
                std::size_t n, double limit_s);

}  // namespace mpips
