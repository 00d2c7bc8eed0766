#include "ring/common_view.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/names.hpp"
#include "bindings/register.hpp"
#include "shm/shared_memory.hpp"

namespace mpips {
namespace {

std::optional<std::pair<std::uint64_t, std::size_t>> read(const SharedMemory& memory,
                                                          const Layout& layout, std::uint32_t table,
                                                          std::optional<std::uint64_t> number,
                                                          FloatArray& copy, double max_s,
                                                          bool oversubscribed) {
  const DenseExtent& d = layout.extent(table);
  if (!d.has_common() || static_cast<std::uint64_t>(copy.size()) != d.n)
    throw py::value_error("copy has " + std::to_string(copy.size()) + " values, table " +
                          std::to_string(table) + " has a common copy of " +
                          std::to_string(d.has_common() ? d.n : 0));
  float* to = copy.mutable_data();
  CommonRead found;
  {
    const ReleaseGil release;
    found = read_common(memory.data(), d, number.has_value(), number.value_or(0), to,
                        now_s() + max_s, oversubscribed);
  }
  if (!found.done) return std::nullopt;
  return std::make_pair(found.number, found.bytes);
}

bool add_checked(const Codec& codec, const ByteArray& difference, FloatArray& copy) {
  if (!is_biased(codec.kind)) throw py::value_error("such a codec has no differences");
  require_vector(copy, "copy");
  const std::uint8_t* from = difference.data();
  float* to = copy.mutable_data();
  const std::size_t n = length(copy), bytes = length(difference);
  const ReleaseGil release;
  return add_difference(codec.kind, from, bytes, n, to);
}

}  // namespace

void register_common_view(py::module_& m) {
  m.def("read_common", &read, py::arg("memory"), py::arg("layout"), py::arg("table"),
        py::arg("number"), py::arg("copy").noconvert(), py::arg("max_s"),
        py::arg("oversubscribed"));
  m.def("add_difference", &add_checked, py::arg("codec"), py::arg("difference").noconvert(),
        py::arg("copy").noconvert());
}

}  // namespace mpips
