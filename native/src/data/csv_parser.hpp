#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/word_table.hpp"

namespace mpips::data {

// What the cells of a column become.
enum class CellKind : std::uint8_t {
  kSkipped,
  kNumber,          // a finite number within float32
  kOptionalNumber,  // the same, or missing
  kText,
};

class Stops;

// Parser of plain CSV: what it accepts, it reads as csv.reader of Python with strict=True and
// float() do. It refuses all other text, which the caller then reads with Python: quotes within a
// cell that does not begin with one, records of another width, cells of more than 128 KiB, NUL,
// numbers in an unusual notation, beyond float32 or not finite.
class CsvParser {
 public:
  // The greatest number of bytes of a cell; csv.reader accepts as many characters.
  static constexpr std::size_t kMostCellBytes = 1 << 17;

  // `missing`: further texts, in small ASCII letters, that stand for a missing number.
  CsvParser(std::vector<CellKind> kinds, char delimiter, std::vector<std::string> missing = {});

  // Parse whole records, at most `most`. Return false if the text is refused; the columns are
  // undefined then, and no words have come.
  bool parse(const char* text, std::size_t length, std::size_t most);
  // Forget the words that have come with the last text.
  void undo();

  std::size_t width() const noexcept { return kinds_.size(); }
  CellKind kind(std::size_t column) const noexcept { return kinds_[column]; }
  std::size_t n_records() const noexcept { return n_records_; }
  std::size_t n_lines() const noexcept { return n_lines_; }
  bool is_ascii() const noexcept { return is_ascii_; }
  // The cells of a column, one for each record: float64 with NaN for a missing one, or codes of
  // words.
  std::vector<double> take_numbers(std::size_t column);
  std::vector<std::int32_t> take_codes(std::size_t column);
  WordTable& words(std::size_t column) noexcept { return columns_[column].words; }

 private:
  struct ParsedColumn {
    std::vector<double> numbers;
    std::vector<std::int32_t> codes;
    WordTable words;
    std::size_t n_words_before = 0;  // the last text
  };

  bool parse_records(const char* text, std::size_t length, std::size_t most);
  bool parse_record(Stops& stops, const char*& at);
  bool find_quoted(Stops& stops, const char*& begin, const char*& close, const char*& stop);
  bool parse_number(const char* begin, const char* end, bool is_long, bool optional, double& value);
  bool is_also_missing(const char* begin, const char* end) const noexcept;
  void make_room(std::size_t n_records);

  std::vector<CellKind> kinds_;
  char delimiter_;
  std::vector<std::string> missing_;
  std::vector<ParsedColumn> columns_;
  std::string unquoted_;  // the text of a quoted cell that has doubled quotes
  std::size_t n_records_ = 0;
  std::size_t n_lines_ = 0;
  bool is_ascii_ = true;
  std::size_t room_ = 0;
};

// Return the number of line ends: \n, \r and \r\n.
std::size_t count_csv_lines(const char* text, std::size_t length) noexcept;

}  // namespace mpips::data
