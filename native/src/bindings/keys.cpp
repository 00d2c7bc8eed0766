#include <cmath>
#include <string>
#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/names.hpp"
#include "bindings/register.hpp"
#include "keys/initializer.hpp"
#include "keys/row_map.hpp"

namespace mpips {

namespace {

ArrayOf<std::uint32_t> find(const RowMap& map, const ArrayOf<std::int64_t>& keys) {
  require_vector(keys, "keys");
  ArrayOf<std::uint32_t> rows(keys.shape(0));
  const std::int64_t* from = keys.data();
  std::uint32_t* to = rows.mutable_data();
  {
    const ReleaseGil release;
    map.find(from, length(keys), to);
  }
  return rows;
}

py::tuple find_or_insert(RowMap& map, const ArrayOf<std::int64_t>& keys) {
  require_vector(keys, "keys");
  ArrayOf<std::uint32_t> rows(keys.shape(0));
  const std::int64_t* from = keys.data();
  std::uint32_t* to = rows.mutable_data();
  std::size_t n_new = 0;
  {
    const ReleaseGil release;
    n_new = map.find_or_insert(from, length(keys), to);
  }
  return py::make_tuple(std::move(rows), n_new);
}

void bind_row_map(py::module_& m) {
  py::class_<RowMap> row_map(m, "RowMap");
  row_map.def(py::init<std::size_t>(), py::arg("capacity_hint"))
      .def("__len__", &RowMap::size)
      .def_property_readonly("capacity", &RowMap::capacity)
      .def("memory_bytes", &RowMap::memory_bytes)
      .def_static("bytes_for", &RowMap::bytes_for, py::arg("n"))
      .def("find", &find, py::arg("keys").noconvert())
      .def("find_or_insert", &find_or_insert, py::arg("keys").noconvert())
      .def("clear", &RowMap::clear)
      .def("erase", &RowMap::erase, py::arg("key"))
      .def("set_row", &RowMap::set_row, py::arg("key"), py::arg("row"))
      .def("shrink", &RowMap::shrink)
      .def("reserve", &RowMap::reserve, py::arg("n"), WithoutGil())
      .def("longest_probe", &RowMap::longest_probe, WithoutGil());
  row_map.attr("npos") = py::int_(RowMap::npos);
}

Initializer make_initializer(const std::string& kind, float scale, std::uint64_t seed,
                             std::uint32_t fan_in, std::uint32_t fan_out) {
  const auto known =
      enumerator_named<Initializer::Kind>("initializer", kind, Initializer::kind_names);
  const Initializer made{known, scale, seed, fan_in, fan_out};
  const bool needs_fans = made.kind == Initializer::Kind::xavier_uniform ||
                          made.kind == Initializer::Kind::xavier_normal;
  if (needs_fans && fan_in == 0 && fan_out == 0)
    throw py::value_error("initializer '" + kind + "' needs a positive fan_in or fan_out");
  if (!std::isfinite(scale))
    throw py::value_error("scale = " + std::to_string(scale) +
                          " of an initializer: must be a finite float32");
  return made;
}

void fill_rows(const Initializer& initializer, const ArrayOf<std::int64_t>& keys,
               ArrayOf<float>& out) {
  require_vector(keys, "keys");
  const std::size_t dim = require_rows(out, length(keys), "out");
  const std::int64_t* from = keys.data();
  float* to = out.mutable_data();
  const ReleaseGil release;
  for (std::size_t i = 0; i < length(keys); ++i)
    initialize_row(initializer, from[i], to + i * dim, dim);
}

void fill_range(const Initializer& initializer, std::uint64_t first, ArrayOf<float>& out) {
  require_vector(out, "out");
  float* to = out.mutable_data();
  const ReleaseGil release;
  initialize_range(initializer, first, to, length(out));
}

void bind_initializer(py::module_& m) {
  py::class_<Initializer>(m, "Initializer")
      .def(py::init(&make_initializer), py::arg("kind"), py::arg("scale"), py::arg("seed"),
           py::arg("fan_in"), py::arg("fan_out"))
      .def_property_readonly("kind",
                             [](const Initializer& self) {
                               return Initializer::kind_names[static_cast<std::size_t>(self.kind)];
                             })
      .def_readonly("scale", &Initializer::scale)
      .def_readonly("seed", &Initializer::seed)
      .def_readonly("fan_in", &Initializer::fan_in)
      .def_readonly("fan_out", &Initializer::fan_out);
  m.def("initialize_rows", &fill_rows, py::arg("initializer"), py::arg("keys").noconvert(),
        py::arg("out").noconvert());
  m.def("initialize_range", &fill_range, py::arg("initializer"), py::arg("first"),
        py::arg("out").noconvert());
}

}  // namespace

void register_keys(py::module_& m) {
  bind_row_map(m);
  bind_initializer(m);
}

}  // namespace mpips
