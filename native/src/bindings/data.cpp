#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "data/libsvm.hpp"

namespace py = pybind11;

namespace mpips {
namespace {

py::tuple parse_libsvm(const py::buffer& text, std::int64_t stride, std::int64_t offset, int base,
                       bool mixed, std::int64_t first) {
  const py::buffer_info info = text.request();
  if (info.itemsize != 1 || info.ndim != 1 || (info.size > 1 && info.strides[0] != 1))
    throw py::value_error("text must be a contiguous buffer of bytes");
  if (stride < 1 || offset < 0 || offset >= stride)
    throw py::value_error("stride and offset must satisfy 0 <= offset < stride");
  if (first < 0) throw py::value_error("first must be 0 or more");
  if (base != 0 && base != 1 && base != data::kAutoBase)
    throw py::value_error("base must be 0, 1 or -1 (decide from the smallest index)");
  data::LibsvmPart part;
  {
    py::gil_scoped_release release;
    part =
        data::parse_libsvm(static_cast<const char*>(info.ptr), static_cast<std::size_t>(info.size),
                           {stride, offset, base, mixed, first});
  }
  return py::make_tuple(to_array(std::move(part.labels)), to_array(std::move(part.indptr)),
                        to_array(std::move(part.indices)), to_array(std::move(part.values)),
                        part.n_samples, part.min_index, part.max_index, part.base);
}

}  // namespace

void register_data(py::module_& m) {
  py::register_exception<data::LibsvmError>(m, "LibsvmError", PyExc_ValueError);
  m.def("parse_libsvm", &parse_libsvm, py::arg("text"), py::arg("stride"), py::arg("offset"),
        py::arg("base"), py::arg("mixed") = false, py::arg("first") = 0,
        "Parse LIBSVM text into (labels float64, indptr int64, indices int64, values float32,\n"
        "n_samples, min_index, max_index, base). Only samples with i % stride == offset are\n"
        "returned, or with `mixed` those that mpips/data/shares.py gives to worker `offset` of\n"
        "`stride`; samples are numbered from `first`. The last four values describe the whole\n"
        "text. Releases the GIL. Raises LibsvmError.");
}

}  // namespace mpips
