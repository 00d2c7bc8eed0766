#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "process/deadline.hpp"

namespace py = pybind11;

namespace mpips {

void register_process(py::module_& m) {
  py::class_<Deadline>(m, "Deadline")
      .def(py::init([](double seconds, std::string name, std::vector<std::string> command) {
             if (command.empty()) throw py::value_error("command must have at least one word");
             if (name.empty() || name.size() > 15)
               throw py::value_error("name = '" + name + "': must have 1 to 15 bytes");
             return std::make_unique<Deadline>(seconds, std::move(name), std::move(command));
           }),
           py::arg("seconds"), py::arg("name"), py::arg("command"))
      .def("cancel", &Deadline::cancel, WithoutGil());
}

}  // namespace mpips
