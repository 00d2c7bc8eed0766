#include <pybind11/stl.h>

#include "bindings/ring.hpp"

namespace mpips {
namespace {

// The keys of one server in a plan, checked against the rows of the whole batch.
struct Group {
  const std::int64_t* keys;
  std::size_t n, dim, from;
};

Group group_of(const KeyPlan& plan, std::size_t server, const FloatArray& rows) {
  if (server >= plan.n_servers())
    throw py::index_error("server " + std::to_string(server) + ": no such server in a plan for " +
                          std::to_string(plan.n_servers()));
  if (rows.ndim() != 2 || static_cast<std::size_t>(rows.shape(0)) != plan.size() ||
      rows.shape(1) < 1)
    throw py::value_error("rows has shape " + shape_text(rows) + ", expected (" +
                          std::to_string(plan.size()) + " keys of the batch, dim)");
  const std::size_t from = plan.group_start(server);
  return {plan.unique_keys() + from, plan.group_start(server + 1) - from,
          static_cast<std::size_t>(rows.shape(1)), from};
}

std::size_t push_planned(RingWriter& writer, std::uint16_t table, std::uint64_t clock,
                         const KeyPlan& plan, std::size_t server, const FloatArray& rows,
                         const std::optional<FloatArray>& base, std::size_t done,
                         const Codec* codec, std::uint64_t random_key) {
  const Group g = group_of(plan, server, rows);
  if (base && base->size() != rows.size())
    throw py::value_error("base must have the shape of the rows");
  if (codec != nullptr && (base || codec->block != g.dim || codec->kind == CodecKind::none))
    throw py::value_error("a codec needs rows without base, of the length of its block");
  const RowsToPush push{g.keys, rows.data(), base ? base->data() : nullptr,       g.n,       g.dim,
                        &plan,  g.from,      codec != nullptr ? *codec : Codec{}, random_key};
  const py::gil_scoped_release release;
  return writer.push_rows(table, clock, push, done);
}

std::size_t pull_planned(RingWriter& writer, std::uint16_t table, std::uint64_t clock,
                         const KeyPlan& plan, std::size_t server, FloatArray& out, std::size_t done,
                         const Codec* codec, bool ahead, std::optional<std::uint64_t> since) {
  const Group g = group_of(plan, server, out);
  if (codec != nullptr && (codec->block != g.dim || codec->kind == CodecKind::none))
    throw py::value_error("a codec needs rows of the length of its block");
  if (since && (g.dim != 1 || codec != nullptr))
    throw py::value_error("a pull of changes needs rows of one float, without a codec");
  const RowsToPull pull{g.keys,
                        out.mutable_data(),
                        g.n,
                        g.dim,
                        &plan,
                        g.from,
                        codec != nullptr ? *codec : Codec{},
                        ahead,
                        since.value_or(RowsToPull::whole_rows)};
  const py::gil_scoped_release release;
  return writer.pull_rows(table, clock, pull, done);
}

std::uint64_t* counter_of(WordArray& n_rows) {
  if (n_rows.size() != 1) throw py::value_error("n_rows must have one element");
  return n_rows.mutable_data();
}

std::size_t pull_keys(RingWriter& writer, std::uint16_t table, std::uint64_t clock,
                      std::uint64_t first, KeyArray& out, WordArray& n_rows, std::size_t done) {
  require_vector(out, "out");
  const PlacesToPull pull{{first, 0, 0}, out.mutable_data(), length(out), counter_of(n_rows)};
  const py::gil_scoped_release release;
  return writer.pull_places(table, clock, pull, done);
}

std::size_t pull_floats(RingWriter& writer, std::uint16_t table, std::uint64_t clock,
                        std::uint64_t first, std::uint32_t from, FloatArray& out, WordArray& n_rows,
                        std::size_t done) {
  if (out.ndim() != 2 || out.shape(1) < 1)
    throw py::value_error("out has shape " + shape_text(out) + ", expected (places, floats)");
  const auto n_floats = static_cast<std::uint32_t>(out.shape(1));
  const PlacesToPull pull{
      {first, from, n_floats}, out.mutable_data(), length(out), counter_of(n_rows)};
  const py::gil_scoped_release release;
  return writer.pull_places(table, clock, pull, done);
}

bool pull_changes(RingWriter& writer, std::uint16_t table, std::uint64_t clock, std::uint64_t first,
                  std::uint32_t from, std::uint32_t n_floats, std::uint64_t since,
                  ArrayOf<std::uint8_t>& out, WordArray& head, WordArray& n_entries) {
  constexpr std::size_t n_words = sizeof(ChangesHead) / sizeof(std::uint64_t);
  require_vector(out, "out");
  require_vector(head, "head");
  if (length(head) != n_words)
    throw py::value_error("head must have " + std::to_string(n_words) + " elements");
  const ChangesPayload what{{first, from, n_floats}, since};
  const ChangesToPull pull{what, out.mutable_data(), length(out) / what.entry_bytes(),
                           reinterpret_cast<ChangesHead*>(head.mutable_data()),
                           counter_of(n_entries)};
  const py::gil_scoped_release release;
  return writer.pull_changes(table, clock, pull);
}

}  // namespace

void bind_rows(py::class_<RingWriter>& writer) {
  writer
      .def(
          "push_rows",
          [](RingWriter& w, std::uint16_t table, std::uint64_t clock, const KeyArray& keys,
             const FloatArray& rows, const std::optional<FloatArray>& base, std::size_t done) {
            const auto n = static_cast<std::size_t>(keys.size());
            const std::size_t dim = row_length(keys, rows);
            const float* b = base_or_null(base, rows);
            py::gil_scoped_release release;
            return w.push_rows(table, clock, {keys.data(), rows.data(), b, n, dim}, done);
          },
          py::arg("table"), py::arg("clock"), py::arg("keys").noconvert(),
          py::arg("rows").noconvert(), py::arg("base").noconvert(), py::arg("done"))
      .def(
          "pull_rows",
          [](RingWriter& w, std::uint16_t table, std::uint64_t clock, const KeyArray& keys,
             FloatArray& out, std::size_t done) {
            const auto n = static_cast<std::size_t>(keys.size());
            const std::size_t dim = row_length(keys, out);
            float* to = out.mutable_data();
            py::gil_scoped_release release;
            return w.pull_rows(table, clock, {keys.data(), to, n, dim}, done);
          },
          py::arg("table"), py::arg("clock"), py::arg("keys").noconvert(),
          py::arg("out").noconvert(), py::arg("done"))
      .def("push_planned", &push_planned, py::arg("table"), py::arg("clock"), py::arg("plan"),
           py::arg("server"), py::arg("rows").noconvert(), py::arg("base").noconvert(),
           py::arg("done"), py::arg("codec").none(true), py::arg("random_key"))
      .def("pull_planned", &pull_planned, py::arg("table"), py::arg("clock"), py::arg("plan"),
           py::arg("server"), py::arg("out").noconvert(), py::arg("done"),
           py::arg("codec").none(true), py::arg("ahead") = false, py::arg("since") = py::none())
      .def("pull_keys", &pull_keys, py::arg("table"), py::arg("clock"), py::arg("first"),
           py::arg("out").noconvert(), py::arg("n_rows").noconvert(), py::arg("done"))
      .def("pull_floats", &pull_floats, py::arg("table"), py::arg("clock"), py::arg("first"),
           py::arg("from_float"), py::arg("out").noconvert(), py::arg("n_rows").noconvert(),
           py::arg("done"))
      .def("most_changes", &RingWriter::most_changes, py::arg("entry_bytes"))
      .def(
          "pull_changes", &pull_changes, py::arg("table"), py::arg("clock"), py::arg("first"),
          py::arg("from_float"), py::arg("n_floats"), py::arg("since"), py::arg("out").noconvert(),
          py::arg("head").noconvert(), py::arg("n_entries").noconvert(),
          "Request rows that have changed after version `since` (all ones: all rows), from the "
          "place "
          "`first` on; return false if there is no credit.\n\nWhen the reply is collected, "
          "`n_entries` has the number of entries, `out` the entries (a key, 8 bytes, and the "
          "floats), "
          "and `head` the table's version, the number of the marks, the version that they begin "
          "with, the place to go on with, and the number of places. With from_float = 2**32 - 1 "
          "and "
          "n_floats = 0 the places are numbers of removals, and the entries keys of rows that have "
          "left the table.");
}

}  // namespace mpips
