#include "shm/shared_memory.hpp"

#include <pybind11/numpy.h>

#include <string>

#include "bindings/register.hpp"
#include "server/row_storage.hpp"

namespace py = pybind11;

namespace mpips {
namespace {

py::array memory_view(const py::object& owner, std::size_t offset, std::size_t bytes,
                      bool writable) {
  const auto& m = owner.cast<const SharedMemory&>();
  if (offset > m.size() || bytes > m.size() - offset)
    throw py::index_error("bytes " + std::to_string(offset) + " to " +
                          std::to_string(offset + bytes) + " of a memory of " +
                          std::to_string(m.size()) + " bytes: out of range");
  if (writable && offset + bytes > m.writable_bytes())
    throw py::value_error("this part of the shared memory is read-only here");
  py::array_t<std::uint8_t> view(static_cast<py::ssize_t>(bytes), m.data() + offset, owner);
  if (!writable)
    py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return view;
}

}  // namespace

void register_shared_memory(py::module_& m) {
  auto& error =
      py::register_exception<SharedMemoryError>(m, "SharedMemoryError", PyExc_RuntimeError);
  py::register_exception<SharedMemoryBusy>(m, "SharedMemoryBusy", error);
  auto& storage = py::register_exception<StorageError>(m, "StorageError", error);
  py::register_exception<StorageFull>(m, "StorageFull", storage);
  py::class_<SharedMemory>(m, "SharedMemory")
      .def_static("create", &SharedMemory::create, py::arg("name"), py::arg("n_bytes"),
                  py::arg("reserve"))
      .def_static("create_sparse", &SharedMemory::create_sparse, py::arg("name"),
                  py::arg("n_bytes"))
      .def_static("anonymous", &SharedMemory::anonymous, py::arg("n_bytes"), py::arg("reserve"),
                  py::arg("huge") = true)
      .def_static("attach", &SharedMemory::attach, py::arg("name"), py::arg("writable"))
      .def_static("reopen", &SharedMemory::reopen, py::arg("name"), py::arg("reserve"))
      .def_static("remove_if_unused", &SharedMemory::remove_if_unused, py::arg("name"))
      .def_property_readonly("name", &SharedMemory::name)
      .def_property_readonly("n_bytes", &SharedMemory::size)
      .def_property_readonly(
          "address",
          [](const SharedMemory& s) { return reinterpret_cast<std::uintptr_t>(s.data()); })
      .def("grow", &SharedMemory::grow, py::arg("n_bytes"))
      .def("commit", &SharedMemory::commit, py::arg("offset"), py::arg("n_bytes"))
      .def("unlink", &SharedMemory::unlink)
      .def("keep", &SharedMemory::keep)
      .def("view", &memory_view, py::arg("offset"), py::arg("n_bytes"), py::arg("writable"));
}

}  // namespace mpips
