#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <string>

namespace mpips {

// Return the enumerator of this name; `names` has all names in the order of the enum. Raise
// ValueError for an unknown name; `what` is what the name was given for.
template <class Enum, std::size_t n>
Enum enumerator_named(const char* what, const std::string& name, const char* const (&names)[n]) {
  std::string known;
  for (std::size_t k = 0; k < n; ++k) {
    if (name == names[k]) return static_cast<Enum>(k);
    known += (k == 0 ? "" : ", ") + std::string(names[k]);
  }
  throw pybind11::value_error(std::string(what) + " = '" + name + "': must be one of " + known);
}

}  // namespace mpips
