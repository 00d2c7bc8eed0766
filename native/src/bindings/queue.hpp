#pragma once

#include <pybind11/pybind11.h>

namespace mpips {

void register_queue(pybind11::module_& m);

}  // namespace mpips
