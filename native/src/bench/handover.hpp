#pragma once

#include <cstddef>
#include <cstdint>

#include "shm/round_trip.hpp"

// The cost for two processes of handing values over through shared memory: the least that a push of
// a worker to a server on its node can take on a machine. Lines that one core has written must move
// to the other one.
namespace mpips {

// Return the seconds of one handover, the mean of `n`, without the computation of the values.
//
// The first process computes `own` anew (its values change their sign), copies it to `shared` and
// raises the flag; the second one subtracts `shared` from its `own` and answers. `own` and `shared`
// have `size` values. On the second process the result is 0.
double handover(HandoverWords& words, float* shared, float* own, std::size_t size, bool is_first,
                std::size_t n, double limit_s);

}  // namespace mpips
