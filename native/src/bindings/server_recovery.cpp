#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "bindings/server.hpp"

// What survives the process of a server: its journal, and the state in which each worker continues.
namespace mpips {
namespace {

py::dict position_dict(Server& server, std::size_t worker) {
  const Position& at = server.core().position(worker);
  py::dict d;
  d["sequence"] = at.sequence;
  d["applied"] = server.core().applied(worker);
  d["clock"] = at.clock;
  d["finished"] = at.finished;
  d["taken"] = at.taken;
  d["pushes"] = at.pushes;
  d["tag"] = at.tag;
  d["ended"] = at.ended;
  py::list texts;
  for (const std::string& text : at.texts)
    if (!text.empty()) texts.append(py::bytes(text));
  d["texts"] = texts;
  return d;
}

}  // namespace

void Server::use_journal(SharedMemory& memory, bool fresh) {
  fresh_ = fresh;
  core_.set_journal(std::make_unique<Journal>(memory, layout_.n_workers(), layout_.n_tables(),
                                              layout_.geometry().payload_capacity()));
}

void bind_server_recovery(py::class_<Server>& server) {
  server
      .def("use_journal", &Server::use_journal, py::arg("memory"), py::arg("fresh"),
           py::keep_alive<1, 2>())
      .def("set_buffers", &Server::set_buffers, py::arg("table"), py::arg("memory"),
           py::keep_alive<1, 3>())
      .def("begin_journal", [](Server& s) { s.core().begin_journal(); })
      .def("attach", [](Server& s) { s.core().attach(); })
      .def("old_staging", [](Server& s) { return s.core().old_staging(); })
      .def(
          "set_old_staging",
          [](Server& s, std::size_t worker, std::uint32_t generation, const SharedMemory& memory) {
            s.core().set_old_staging(worker, generation, {memory.data(), memory.size()});
          },
          py::arg("worker"), py::arg("generation"), py::arg("memory"), py::keep_alive<1, 4>())
      .def("finish_operation", [](Server& s) { s.core().finish_operation(); })
      .def("position", &position_dict, py::arg("worker"))
      .def(
          "drop_repeated",
          [](Server& s, std::size_t worker, std::uint64_t clock) {
            s.core().drop_repeated(worker, clock);
          },
          py::arg("worker"), py::arg("clock"));
}

}  // namespace mpips
