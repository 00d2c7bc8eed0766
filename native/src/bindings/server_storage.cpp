#include <memory>
#include <string>
#include <utility>

#include "bindings/server.hpp"

// Tables of which some rows lie in a file (server/row_storage.hpp).
namespace mpips {
namespace {

RowStorage& storage_of(const Server& server, std::uint16_t table) {
  RowStorage* storage = server.embedding(table).storage();
  if (storage == nullptr) throw py::value_error("the table has no storage");
  return *storage;
}

template <class T>
py::array read_only_view(const T* data, std::vector<py::ssize_t> shape, py::handle owner) {
  py::array_t<T> array(std::move(shape), data, owner);
  array.attr("setflags")(py::arg("write") = false);
  return std::move(array);
}

// Return keys and places of all rows, and the frames, without a copy.
py::tuple stored_arrays(const py::object& owner, std::uint16_t table) {
  const auto& server = owner.cast<const Server&>();
  RowStorage& storage = storage_of(server, table);
  const EmbeddingShard& shard = server.embedding(table);
  const auto n = static_cast<py::ssize_t>(shard.n_rows());
  const auto n_frames = static_cast<py::ssize_t>(storage.n_frames());
  const auto stride = static_cast<py::ssize_t>(shard.stride());
  return py::make_tuple(read_only_view(shard.keys(), {n}, owner),
                        read_only_view(storage.places(), {n}, owner),
                        read_only_view(shard.row(0), {n_frames, stride}, owner));
}

py::array_t<float> stored_rows(const Server& server, std::uint16_t table, std::uint64_t view,
                               const KeyArray& keys, const ArrayOf<std::uint32_t>& places) {
  const EmbeddingShard& shard = server.embedding(table);
  const RowStorage& storage = storage_of(server, table);
  if (keys.size() != places.size())
    throw py::value_error("keys and places must have one value for each row");
  const auto n = static_cast<py::ssize_t>(keys.size());
  FloatArray rows({n, static_cast<py::ssize_t>(shard.stride())});
  storage.read_slots(view, places.data(), keys.data(), static_cast<std::size_t>(n),
                     rows.mutable_data());
  return rows;
}

py::dict storage_counts(const Server& server, std::uint16_t table) {
  const RowStorage& storage = storage_of(server, table);
  py::dict d;
  d["cold"] = storage.n_in_file();
  d["promoted"] = storage.n_promoted();
  d["demoted"] = storage.n_demoted();
  d["file_bytes"] = storage.file_bytes();
  return d;
}

}  // namespace

void Server::set_storage(std::uint16_t table, const std::string& name, SharedMemory& places,
                         std::size_t most_frames, const std::string& folder,
                         const std::string& path) {
  EmbeddingShard& shard = embedding(table);
  if (shard.rule().python || shard.has_limits())
    throw py::value_error("a table with a rule in Python, or with limits of rows, has no storage");
  shard.set_storage(
      std::make_unique<RowStorage>(name, std::make_unique<SharedMemory>(std::move(places)),
                                   shard.stride(), most_frames, folder, path, !fresh_));
}

void bind_server_storage(py::class_<Server>& server) {
  server
      .def("set_storage", &Server::set_storage, py::arg("table"), py::arg("name"),
           py::arg("places"), py::arg("most_frames"), py::arg("folder"), py::arg("path"))
      .def("stored_arrays", &stored_arrays, py::arg("table"))
      .def(
          "begin_view", [](Server& s, std::uint16_t t) { return storage_of(s, t).begin_view(); },
          py::arg("table"))
      .def(
          "view", [](Server& s, std::uint16_t t) { return storage_of(s, t).view(); },
          py::arg("table"))
      .def(
          "end_view", [](Server& s, std::uint16_t t) { storage_of(s, t).end_view(); },
          py::arg("table"))
      .def("stored_rows", &stored_rows, py::arg("table"), py::arg("view"),
           py::arg("keys").noconvert(), py::arg("places").noconvert())
      .def("storage_counts", &storage_counts, py::arg("table"));
}

}  // namespace mpips
