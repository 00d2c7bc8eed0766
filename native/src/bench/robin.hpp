#pragma once

#include <pybind11/pybind11.h>

namespace mpips {

// Define RobinMap: tsl::robin_map<int64, uint32>, the map that RowMap is compared with.
void bind_robin(pybind11::module_& m);

}  // namespace mpips
