#pragma once

#include <cstddef>
#include <cstdint>

namespace mpips::data {

// Where records of CSV text end. A quote opens a quoted cell only at the beginning of a cell;
// inside, two quotes are one character, and one quote must be followed by a delimiter or the end of
// the line (RFC 4180; csv.reader of Python with strict=True). Lines end with \n, \r or \r\n.
struct CsvScan {
  bool quoted;         // in: `begin` is inside a quoted cell; out: `end` is
  std::int64_t wrong;  // place of a quote that is not followed by a delimiter; -1 for none
};

// Follow the quotes of text[begin..end). Neither `begin` nor `end` may lie between two quotes in a
// row
// (`csv_shift` moves a place). A place of another quote is found with the bytes before `begin`.
CsvScan scan_csv(const char* text, std::size_t length, std::size_t begin, std::size_t end,
                 char delimiter, bool quoted) noexcept;

// Return the first place at or after `at` that does not lie between two quotes in a row.
std::size_t csv_shift(const char* text, std::size_t length, std::size_t at) noexcept;

// Return the place behind the end of the record that contains `at`, or `length`.
std::size_t csv_record_end(const char* text, std::size_t length, std::size_t at, char delimiter,
                           bool quoted) noexcept;

// Return the place behind the last complete record that begins at or after `begin`, or `begin`.
std::size_t csv_last_end(const char* text, std::size_t length, std::size_t begin,
                         char delimiter) noexcept;

// sign(v) log(1 + |v|) of n values.
void signed_log(const double* values, double* out, std::size_t n) noexcept;

}  // namespace mpips::data
