#pragma once

#include <cstddef>
#include <cstdint>

namespace mpips::data {

// The cells of one column, of either kind.
struct CellColumn {
  const double* numbers;      // NaN for a missing one; null for a column of text
  bool logarithms;            // a number v becomes sign(v) log(1 + |v|)
  std::int64_t key;           // the key of all numbers
  const std::int32_t* codes;  // places in `keys`; null for a column of numbers
  const std::int64_t* keys;   // the key of each text; -1 for an empty one
  std::size_t n_keys;
};

// Where the entries of samples go. Each array has room for all cells, `lengths` for all samples.
struct EntryArrays {
  std::int64_t* keys;
  float* values;
  std::int32_t* fields;
  std::int64_t* lengths;
};

// Write the cells of n records as samples, record by record; missing and empty cells are left out.
//
// `own`: places of the records, or null for the first n. The value of a text is 1. Returns the
// number of entries written.
std::size_t interleave(const CellColumn* columns, std::size_t n_columns, const std::int64_t* own,
                       std::size_t n, const EntryArrays& out) noexcept;

}  // namespace mpips::data
