#include "data/csv_parser.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "data/csv_stops.hpp"
#include "data/decimal.hpp"
#include "data/number.hpp"

namespace mpips::data {
namespace {

constexpr std::size_t kFirstRecords = 64;  // by whose length the number of all is estimated
constexpr double kLargest = std::numeric_limits<float>::max();
constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();
// ASCII white space as str.strip() of Python understands it.
bool is_blank(char c) noexcept { return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31); }

char in_small_letters(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

// Return true for the cells of mpips/data/words.py that stand for a missing number.
bool is_missing(const char* begin, const char* end) noexcept {
  const auto length = static_cast<std::size_t>(end - begin);
  if (length == 0) return true;
  if (length > 4) return false;
  char small[5] = {};
  for (std::size_t i = 0; i < length; ++i) small[i] = in_small_letters(begin[i]);
  for (const char* text : {"na", "n/a", "nan", "null", "none", "?"})
    if (std::strcmp(small, text) == 0) return true;
  return false;
}

// Return true for \r, and for \n unless it belongs to a \r.
bool begins_line_end(const char* text, const char* at) noexcept {
  return *at == '\r' || (*at == '\n' && (at == text || at[-1] != '\r'));
}

}  // namespace

CsvParser::CsvParser(std::vector<CellKind> kinds, char delimiter, std::vector<std::string> missing)
    : kinds_(std::move(kinds)),
      delimiter_(delimiter),
      missing_(std::move(missing)),
      columns_(kinds_.size()) {}

bool CsvParser::parse(const char* text, std::size_t length, std::size_t most) {
  for (ParsedColumn& column : columns_) column.n_words_before = column.words.size();
  if (parse_records(text, length, most)) return true;
  undo();
  return false;
}

void CsvParser::undo() {
  for (ParsedColumn& column : columns_) column.words.truncate(column.n_words_before);
}

bool CsvParser::parse_records(const char* text, std::size_t length, std::size_t most) {
  n_records_ = n_lines_ = room_ = 0;
  Stops stops(text, length, delimiter_);
  const char* at = text;
  while (at != stops.end() && n_records_ < most) {
    // An empty line is no record.
    if (*at == '\n' || *at == '\r') {
      n_lines_ += begins_line_end(stops.begin(), at);
      at = stops.next() + 1;
      continue;
    }
    if (n_records_ == room_) {
      // Expect that the other records are as long as those before.
      const auto done = static_cast<std::size_t>(at - text);
      const std::size_t others = n_records_ == 0 ? 0 : (length - done) / (done / n_records_ + 1);
      make_room(n_records_ + others + kFirstRecords);
    }
    if (!parse_record(stops, at)) return false;
    ++n_records_;
  }
  make_room(n_records_);
  is_ascii_ = stops.are_ascii();
  return true;
}

std::vector<double> CsvParser::take_numbers(std::size_t column) {
  return std::exchange(columns_[column].numbers, {});
}

std::vector<std::int32_t> CsvParser::take_codes(std::size_t column) {
  return std::exchange(columns_[column].codes, {});
}

bool CsvParser::parse_number(const char* begin, const char* end, bool is_long, bool optional,
                             double& value) {
  if (is_long && parse_decimal(begin, end, value)) return true;
  while (begin != end && is_blank(*begin)) ++begin;
  while (begin != end && is_blank(end[-1])) --end;
  if (is_missing(begin, end) || is_also_missing(begin, end)) {
    value = kMissing;
    return optional;
  }
  return parse_double(begin, end, value) && std::fabs(value) <= kLargest;
}

bool CsvParser::is_also_missing(const char* begin, const char* end) const noexcept {
  const auto length = static_cast<std::size_t>(end - begin);
  for (const std::string& text : missing_) {
    if (text.size() != length) continue;
    if (std::equal(begin, end, text.begin(),
                   [](char cell, char small) { return in_small_letters(cell) == small; }))
      return true;
  }
  return false;
}

bool CsvParser::parse_record(Stops& stops, const char*& at) {
  const char* const end = stops.end();
  const std::size_t width = kinds_.size();
  for (std::size_t column = 0; column < width; ++column) {
    // Find the cell, and `stop` behind it.
    const char *begin = at, *stop = stops.next(), *close = stop;
    if (stop != end && *stop == '"') {
      if (stop != at || !find_quoted(stops, begin, close, stop)) return false;
    }
    if (stop - at > static_cast<std::ptrdiff_t>(kMostCellBytes)) return false;
    // Behind each cell but the last there is a delimiter.
    if ((column + 1 == width) == (stop != end && *stop == delimiter_)) return false;
    if (stop != end && *stop == '\0') return false;

    // Characters before and behind the cell are readable, unless it was copied.
    const bool is_copied = begin == unquoted_.data();
    ParsedColumn& own = columns_[column];
    switch (kinds_[column]) {
      case CellKind::kSkipped:
        break;
      case CellKind::kText:
        own.codes[n_records_] = own.words.find_or_add(
            begin, static_cast<std::size_t>(close - begin),
            static_cast<std::size_t>(is_copied ? close - begin : end - begin));
        break;
      case CellKind::kNumber:
      case CellKind::kOptionalNumber: {
        const bool optional = kinds_[column] == CellKind::kOptionalNumber;
        const bool is_long = !is_copied && close - stops.begin() >= kReadBefore;
        if (!parse_number(begin, close, is_long, optional, own.numbers[n_records_])) return false;
      }
    }
    at = stop == end ? end : stop + 1;
  }
  // The record ends with a line end, or with the text.
  n_lines_ += at[-1] == '\n' || at[-1] == '\r';
  return true;
}

bool CsvParser::find_quoted(Stops& stops, const char*& begin, const char*& close,
                            const char*& stop) {
  const char* const end = stops.end();
  const char* from = ++begin;
  const char* quote = nullptr;
  bool doubled = false;
  unquoted_.clear();
  while (true) {
    quote = stops.next();
    if (quote == end || *quote == '\0') return false;
    if (*quote != '"') {
      n_lines_ += begins_line_end(stops.begin(), quote);
      continue;
    }
    if (quote + 1 == end || quote[1] != '"') break;
    // Two quotes are one character of the text.
    stops.next();
    unquoted_.append(from, quote + 1);
    from = quote + 2;
    doubled = true;
  }
  close = quote;
  if (doubled) {
    unquoted_.append(from, quote);
    begin = unquoted_.data();
    close = begin + unquoted_.size();
  }
  // Only a delimiter or a line end may follow, which is the next stop.
  stop = quote + 1;
  return stop == end || (stops.next() == stop && *stop != '"');
}

void CsvParser::make_room(std::size_t n_records) {
  room_ = n_records;
  for (std::size_t column = 0; column < kinds_.size(); ++column) {
    if (kinds_[column] == CellKind::kText)
      columns_[column].codes.resize(n_records);
    else if (kinds_[column] != CellKind::kSkipped)
      columns_[column].numbers.resize(n_records);
  }
}

std::size_t count_csv_lines(const char* text, std::size_t length) noexcept {
  if (length == 0) return 0;
  std::size_t n = text[0] == '\n' || text[0] == '\r';
  for (std::size_t i = 1; i < length; ++i)
    n += (text[i] == '\r') | ((text[i] == '\n') & (text[i - 1] != '\r'));
  return n;
}

}  // namespace mpips::data
