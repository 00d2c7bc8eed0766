#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "bindings/server.hpp"
#include "ring/dense_view.hpp"
#include "server/look_up_port.hpp"

// Look-ups by processes outside the job: see server/look_up_port.hpp. Such a process maps memory
// of the job without the locks of SharedMemory, which would keep the next launch from taking it
// over, so it gives arrays here.
namespace mpips {
namespace {

constexpr const char* status_names[] = {"answered", "garbled", "refused", "late",
                                        "closed"};  // by LookUpStatus

LookUpSizes look_up_sizes(std::size_t n_slots, std::size_t n_keys, std::size_t rows_bytes,
                          const std::string& text) {
  constexpr std::size_t most = std::size_t{1} << 31;
  if (n_slots == 0 || n_slots > 1024 || n_keys == 0 || n_keys > most || rows_bytes > most)
    throw py::value_error("the sizes of the memory of look-ups are out of range");
  return {n_slots, n_keys, rows_bytes, text.size()};
}

void set_look_ups(Server& server, SharedMemory* memory, std::size_t n_slots, std::size_t n_keys,
                  std::size_t rows_bytes, const std::string& text) {
  if (memory == nullptr) return server.core().set_look_ups(nullptr);
  const LookUpSizes sizes = look_up_sizes(n_slots, n_keys, rows_bytes, text);
  if (memory->writable_bytes() < sizes.total())
    throw py::value_error("the memory of look-ups has " + std::to_string(memory->writable_bytes()) +
                          " bytes, needs " + std::to_string(sizes.total()));
  server.core().set_look_ups(std::make_unique<LookUpPort>(memory->data(), sizes, text));
}

std::unique_ptr<LookUpClient> look_up_client(ByteArray& memory, std::uint64_t seed) {
  require_vector(memory, "memory");
  return std::make_unique<LookUpClient>(memory.mutable_data(), length(memory), seed);
}

// Return (status, version, clock). `rows` and `has` are set if the status is "answered".
py::tuple ask(LookUpClient& client, std::uint32_t table, const KeyArray& keys, FloatArray& rows,
              ByteArray& has, double max_s) {
  require_vector(keys, "keys");
  const std::size_t n = length(keys), dim = require_rows(rows, n, "rows");
  const LookUpSizes& sizes = client.sizes();
  if (length(has) != n) throw py::value_error("has must have one byte per key");
  if (n > sizes.n_keys || n * dim * sizeof(float) > sizes.rows_bytes)
    throw py::value_error(std::to_string(n) + " keys with rows of " + std::to_string(dim) +
                          " floats: more than one request takes");
  const std::int64_t* of = keys.data();
  float* out = rows.mutable_data();
  std::uint8_t* marks = has.mutable_data();
  LookUpAnswer found;
  {
    const ReleaseGil release;
    found = client.ask(table, of, n, dim, out, marks, max_s);
  }
  return py::make_tuple(status_names[static_cast<std::size_t>(found.status)], found.version,
                        found.clock);
}

// Copy the values of a dense shard from a region; return false if a block kept changing for `max_s`
// seconds. The offsets are those of `Layout.dense_offsets`.
bool copy_dense_at(const ByteArray& region, std::size_t versions, std::size_t values,
                   FloatArray& out, double max_s) {
  require_vector(region, "region");
  require_vector(out, "out");
  const std::size_t n = length(out), bytes = length(region);
  if (versions % sizeof(PairWord) != 0 || values % sizeof(float) != 0 || versions > bytes ||
      Layout::n_blocks(n) > (bytes - versions) / sizeof(PairWord) || values > bytes ||
      n > (bytes - values) / sizeof(float))
    throw py::index_error("a dense shard of " + std::to_string(n) + " values at byte " +
                          std::to_string(values) + " of a region of " + std::to_string(bytes) +
                          " bytes: out of range");
  const auto* words = reinterpret_cast<const PairWord*>(region.data() + versions);
  const auto* from = reinterpret_cast<const float*>(region.data() + values);
  float* to = out.mutable_data();
  const ReleaseGil release;
  return copy_dense(words, from, 0, n, to, now_s() + max_s, true);
}

}  // namespace

void bind_server_look_ups(py::class_<Server>& server) {
  server.def("set_look_ups", &set_look_ups, py::arg("memory").none(true), py::arg("n_slots"),
             py::arg("n_keys"), py::arg("rows_bytes"), py::arg("text"), py::keep_alive<1, 2>());
}

void register_look_ups(py::module_& m) {
  m.def(
      "look_up_bytes",
      [](std::size_t n_slots, std::size_t n_keys, std::size_t rows_bytes, const std::string& text) {
        return look_up_sizes(n_slots, n_keys, rows_bytes, text).total();
      },
      py::arg("n_slots"), py::arg("n_keys"), py::arg("rows_bytes"), py::arg("text"));
  py::class_<LookUpClient>(m, "LookUpClient")
      .def(py::init(&look_up_client), py::arg("memory").noconvert(), py::arg("seed"),
           py::keep_alive<1, 2>())
      .def_property_readonly("text", [](const LookUpClient& c) { return py::bytes(c.text()); })
      .def_property_readonly("is_open", &LookUpClient::is_open)
      .def_property_readonly("n_keys", [](const LookUpClient& c) { return c.sizes().n_keys; })
      .def_property_readonly("rows_bytes",
                             [](const LookUpClient& c) { return c.sizes().rows_bytes; })
      .def("ask", &ask, py::arg("table"), py::arg("keys").noconvert(), py::arg("rows").noconvert(),
           py::arg("has").noconvert(), py::arg("max_s"));
  m.def("copy_dense_at", &copy_dense_at, py::arg("region").noconvert(), py::arg("versions"),
        py::arg("values"), py::arg("out").noconvert(), py::arg("max_s"));
}

}  // namespace mpips
