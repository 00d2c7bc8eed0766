#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <optional>

#include "bindings/arrays.hpp"
#include "ring/ring_writer.hpp"

namespace mpips {

// Return the base values of an update, of the same shape; null if there are none.
inline const float* base_or_null(const std::optional<FloatArray>& base, const FloatArray& update) {
  if (!base) return nullptr;
  if (base->size() != update.size())
    throw py::value_error("base has shape " + shape_text(*base) +
                          ", expected that of the update, " + shape_text(update));
  return base->data();
}

// Define the methods of RingWriter that push to dense tables.
void bind_dense_pushes(py::class_<RingWriter>& writer);
// Define the methods of RingWriter that push and pull rows of embedding tables.
void bind_rows(py::class_<RingWriter>& writer);

}  // namespace mpips
