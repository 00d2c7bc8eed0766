#include "shm/fault.hpp"

#include "bindings/register.hpp"

namespace py = pybind11;

namespace mpips {

void register_fault(py::module_& m) {
  // An exception here fails the import of the module: its text is the ImportError's.
  fault::arm_from_environment();
  m.attr("HAS_FAULT_POINTS") = fault::built_in;
  m.attr("FAULTS") = fault::armed();
  m.def("arm_fault", &fault::arm, py::arg("text"));
  m.def("faults_passed", &fault::passed);
  m.def("fault_point", &fault::pass_named, py::arg("name"));
}

}  // namespace mpips
