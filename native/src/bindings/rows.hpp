#pragma once

#include <pybind11/pybind11.h>

#include "ring/ring_writer.hpp"

namespace mpips {

// RingWriter.push_planned and pull_planned.
void bind_planned_rows(pybind11::class_<RingWriter>& writer);

}  // namespace mpips
