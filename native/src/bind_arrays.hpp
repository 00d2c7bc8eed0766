#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

// The array types that bindings take: contiguous, of exactly this dtype, never converted.
namespace mpips {

using FloatArray = pybind11::array_t<float, pybind11::array::c_style>;
using KeyArray = pybind11::array_t<std::int64_t, pybind11::array::c_style>;
using WordArray = pybind11::array_t<std::uint64_t, pybind11::array::c_style>;
using ByteArray = pybind11::array_t<std::uint8_t, pybind11::array::c_style>;

// Floats per key of an array of rows that belongs to `keys`.
inline std::size_t row_length(const KeyArray& keys, const FloatArray& rows) {
  if (rows.ndim() != 2 || rows.shape(0) != keys.size() || rows.shape(1) < 1)
    throw pybind11::value_error("rows must have shape (number of keys, dim)");
  return static_cast<std::size_t>(rows.shape(1));
}

}  // namespace mpips
