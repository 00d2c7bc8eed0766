#include "bindings/hot_rows.hpp"

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"

namespace mpips {

py::object read_rows(RowCounter& counter, double at_s, std::size_t most) {
  const HotRows found = counter.read(at_s, most);
  py::list rows;
  for (const HotRow& row : found.rows)
    rows.append(py::make_tuple(row.key, row.pulls_per_s, row.pushes_per_s));
  return py::make_tuple(found.pulls_per_s, found.pushes_per_s, rows);
}

void register_hot_rows(py::module_& m) {
  py::class_<RowCounter>(m, "RowCounter")
      .def(py::init<double>(), py::arg("now_s"))
      .def(
          "count",
          [](RowCounter& counter, bool is_pull, const KeyArray& keys) {
            counter.count(is_pull, keys.data(), static_cast<std::size_t>(keys.size()));
          },
          py::arg("is_pull"), py::arg("keys").noconvert())
      .def("read", &read_rows, py::arg("now_s"), py::arg("most"));
}

}  // namespace mpips
