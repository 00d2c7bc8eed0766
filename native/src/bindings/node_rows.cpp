#include "reduction/node_rows.hpp"

#include <tuple>
#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "shm/shared_memory.hpp"

namespace mpips {
namespace {

// The rows that workers of a node share, together with the memory that they use.
struct BoundNodeRows {
  NodeRows rows;
  py::object memory;

  void check(std::size_t dim) const {
    if (dim == 0 || dim > rows.stride())
      throw py::value_error("rows of length " + std::to_string(dim) + ", expected 1 to " +
                            std::to_string(rows.stride()));
  }
};

std::unique_ptr<BoundNodeRows> make_node_rows(py::object memory, std::size_t n_bytes,
                                              std::size_t stride, std::size_t worker,
                                              std::size_t n_workers) {
  const auto& file = memory.cast<const SharedMemory&>();
  if (worker >= n_workers || stride == 0 || n_bytes > file.writable_bytes())
    throw py::value_error("memory, rows and workers do not fit together");
  return std::make_unique<BoundNodeRows>(
      BoundNodeRows{NodeRows(file.data(), n_bytes, stride, worker, n_workers), memory});
}

std::tuple<ByteArray, FloatArray, KeyArray, KeyArray> look_up(
    BoundNodeRows& b, std::uint64_t table, const KeyArray& keys, std::size_t dim,
    std::pair<std::int64_t, std::int64_t> usable, std::int64_t clock, std::int64_t claims_from,
    bool claims) {
  require_vector(keys, "keys");
  b.check(dim);
  if (clock < 0 || claims_from < 0 || usable.second < 0) throw py::value_error("clocks below 0");
  const py::ssize_t n = keys.shape(0);
  ByteArray states(n);
  FloatArray rows({n, static_cast<py::ssize_t>(dim)});
  KeyArray stamps(n), versions(n);
  const std::int64_t* from = keys.data();
  std::uint8_t* to_states = states.mutable_data();
  float* to_rows = rows.mutable_data();
  std::int64_t *to_stamps = stamps.mutable_data(), *to_versions = versions.mutable_data();
  {
    const ReleaseGil release;
    b.rows.look(table, {usable.first, usable.second, clock, claims_from}, claims, from,
                length(keys), dim, to_rows, to_stamps, to_versions, to_states);
  }
  return {states, rows, stamps, versions};
}

void publish_rows(BoundNodeRows& b, std::uint64_t table, std::int64_t stamp, const KeyArray& keys,
                  const FloatArray& rows, const KeyArray& versions) {
  require_vector(keys, "keys");
  require_vector(versions, "versions");
  const std::size_t dim = require_rows(rows, length(keys), "rows");
  b.check(dim);
  if (length(versions) != length(keys)) throw py::value_error("versions: one for each key");
  if (stamp < 0) throw py::value_error("a stamp below 0");
  const ReleaseGil release;
  b.rows.publish(table, stamp, keys.data(), length(keys), dim, rows.data(), versions.data());
}

}  // namespace

void register_node_rows(py::module_& m) {
  using B = BoundNodeRows;
  py::class_<B>(m, "NodeRows")
      .def(py::init(&make_node_rows), py::arg("memory"), py::arg("n_bytes"), py::arg("stride"),
           py::arg("worker"), py::arg("n_workers"))
      .def_property_readonly("n_slots", [](const B& b) { return b.rows.n_slots(); })
      .def("look", &look_up, py::arg("table"), py::arg("keys").noconvert(), py::arg("dim"),
           py::arg("usable"), py::arg("clock"), py::arg("claims_from"), py::arg("claims"))
      .def("publish", &publish_rows, py::arg("table"), py::arg("stamp"),
           py::arg("keys").noconvert(), py::arg("rows").noconvert(),
           py::arg("versions").noconvert());
}

}  // namespace mpips
