#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "data/csv_parser.hpp"
#include "data/interleave.hpp"
#include "data/samples.hpp"

namespace mpips {
namespace {

using data::CellKind;
using CodeArray = ArrayOf<std::int32_t>;
using NumberArray = ArrayOf<double>;
// numbers, their key, codes, keys of the codes: a column has either the first two or the last two.
using ColumnArrays = std::tuple<std::optional<NumberArray>, std::int64_t, std::optional<CodeArray>,
                                std::optional<KeyArray>>;

py::buffer_info text_of(const py::buffer& text) {
  py::buffer_info info = text.request();
  if (info.itemsize != 1 || info.ndim != 1 || (info.size > 1 && info.strides[0] != 1))
    throw py::value_error("text must be a contiguous buffer of bytes");
  return info;
}

data::CsvParser make_parser(const std::string& kinds, char delimiter,
                            std::vector<std::string> missing) {
  std::vector<CellKind> found;
  for (const char kind : kinds) {
    const auto place = std::string("-nmt").find(kind);
    if (place == std::string::npos) throw py::value_error("kinds must consist of -, n, m and t");
    found.push_back(static_cast<CellKind>(place));
  }
  if (found.empty()) throw py::value_error("kinds must name at least one column");
  return {std::move(found), delimiter, std::move(missing)};
}

std::size_t checked(const data::CsvParser& parser, std::size_t column) {
  if (column >= parser.width()) throw py::index_error("no such column");
  return column;
}

py::object parse(data::CsvParser& parser, const py::buffer& text, std::size_t most) {
  const py::buffer_info info = text_of(text);
  bool plain = false;
  {
    ReleaseGil release;
    plain =
        parser.parse(static_cast<const char*>(info.ptr), static_cast<std::size_t>(info.size), most);
  }
  if (!plain) return py::none();
  py::list columns;
  for (std::size_t i = 0; i < parser.width(); ++i) {
    if (parser.kind(i) == CellKind::kSkipped)
      columns.append(py::none());
    else if (parser.kind(i) == CellKind::kText)
      columns.append(to_array(parser.take_codes(i)));
    else
      columns.append(to_array(parser.take_numbers(i)));
  }
  return py::make_tuple(parser.n_records(), parser.n_lines(), parser.is_ascii(), columns);
}

py::list words(data::CsvParser& parser, std::size_t column, std::size_t first, std::size_t most) {
  const data::WordTable& table = parser.words(checked(parser, column));
  py::list found;
  for (std::size_t i = first; i < table.size() && i - first < most; ++i) {
    const std::string_view word = table.word(i);
    found.append(py::str(word.data(), word.size()));
  }
  return found;
}

std::size_t count_csv_lines(const py::buffer& text) {
  const py::buffer_info info = text_of(text);
  ReleaseGil release;
  return data::count_csv_lines(static_cast<const char*>(info.ptr),
                               static_cast<std::size_t>(info.size));
}

// Return true if all numbers lie in 0 to `end` - 1. Compilers vectorise it, unlike
// std::minmax_element.
template <typename Number>
bool all_below(const Number* from, std::size_t n, std::size_t end) noexcept {
  Number signs = 0, most = -1;
  for (std::size_t i = 0; i < n; ++i) {
    signs |= from[i];
    most = std::max(most, from[i]);
  }
  return signs >= 0 && (most < 0 || static_cast<std::size_t>(most) < end);
}

// Return a column's arrays as pointers, and check that they fit n records.
data::CellColumn checked_column(const ColumnArrays& arrays, bool logarithms, std::size_t n) {
  const auto& [numbers, key, codes, keys] = arrays;
  if (numbers.has_value() == codes.has_value() || codes.has_value() != keys.has_value())
    throw py::value_error("a column must have numbers, or codes and their keys");
  if (numbers) {
    require_vector(*numbers, "numbers");
    if (length(*numbers) != n) throw py::value_error("all columns must have the same length");
    return {numbers->data(), logarithms, key, nullptr, nullptr, 0};
  }
  require_vector(*codes, "codes");
  require_vector(*keys, "keys");
  if (length(*codes) != n) throw py::value_error("all columns must have the same length");
  const std::int32_t* const from = codes->data();
  if (!all_below(from, n, length(*keys))) throw py::value_error("a code lies outside of its keys");
  return {nullptr, false, 0, from, keys->data(), length(*keys)};
}

std::size_t interleave(const std::vector<ColumnArrays>& columns, std::size_t n_records,
                       const std::optional<KeyArray>& own, const std::vector<bool>& logarithms,
                       KeyArray keys, FloatArray values, CodeArray fields, KeyArray lengths) {
  std::vector<data::CellColumn> found;
  if (logarithms.size() != columns.size())
    throw py::value_error("logarithms must have a value for each column");
  for (std::size_t c = 0; c < columns.size(); ++c)
    found.push_back(checked_column(columns[c], logarithms[c], n_records));
  const std::size_t n = own ? length(*own) : n_records;
  if (own) {
    if (!all_below(own->data(), n, n_records))
      throw py::value_error("own names a record that is not there");
  }
  const std::size_t room = n * columns.size();
  if (length(lengths) != n || length(keys) < room || length(values) < room || length(fields) < room)
    throw py::value_error("the arrays have no room for all cells");
  const data::EntryArrays out{keys.mutable_data(), values.mutable_data(), fields.mutable_data(),
                              lengths.mutable_data()};
  ReleaseGil release;
  return data::interleave(found.data(), found.size(), own ? own->data() : nullptr, n, out);
}

py::tuple take_samples(const KeyArray& rows, const KeyArray& indptr, const KeyArray& indices,
                       const FloatArray& values, const std::optional<CodeArray>& fields) {
  require_vector(rows, "rows");
  require_vector(indptr, "indptr");
  const std::size_t n = length(rows), n_entries = length(indices);
  if (length(indptr) == 0 || length(values) != n_entries ||
      (fields && length(*fields) != n_entries))
    throw py::value_error("indices, values and fields must have the same length");

  // Find the ends of the samples, and check each place that is read.
  std::vector<std::int64_t> ends(n + 1, 0);
  const std::int64_t* const starts = indptr.data();
  const auto n_samples = static_cast<std::int64_t>(length(indptr)) - 1;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t row = rows.data()[i];
    if (row < 0 || row >= n_samples) throw py::index_error("rows names a sample that is not there");
    const std::int64_t begin = starts[row], end = starts[row + 1];
    if (begin < 0 || begin > end || end > static_cast<std::int64_t>(n_entries))
      throw py::value_error("indptr names an entry that is not there");
    ends[i + 1] = ends[i] + end - begin;
  }
  KeyArray own_indices(ends[n]);
  FloatArray own_values(ends[n]);
  std::optional<CodeArray> own_fields;
  if (fields) own_fields.emplace(ends[n]);
  const data::SampleArrays from{starts, indices.data(), values.data(),
                                fields ? fields->data() : nullptr};
  const data::EntryOutput out{own_indices.mutable_data(), own_values.mutable_data(),
                              own_fields ? own_fields->mutable_data() : nullptr};
  {
    ReleaseGil release;
    data::take_samples(from, rows.data(), n, out);
  }
  return py::make_tuple(to_array(std::move(ends)), own_indices, own_values, own_fields);
}

}  // namespace

void register_tables(py::module_& m) {
  py::class_<data::CsvParser>(m, "CsvParser", "Parser of plain CSV. Not thread-safe.")
      .def(py::init(&make_parser), py::arg("kinds"), py::arg("delimiter"),
           py::arg("missing") = std::vector<std::string>(),
           "`kinds`: for each column - (skipped), n (number), m (number that may be missing) or t\n"
           "(text). `missing`: further texts of missing numbers, in small ASCII letters.")
      .def("parse", &parse, py::arg("text"), py::arg("most") = PY_SSIZE_T_MAX,
           "Parse whole records, at most `most`. Return None if the text is refused, else (number\n"
           "of records, of line ends, True if all is ASCII, for each column None, float64 numbers\n"
           "with NaN for a missing one, or int32 codes of texts). Releases the GIL.")
      .def("undo", &data::CsvParser::undo,
           "Forget the texts of columns that have come with the last call of `parse`.")
      .def("words", &words, py::arg("column"), py::arg("first"), py::arg("most") = PY_SSIZE_T_MAX,
           "Return the texts of a column from code `first` on, at most `most`.")
      .def(
          "clear",
          [](data::CsvParser& parser, std::size_t column) {
            parser.words(checked(parser, column)).clear();
          },
          py::arg("column"), "Forget the texts of a column; codes begin at 0 again.");
  m.def("count_csv_lines", &count_csv_lines, py::arg("text"),
        "Return the number of line ends: \\n, \\r and \\r\\n. Releases the GIL.");
  m.def("take_samples", &take_samples, py::arg("rows").noconvert(), py::arg("indptr").noconvert(),
        py::arg("indices").noconvert(), py::arg("values").noconvert(),
        py::arg("fields").noconvert(),
        "Copy samples in compressed rows; return (indptr, indices, values, fields) of the samples\n"
        "`rows`, int64, in their order. `fields` may be None. Releases the GIL.");
  m.def("interleave", &interleave, py::arg("columns"), py::arg("n_records"), py::arg("own"),
        py::arg("logarithms"), py::arg("keys").noconvert(), py::arg("values").noconvert(),
        py::arg("fields").noconvert(), py::arg("lengths").noconvert(),
        "Write the cells of columns as samples, record by record, without missing and empty ones;\n"
        "return the number of entries. Each column is (numbers, key, None, None) or (None, 0,\n"
        "codes, keys): mpips/data/cells.py. `logarithms`: for each column whether\n"
        "a number v becomes sign(v) log(1 + |v|). Releases the GIL.");
}

}  // namespace mpips
