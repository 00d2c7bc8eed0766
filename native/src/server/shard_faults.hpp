#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "journal/journal.hpp"
#include "shm/fault.hpp"

// Fault points inside the steps that a shard otherwise makes in one call. While a point is armed,
// the shard makes such a step in two calls with a point between them; else, and in every build
// without fault points, in one.
namespace mpips::fault {

// Change `n` elements by `change(first, count)`. While a point is armed and n > `least`: in two
// calls, of `first` elements and of the rest, with `between()` in the middle.
template <class Change, class Between>
inline void in_two(std::size_t n, [[maybe_unused]] std::size_t first,
                   [[maybe_unused]] std::size_t least, const Change& change,
                   [[maybe_unused]] const Between& between) {
  if constexpr (built_in) {
    if (armed() && n > least) {
      change(0, first);
      between();
      change(first, n - first);
      return;
    }
  }
  change(0, n);
}

// Leave 8 elements of each array as a kill inside a piece of a logged kernel leaves them (see
// UndoSlots), pass the points of its steps, then put the elements back. `element` is the first of
// them in the journal's numbering, `array(k)` points to it in array k. The piece before lies in
// slot 0 of place 0, so this one takes slot 1.
template <class Array>
inline void tear([[maybe_unused]] UndoSlots* undo, [[maybe_unused]] std::uint64_t element,
                 [[maybe_unused]] std::size_t n_arrays, [[maybe_unused]] const Array& array) {
  if constexpr (built_in) {
    constexpr std::size_t n = 8;
    auto& slot = undo->slots[0][1];
    for (std::size_t k = 0; k < n_arrays; ++k) std::copy_n(array(k), n, slot[k]);
    at(Point::unit_saving);
    undo->position = Journal::at(element, 0, 1) | UndoSlots::in_slot | n;
    at(Point::unit_saved);
    std::fill_n(array(0), 5, -1.0F);
    if (n_arrays > 1) std::fill_n(array(1), 3, -2.0F);
    at(Point::unit_changing);
    for (std::size_t k = 0; k < n_arrays; ++k) std::copy_n(slot[k], n, array(k));
  }
}

}  // namespace mpips::fault
