#include "server/memory_layout.hpp"

#include <pybind11/stl.h>

#include "bindings/register.hpp"
#include "process/build.hpp"
#include "shm/memory_format.hpp"

namespace py = pybind11;

namespace mpips {

void register_memory_layout(py::module_& m) {
  m.attr("version") = version();
  m.attr("commit") = commit();
  m.attr("memory_format") = memory_format;
  m.def("memory_layout", [] {
    py::list entries;
    for (const LayoutEntry& entry : memory_layout())
      entries.append(py::make_tuple(entry.name, entry.offset, entry.bytes));
    return entries;
  });
}

}  // namespace mpips
