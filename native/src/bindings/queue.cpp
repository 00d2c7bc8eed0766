#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/register.hpp"
#include "queue/queue_server.hpp"
#include "queue/queue_watch.hpp"

namespace py = pybind11;

namespace mpips {
namespace {

using FieldTuple = std::tuple<std::string, std::uint32_t, std::vector<std::uint64_t>>;

QueueServer make(const std::string& name, std::uint64_t number,
                 const std::vector<FieldTuple>& fields, std::uint64_t n_slots,
                 std::uint64_t n_steer, std::uint64_t declaration, bool check_finite,
                 std::uint64_t produced, std::uint64_t worker) {
  std::vector<QueueServer::Field> list;
  for (const auto& [field, type, shape] : fields) list.push_back({field, type, shape});
  const py::gil_scoped_release release;  // the worker may have to wait for a killed one
  return {name, number, list, n_slots, n_steer, declaration, check_finite, produced, worker};
}

// Return the bytes of the slot of a sample, which the queue's memory must outlive.
py::array slot_view(const py::object& owner, std::uint64_t number) {
  const auto& queue = owner.cast<const QueueServer&>();
  py::array_t<std::uint8_t> view(static_cast<py::ssize_t>(queue.slot_bytes()), queue.sample(number),
                                 owner);
  py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return view;
}

void publish_values(QueueServer& queue, const py::array_t<float, py::array::c_style>& values) {
  if (static_cast<std::uint64_t>(values.size()) != queue.n_steer())
    throw py::value_error(std::to_string(values.size()) + " values, the queue has room for " +
                          std::to_string(queue.n_steer()));
  const float* data = values.data();
  const py::gil_scoped_release release;
  queue.publish(data);
}

// is_served, is_attached, is_closed, written, replacements
using WatchedState = std::tuple<bool, bool, bool, std::uint64_t, std::uint64_t>;

std::optional<WatchedState> look(QueueWatch& watch) {
  if (!watch.look()) return std::nullopt;
  // A program that has ended the producer writes no sample after that: read `closed` first.
  const bool is_closed = watch.is_closed();
  return WatchedState{watch.is_served(), watch.is_attached(), is_closed, watch.written(),
                      watch.replacements()};
}

}  // namespace

void register_queue(py::module_& m) {
  py::class_<QueueWatch>(m, "QueueWatch")
      .def(py::init<const std::string&, std::uint64_t>(), py::arg("name"), py::arg("number"))
      .def("look", &look)
      .def("close_producer", &QueueWatch::close_producer);
  py::class_<QueueServer>(m, "QueueServer")
      .def(py::init(&make), py::arg("name"), py::arg("number"), py::arg("fields"),
           py::arg("n_slots"), py::arg("n_steer"), py::arg("declaration"), py::arg("check_finite"),
           py::arg("produced"), py::arg("worker"))
      .def_property_readonly("is_continued", &QueueServer::is_continued)
      .def_property_readonly("written", &QueueServer::written)
      .def_property_readonly("taken", &QueueServer::taken)
      .def_property_readonly("is_closed", &QueueServer::is_closed)
      .def_property_readonly("is_attached", &QueueServer::is_attached)
      .def_property_readonly("program_pid", &QueueServer::program_pid)
      .def("offset", &QueueServer::offset, py::arg("field"))
      .def("slot", &slot_view, py::arg("number"))
      .def("take", &QueueServer::take, py::arg("number"))
      .def("note_push", &QueueServer::note_push, py::arg("clock"))
      .def("has_pushed_in", &QueueServer::has_pushed_in, py::arg("clock"))
      .def("publish", &publish_values, py::arg("values").noconvert())
      .def("end", &QueueServer::end)
      .def("touch", &QueueServer::touch)
      .def("unlink", &QueueServer::unlink)
      .def_static("remove_if_unused", &QueueFile::remove_if_unused, py::arg("path"));
}

}  // namespace mpips
