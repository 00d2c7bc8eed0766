#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>

// The array types that bindings take: contiguous, of exactly this dtype, never converted.
namespace mpips {

namespace py = pybind11;

// Arrays are taken as they are: a wrong dtype or a gap between rows is a TypeError, not a copy.
template <class T>
using ArrayOf = py::array_t<T, py::array::c_style>;
using FloatArray = ArrayOf<float>;
using KeyArray = ArrayOf<std::int64_t>;
using WordArray = ArrayOf<std::uint64_t>;
using ByteArray = ArrayOf<std::uint8_t>;

using ReleaseGil = py::gil_scoped_release;

inline std::string shape_text(const py::array& array) {
  return py::str(array.attr("shape")).cast<std::string>();
}

template <class T>
void require_vector(const ArrayOf<T>& array, const char* name) {
  if (array.ndim() != 1)
    throw py::value_error(std::string(name) + " has shape " + shape_text(array) +
                          ", expected one dimension");
}

// Rows of any length, `n_rows` of them; returns their length.
inline std::size_t require_rows(const ArrayOf<float>& array, std::size_t n_rows, const char* name) {
  if (array.ndim() != 2 || static_cast<std::size_t>(array.shape(0)) != n_rows)
    throw py::value_error(std::string(name) + " has shape " + shape_text(array) + ", expected (" +
                          std::to_string(n_rows) + ", dim)");
  return static_cast<std::size_t>(array.shape(1));
}

template <class T>
std::size_t length(const ArrayOf<T>& vector) {
  return static_cast<std::size_t>(vector.shape(0));
}

// Floats per key of an array of rows that belongs to `keys`.
inline std::size_t row_length(const KeyArray& keys, const FloatArray& rows) {
  if (rows.ndim() != 2 || rows.shape(0) != keys.size() || rows.shape(1) < 1)
    throw pybind11::value_error("rows must have shape (number of keys, dim)");
  return static_cast<std::size_t>(rows.shape(1));
}

}  // namespace mpips
