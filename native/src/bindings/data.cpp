#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cerrno>
#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "data/csv.hpp"
#include "data/libsvm.hpp"
#include "data/parts.hpp"

namespace py = pybind11;

namespace mpips {
namespace {

// Return the bytes of `text`, and check that [begin, end) lies in them.
py::buffer_info bytes_of(const py::buffer& text, std::size_t begin, std::size_t end) {
  py::buffer_info info = text.request();
  if (info.itemsize != 1 || info.ndim != 1 || (info.size > 1 && info.strides[0] != 1))
    throw py::value_error("text must be a contiguous buffer of bytes");
  if (begin > end || end > static_cast<std::size_t>(info.size))
    throw py::value_error("begin and end must satisfy 0 <= begin <= end <= length");
  return info;
}

const char* chars(const py::buffer_info& info) { return static_cast<const char*>(info.ptr); }

py::tuple scan_csv(const py::buffer& text, std::size_t begin, std::size_t end, char delimiter,
                   bool quoted) {
  const py::buffer_info info = bytes_of(text, begin, end);
  const auto length = static_cast<std::size_t>(info.size);
  data::CsvScan found;
  {
    py::gil_scoped_release release;
    found = data::scan_csv(chars(info), length, begin, end, delimiter, quoted);
  }
  return py::make_tuple(found.quoted, found.wrong);
}

std::size_t csv_shift(const py::buffer& text, std::size_t at) {
  const py::buffer_info info = bytes_of(text, at, at);
  return data::csv_shift(chars(info), static_cast<std::size_t>(info.size), at);
}

std::size_t csv_record_end(const py::buffer& text, std::size_t at, char delimiter, bool quoted) {
  const py::buffer_info info = bytes_of(text, at, at);
  const auto length = static_cast<std::size_t>(info.size);
  py::gil_scoped_release release;
  return data::csv_record_end(chars(info), length, at, delimiter, quoted);
}

std::size_t csv_last_end(const py::buffer& text, std::size_t begin, char delimiter) {
  const py::buffer_info info = bytes_of(text, begin, begin);
  const auto length = static_cast<std::size_t>(info.size);
  py::gil_scoped_release release;
  return data::csv_last_end(chars(info), length, begin, delimiter);
}

// Fill `out` with parts of files; `parts` has shape (n, 4): the members of FilePart.
void read_parts(const py::array_t<std::int64_t, py::array::c_style>& parts,
                py::array_t<std::uint8_t, py::array::c_style>& out) {
  static_assert(sizeof(data::FilePart) == 4 * sizeof(std::int64_t));
  if (parts.ndim() != 2 || parts.shape(1) != 4 || out.ndim() != 1)
    throw py::value_error("parts must have shape (n, 4) and out (n_bytes,)");
  const auto* const all = reinterpret_cast<const data::FilePart*>(parts.data());
  const auto n = static_cast<std::size_t>(parts.shape(0));
  for (std::size_t i = 0; i < n; ++i) {
    const data::FilePart& part = all[i];
    if (part.file < 0 || part.offset < 0 || part.length < 0 || part.place < 0 ||
        part.place > out.size() || part.length > out.size() - part.place)
      throw py::value_error("a part does not lie in out");
  }
  char* const to = reinterpret_cast<char*>(out.mutable_data());
  int error = 0;
  std::size_t done = 0;
  {
    py::gil_scoped_release release;
    done = data::read_parts(all, n, to, error);
  }
  if (done == n) return;
  if (error == 0) throw py::value_error("is shorter than when the job began");
  errno = error;
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

py::array_t<double> signed_log(const py::array_t<double, py::array::c_style>& values) {
  if (values.ndim() != 1) throw py::value_error("values must have shape (n,)");
  py::array_t<double> out(values.size());
  const double* const from = values.data();
  double* const to = out.mutable_data();
  const auto n = static_cast<std::size_t>(values.size());
  {
    py::gil_scoped_release release;
    data::signed_log(from, to, n);
  }
  return out;
}

py::tuple parse_libsvm(const py::buffer& text, std::int64_t stride, std::int64_t offset, int base,
                       bool mixed, std::int64_t first, bool several) {
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
                           {stride, offset, base, mixed, first, several});
  }
  return py::make_tuple(to_array(std::move(part.labels)), to_array(std::move(part.indptr)),
                        to_array(std::move(part.indices)), to_array(std::move(part.values)),
                        part.n_samples, part.min_index, part.max_index, part.base,
                        to_array(std::move(part.fields)));
}

}  // namespace

void register_data(py::module_& m) {
  py::register_exception<data::LibsvmError>(m, "LibsvmError", PyExc_ValueError);
  m.def("parse_libsvm", &parse_libsvm, py::arg("text"), py::arg("stride"), py::arg("offset"),
        py::arg("base"), py::arg("mixed") = false, py::arg("first") = 0, py::arg("several") = false,
        "Parse LIBSVM text into (labels float64, indptr int64, indices int64, values float32,\n"
        "n_samples, min_index, max_index, base, fields int32). Only samples with i % stride == "
        "offset are\n"
        "returned, or with `mixed` those that mpips/data/shares.py gives to worker `offset` of\n"
        "`stride`; samples are numbered from `first`. The last values but fields describe the\n"
        "whole text. `several`: a sample has any number of labels, such as 1,3,7; each becomes an\n"
        "entry, whose field is 1. Else fields is empty. Releases the GIL. Raises LibsvmError.");
  m.def("scan_csv", &scan_csv, py::arg("text"), py::arg("begin"), py::arg("end"),
        py::arg("delimiter"), py::arg("quoted"),
        "Follow the quotes of text[begin:end]; `quoted`: begin is inside a quoted cell. Return\n"
        "(end is inside one, place of a quote that no delimiter follows or -1). Releases the GIL.");
  m.def("csv_shift", &csv_shift, py::arg("text"), py::arg("at"),
        "Return the first place at or after `at` that does not follow a quote.");
  m.def("csv_record_end", &csv_record_end, py::arg("text"), py::arg("at"), py::arg("delimiter"),
        py::arg("quoted"),
        "Return the place behind the end of the record that contains `at`, or len(text). Releases\n"
        "the GIL.");
  m.def("csv_last_end", &csv_last_end, py::arg("text"), py::arg("begin"), py::arg("delimiter"),
        "Return the place behind the last complete record after `begin`, or `begin`. Releases the\n"
        "GIL.");
  m.def("read_parts", &read_parts, py::arg("parts").noconvert(), py::arg("out").noconvert(),
        "Fill `out`, uint8, with parts of open files. `parts`: int64, shape (n, 4): descriptor,\n"
        "offset in the file, length, place in `out`. Releases the GIL. Raises OSError, and\n"
        "ValueError for a file that is too short.");
  m.def("signed_log", &signed_log, py::arg("values").noconvert(),
        "Return sign(v) log(1 + |v|) of each value, float64, shape (n,). Releases the GIL.");
}

}  // namespace mpips
