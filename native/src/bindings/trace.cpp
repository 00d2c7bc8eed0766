#include <pybind11/pybind11.h>

#include "bindings/register.hpp"
#include "trace/trace_ring.hpp"

namespace py = pybind11;

namespace mpips {

void register_trace(py::module_& m) {
  py::enum_<TraceKind>(m, "TraceKind")
      .value("push", TraceKind::push)
      .value("pull", TraceKind::pull)
      .value("wait", TraceKind::wait)
      .value("tick", TraceKind::tick)
      .value("snapshot", TraceKind::snapshot)
      .value("sent", TraceKind::sent)
      .value("apply", TraceKind::apply)
      .value("segment", TraceKind::segment)
      .value("answer", TraceKind::answer)
      .value("clock", TraceKind::clock)
      .value("taken", TraceKind::taken)
      .value("other", TraceKind::other);
  py::class_<TraceRing>(m, "TraceRing")
      .def(py::init([](std::size_t capacity) {
             if (capacity == 0) throw py::value_error("capacity = 0: must be 1 or more");
             return std::make_unique<TraceRing>(capacity);
           }),
           py::arg("capacity"))
      .def_static("now_ns", &TraceRing::now_ns)
      .def("add", &TraceRing::add, py::arg("kind"), py::arg("begin_ns"), py::arg("end_ns"),
           py::arg("sequence"), py::arg("clock"), py::arg("table"), py::arg("peer"))
      .def("clear", &TraceRing::clear)
      .def_property_readonly("written", &TraceRing::written)
      .def_property_readonly("capacity", &TraceRing::capacity)
      .def(
          "events",
          [](const TraceRing& ring) {
            const std::vector<TraceEvent> found = ring.events();
            return py::bytes(reinterpret_cast<const char*>(found.data()),
                             found.size() * sizeof(TraceEvent));
          },
          "Return the events that are still there as bytes, the oldest first.");
}

}  // namespace mpips
