#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <string>

namespace mpips {

namespace py = pybind11;

// Arrays are taken as they are: a wrong dtype or a gap between rows is a TypeError, not a copy.
template <class T>
using Array = py::array_t<T, py::array::c_style>;
using Release = py::gil_scoped_release;

inline std::string shape_text(const py::array& array) {
  return py::str(array.attr("shape")).cast<std::string>();
}

template <class T>
void require_vector(const Array<T>& array, const char* name) {
  if (array.ndim() != 1)
    throw py::value_error(std::string(name) + " has shape " + shape_text(array) +
                          ", expected one dimension");
}

// Rows of any length, `n_rows` of them; returns their length.
inline std::size_t require_rows(const Array<float>& array, std::size_t n_rows, const char* name) {
  if (array.ndim() != 2 || static_cast<std::size_t>(array.shape(0)) != n_rows)
    throw py::value_error(std::string(name) + " has shape " + shape_text(array) + ", expected (" +
                          std::to_string(n_rows) + ", dim)");
  return static_cast<std::size_t>(array.shape(1));
}

template <class T>
std::size_t length(const Array<T>& vector) {
  return static_cast<std::size_t>(vector.shape(0));
}

// Partitioner and KeyPlan.
void bind_plans(py::module_& m);

}  // namespace mpips
