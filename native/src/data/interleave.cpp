#include "data/interleave.hpp"

#include <algorithm>
#include <cmath>

#include "data/logarithm.hpp"

namespace mpips::data {
namespace {

constexpr std::size_t kBlock = 64;  // records whose entries stay in the nearest cache

const FloatLogarithm kLogarithm;

bool has_gap(const CellColumn& column, const std::int64_t* own, std::size_t n) noexcept {
  // Mostly there is no empty text.
  if (column.numbers == nullptr &&
      std::none_of(column.keys, column.keys + column.n_keys, [](auto key) { return key < 0; }))
    return false;
  bool gap = false;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t record = own == nullptr ? i : static_cast<std::size_t>(own[i]);
    gap |= column.numbers != nullptr ? std::isnan(column.numbers[record])
                                     : column.keys[column.codes[record]] < 0;
  }
  return gap;
}

// Write the cells of a column in n records, none of which is missing, `stride` entries apart.
void write_column(const CellColumn& column, const std::int64_t* own, std::size_t first,
                  std::size_t n, std::int32_t field, std::size_t stride,
                  const EntryArrays& out) noexcept {
  std::size_t entry = first * stride + static_cast<std::size_t>(field);
  const bool logarithms = column.logarithms;
  for (std::size_t i = first; i < first + n; ++i, entry += stride) {
    const std::size_t record = own == nullptr ? i : static_cast<std::size_t>(own[i]);
    out.fields[entry] = field;
    if (column.numbers != nullptr) {
      const double value = column.numbers[record];
      out.keys[entry] = column.key;
      out.values[entry] = logarithms ? kLogarithm(value) : static_cast<float>(value);
    } else {
      out.keys[entry] = column.keys[column.codes[record]];
      out.values[entry] = 1.0F;
    }
  }
}

std::size_t write_with_gaps(const CellColumn* columns, std::size_t n_columns,
                            const std::int64_t* own, std::size_t n,
                            const EntryArrays& out) noexcept {
  std::size_t entry = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t record = own == nullptr ? i : static_cast<std::size_t>(own[i]);
    const std::size_t first = entry;
    for (std::size_t c = 0; c < n_columns; ++c) {
      const CellColumn& column = columns[c];
      // Write always, and count the entry if the cell is there: its place is free otherwise.
      out.fields[entry] = static_cast<std::int32_t>(c);
      if (column.numbers != nullptr) {
        const double value = column.numbers[record];
        out.keys[entry] = column.key;
        out.values[entry] = column.logarithms ? kLogarithm(value) : static_cast<float>(value);
        entry += !std::isnan(value);
      } else {
        const std::int64_t key = column.keys[column.codes[record]];
        out.keys[entry] = key;
        out.values[entry] = 1.0F;
        entry += key >= 0;
      }
    }
    out.lengths[i] = static_cast<std::int64_t>(entry - first);
  }
  return entry;
}

}  // namespace

std::size_t interleave(const CellColumn* columns, std::size_t n_columns, const std::int64_t* own,
                       std::size_t n, const EntryArrays& out) noexcept {
  const auto gaps = [&](const CellColumn& column) { return has_gap(column, own, n); };
  if (std::any_of(columns, columns + n_columns, gaps))
    return write_with_gaps(columns, n_columns, own, n, out);
  for (std::size_t first = 0; first < n; first += kBlock) {
    const std::size_t block = std::min(kBlock, n - first);
    for (std::size_t c = 0; c < n_columns; ++c)
      write_column(columns[c], own, first, block, static_cast<std::int32_t>(c), n_columns, out);
  }
  std::fill(out.lengths, out.lengths + n, static_cast<std::int64_t>(n_columns));
  return n * n_columns;
}

}  // namespace mpips::data
