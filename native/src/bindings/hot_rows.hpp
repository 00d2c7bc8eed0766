#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>

#include "server/hot_rows.hpp"

namespace mpips {

// Return rows pulled and pushed per second, and for the hottest rows key, pulls and pushes per
// second.
pybind11::object read_rows(RowCounter& counter, double at_s, std::size_t most);

}  // namespace mpips
