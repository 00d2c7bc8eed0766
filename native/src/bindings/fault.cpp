#include "shm/fault.hpp"

#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#include "bindings/register.hpp"

// Whether this version of pybind11 lets fault points switch between greenlets; see CMakeLists.txt.
#ifndef MPIPS_SWITCHES
#define MPIPS_SWITCHES 0
#endif

namespace py = pybind11;

namespace mpips {

#if MPIPS_SWITCHES
// pybind11 keeps the calls of a thread that are under way as a stack, whose top is private. Calls
// of several greenlets do not end in the opposite order of their begin, so each has a stack of its
// own.
using Calls = py::detail::loader_life_support*& (*)();
Calls calls();
template <Calls function>
struct Reveal {
  friend Calls calls() { return function; }
};
template struct Reveal<&py::detail::loader_life_support::tls_current_frame>;
#endif

namespace {

// The Python function that `call_hook` calls. Never destroyed: Python may be gone by then.
py::object& hook_function() {
  static auto* function = new py::object;
  return *function;
}

// Called at a fault point, with or without the GIL. The function may switch to another greenlet,
// which uses the same thread state, and may never return.
void call_hook(const char* name) {
  const py::gil_scoped_acquire gil;
  try {
#if MPIPS_SWITCHES
    auto& top = calls()();
    auto* const own = top;
    top = nullptr;
    hook_function()(name);
    top = own;
#else
    hook_function()(name);
#endif
  } catch (py::error_already_set& error) {
    // Native code between here and Python cannot be left by an exception.
    error.restore();
    PyErr_Print();
    std::abort();
  }
}

}  // namespace

void register_fault(py::module_& m) {
  // An exception here fails the import of the module: its text is the ImportError's.
  fault::arm_from_environment();
  m.attr("HAS_FAULT_POINTS") = fault::built_in;
  m.attr("FAULTS") = fault::armed();
  m.def("arm_fault", &fault::arm, py::arg("text"));
  m.def(
      "arm_fault_hook",
      [](const py::object& function, std::uint64_t first) {
        if (!MPIPS_SWITCHES && !function.is_none())
          throw std::runtime_error("a hook at fault points needs another version of pybind11");
        hook_function() = function;
        fault::arm_hook(function.is_none() ? nullptr : call_hook, first);
      },
      py::arg("function"), py::arg("first"));
  m.def("fault_hook_after", &fault::hook_after, py::arg("passages"));
  m.def("faults_passed", &fault::passed);
  m.def("fault_point", &fault::pass_named, py::arg("name"));
}

}  // namespace mpips
