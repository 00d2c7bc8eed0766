#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bindings/server.hpp"

// The content of a server's shards: values, optimizer state and rows, as arrays of Python.
namespace mpips {
namespace {

template <class T>
py::array read_only(const T* data, std::vector<py::ssize_t> shape, py::handle owner) {
  py::array_t<T> array(std::move(shape), data, owner);
  array.attr("setflags")(py::arg("write") = false);
  return std::move(array);
}

void require_shard_size(const FloatArray& values, const DenseShard& shard) {
  if (static_cast<std::size_t>(values.size()) != shard.size())
    throw py::value_error("values has " + std::to_string(values.size()) + " values, expected " +
                          std::to_string(shard.size()));
}

void initialize_dense(const Server& server, std::uint16_t table, const Initializer& init,
                      std::uint64_t first) {
  DenseShard& shard = server.dense(table);
  py::gil_scoped_release release;
  initialize_range(init, first, shard.values(), shard.size());
  shard.refresh_image();
}

void set_dense(const Server& server, std::uint16_t table, const FloatArray& values) {
  DenseShard& shard = server.dense(table);
  require_shard_size(values, shard);
  std::copy_n(values.data(), shard.size(), shard.values());
  shard.refresh_image();
}

py::array_t<float> dense_values(const Server& server, std::uint16_t table) {
  const DenseShard& shard = server.dense(table);
  py::array_t<float> copy(static_cast<py::ssize_t>(shard.size()));
  std::copy_n(shard.values(), shard.size(), copy.mutable_data());
  return copy;
}

// Return arrays without a copy; they keep `owner`, the server, and so the memory, alive. Rows are
// as they are stored, in floats of 32 bits.
py::array dense_array(const py::object& owner, std::uint16_t table, std::size_t slot) {
  const auto& server = owner.cast<const Server&>();
  const DenseShard& shard = server.dense(table);
  if (slot > shard.n_state()) throw py::index_error("the rule has no such state");
  const float* data = slot == 0 ? shard.values() : shard.state(slot - 1);
  return read_only(data, {static_cast<py::ssize_t>(shard.size())}, owner);
}

py::tuple embedding_arrays(const py::object& owner, std::uint16_t table) {
  auto& server = owner.cast<Server&>();
  server.core().settle_rows();
  const EmbeddingShard& shard = server.embedding(table);
  if (shard.storage() != nullptr)
    throw py::value_error("the table has storage: read it with stored_arrays");
  const auto n = static_cast<py::ssize_t>(shard.n_rows());
  const auto stride = static_cast<py::ssize_t>(shard.stride());
  return py::make_tuple(read_only(shard.keys(), {n}, owner),
                        read_only(shard.row(0), {n, stride}, owner));
}

// Return all rows, sorted by key.
py::tuple embedding_rows(Server& server, std::uint16_t table) {
  server.core().settle_rows();
  const EmbeddingShard& shard = server.embedding(table);
  const std::size_t n = shard.n_rows(), dim = shard.dim();
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return shard.keys()[a] < shard.keys()[b]; });
  KeyArray keys(static_cast<py::ssize_t>(n));
  FloatArray rows({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(dim)});
  for (std::size_t i = 0; i < n; ++i) {
    keys.mutable_data()[i] = shard.keys()[order[i]];
    shard.read(order[i], 0, dim, rows.mutable_data() + i * dim);
  }
  return py::make_tuple(keys, rows);
}

py::array_t<float> dense_state(const Server& server, std::uint16_t table, std::size_t slot) {
  const DenseShard& shard = server.dense(table);
  if (slot >= shard.n_state()) throw py::index_error("the rule has no such state");
  py::array_t<float> copy(static_cast<py::ssize_t>(shard.size()));
  std::copy_n(shard.state(slot), shard.size(), copy.mutable_data());
  return copy;
}

void set_dense_state(const Server& server, std::uint16_t table, std::size_t slot,
                     const FloatArray& values) {
  DenseShard& shard = server.dense(table);
  if (slot >= shard.n_state()) throw py::index_error("the rule has no such state");
  require_shard_size(values, shard);
  std::copy_n(values.data(), shard.size(), shard.state(slot));
}

// Return keys with the content of their rows (values, states, count), in no particular order.
py::tuple embedding_content(Server& server, std::uint16_t table) {
  server.core().settle_rows();
  const EmbeddingShard& shard = server.embedding(table);
  const std::size_t n = shard.n_rows(), n_floats = shard.content_floats();
  KeyArray keys(static_cast<py::ssize_t>(n));
  FloatArray rows({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(n_floats)});
  std::copy_n(shard.keys(), n, keys.mutable_data());
  for (std::size_t i = 0; i < n; ++i)
    shard.read(i, 0, n_floats, rows.mutable_data() + i * n_floats);
  return py::make_tuple(keys, rows);
}

// Return the last clock and the number of clocks of each row, shape (n, 2), without a copy; in the
// order of `embedding_arrays`, which must be called first.
py::array embedding_uses(const py::object& owner, std::uint16_t table) {
  const EmbeddingShard& shard = owner.cast<const Server&>().embedding(table);
  if (!shard.has_uses()) throw py::value_error("the table evicts no rows, so it notes no uses");
  return read_only(shard.uses(), {static_cast<py::ssize_t>(shard.n_rows()), 2}, owner);
}

void set_uses(const Server& server, std::uint16_t table, const KeyArray& keys,
              const ArrayOf<std::uint32_t>& last, const ArrayOf<std::uint32_t>& count) {
  EmbeddingShard& shard = server.embedding(table);
  if (!shard.has_uses()) throw py::value_error("the table evicts no rows, so it notes no uses");
  if (last.size() != keys.size() || count.size() != keys.size())
    throw py::value_error("last and count must have one value for each key");
  shard.set_uses(keys.data(), static_cast<std::size_t>(keys.size()), last.data(), count.data());
}

void load_rows(const Server& server, std::uint16_t table, const KeyArray& keys,
               const FloatArray& rows) {
  EmbeddingShard& shard = server.embedding(table);
  if (row_length(keys, rows) != shard.content_floats())
    throw py::value_error("rows must have shape (number of keys, values + states + count)");
  py::gil_scoped_release release;
  shard.load(keys.data(), static_cast<std::size_t>(keys.size()), rows.data());
}

void set_rows(const Server& server, std::uint16_t table, const KeyArray& keys,
              const FloatArray& values) {
  EmbeddingShard& shard = server.embedding(table);
  if (row_length(keys, values) != shard.dim())
    throw py::value_error("values must have shape (number of keys, dim)");
  py::gil_scoped_release release;
  shard.set(keys.data(), static_cast<std::size_t>(keys.size()), values.data());
}

}  // namespace

void bind_server_content(py::class_<Server>& server) {
  server
      .def("initialize_dense", &initialize_dense, py::arg("table"), py::arg("initializer"),
           py::arg("first"))
      .def("set_dense", &set_dense, py::arg("table"), py::arg("values").noconvert())
      .def("dense_array", &dense_array, py::arg("table"), py::arg("slot"))
      .def("embedding_arrays", &embedding_arrays, py::arg("table"))
      .def("embedding_uses", &embedding_uses, py::arg("table"))
      .def("set_uses", &set_uses, py::arg("table"), py::arg("keys").noconvert(),
           py::arg("last").noconvert(), py::arg("count").noconvert())
      .def("dense_values", &dense_values, py::arg("table"))
      .def("embedding_rows", &embedding_rows, py::arg("table"))
      .def("dense_state", &dense_state, py::arg("table"), py::arg("slot"))
      .def("set_dense_state", &set_dense_state, py::arg("table"), py::arg("slot"),
           py::arg("values").noconvert())
      .def("embedding_content", &embedding_content, py::arg("table"))
      .def("load_rows", &load_rows, py::arg("table"), py::arg("keys").noconvert(),
           py::arg("rows").noconvert())
      .def(
          "set_clocks_before", [](Server& s, std::uint64_t n) { s.core().set_clocks_before(n); },
          py::arg("n"))
      .def("set_rows", &set_rows, py::arg("table"), py::arg("keys").noconvert(),
           py::arg("values").noconvert())
      .def(
          "n_rows", [](Server& s, std::uint16_t t) { return s.embedding(t).n_rows(); },
          py::arg("table"))
      .def(
          "memory_bytes", [](Server& s, std::uint16_t t) { return s.embedding(t).memory_bytes(); },
          py::arg("table"));
}

}  // namespace mpips
