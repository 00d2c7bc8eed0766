#pragma once

#include <pybind11/pybind11.h>

#include "ring/ring_writer.hpp"

namespace mpips {

// Define RingWriter.push_planned and RingWriter.pull_planned.
void bind_planned_rows(pybind11::class_<RingWriter>& writer);

}  // namespace mpips
