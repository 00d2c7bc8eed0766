#include "shm/store_choice.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace mpips {

Stores forced_stores() {
  // Read once: all parts of a process go the same way.
  static const char* const value = std::getenv("MPIPS_STORES");
  const std::string way = value != nullptr ? value : "";
  if (way.empty()) return Stores::measured;
  if (way == "cached") return Stores::cached;
  if (way == "past") return Stores::past;
  throw std::invalid_argument("MPIPS_STORES = '" + way +
                              "': must be cached or past, or unset to measure which is faster");
}

}  // namespace mpips
