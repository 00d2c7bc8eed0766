#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// The array types that bindings take.
namespace mpips {

namespace py = pybind11;

// Arrays are contiguous, of exactly this dtype, and never converted or copied: else TypeError.
template <class T>
using ArrayOf = py::array_t<T, py::array::c_style>;
using FloatArray = ArrayOf<float>;
using KeyArray = ArrayOf<std::int64_t>;
using WordArray = ArrayOf<std::uint64_t>;
using ByteArray = ArrayOf<std::uint8_t>;

using ReleaseGil = py::gil_scoped_release;
using WithoutGil = py::call_guard<ReleaseGil>;

inline std::string shape_text(const py::array& array) {
  return py::str(array.attr("shape")).cast<std::string>();
}

template <class T>
void require_vector(const ArrayOf<T>& array, const char* name) {
  if (array.ndim() != 1)
    throw py::value_error(std::string(name) + " has shape " + shape_text(array) +
                          ", expected one dimension");
}

// Check that `array` is two-dimensional with `n_rows` rows; return the length of a row.
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

// Hand a vector's memory to a NumPy array without copying it.
template <class T>
py::array_t<T> to_array(std::vector<T>&& from) {
  auto owner = std::make_unique<std::vector<T>>(std::move(from));
  const auto size = static_cast<py::ssize_t>(owner->size());
  T* const first = owner->data();
  py::capsule release(owner.get(), [](void* held) { delete static_cast<std::vector<T>*>(held); });
  owner.release();
  return py::array_t<T>(size, first, release);
}

// Check that `rows` has one row per key; return the floats per row.
inline std::size_t row_length(const KeyArray& keys, const FloatArray& rows) {
  if (rows.ndim() != 2 || rows.shape(0) != keys.size() || rows.shape(1) < 1)
    throw pybind11::value_error("rows has shape " + shape_text(rows) + ", expected (" +
                                std::to_string(keys.size()) + ", dim)");
  return static_cast<std::size_t>(rows.shape(1));
}

}  // namespace mpips
