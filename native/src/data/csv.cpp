#include "data/csv.hpp"

#include <cmath>
#include <cstring>

namespace mpips::data {
namespace {

bool is_end(char c) noexcept { return c == '\n' || c == '\r'; }

const char* find(const char* from, const char* end, char c) noexcept {
  const void* found = std::memchr(from, c, static_cast<std::size_t>(end - from));
  return found == nullptr ? end : static_cast<const char*>(found);
}

// Return the first line end in [from, end), or `end`.
const char* find_end(const char* from, const char* end) noexcept {
  const char* newline = find(from, end, '\n');
  return find(from, newline, '\r');
}

// Return the place behind a line end at `at`.
const char* behind(const char* at, const char* end) noexcept {
  return at + (at[0] == '\r' && at + 1 != end && at[1] == '\n' ? 2 : 1);
}

// Steps from one quote to the next.
class Quotes {
 public:
  Quotes(const char* text, std::size_t length, char delimiter)
      : text_(text), end_(text + length), delimiter_(delimiter) {}

  // Return true if the quote at `at`, outside of a quoted cell, opens one.
  bool opens(const char* at) const noexcept {
    if (at == text_ || is_end(at[-1]) || at[-1] == delimiter_) return true;
    // A mark of the byte order may precede the first cell.
    return at - text_ == 3 && std::memcmp(text_, "\xef\xbb\xbf", 3) == 0;
  }

  // Return the place behind the quote that closes the cell in which `at` lies, or `stop`.
  const char* close(const char* at, const char* stop) noexcept {
    while (true) {
      at = find(at, stop, '"');
      if (at == stop) return stop;
      if (at + 1 == end_ || at[1] != '"') break;
      at += 2;  // two quotes are one character
      if (at >= stop) return stop;
    }
    closed_ = true;
    ++at;
    if (wrong_ == nullptr && at != end_ && *at != delimiter_ && !is_end(*at)) wrong_ = at - 1;
    return at;
  }

  bool take_closed() noexcept {
    const bool was = closed_;
    closed_ = false;
    return was;
  }

  std::int64_t wrong() const noexcept { return wrong_ == nullptr ? -1 : wrong_ - text_; }

 private:
  const char* text_;
  const char* end_;
  char delimiter_;
  const char* wrong_ = nullptr;
  bool closed_ = false;
};

}  // namespace

CsvScan scan_csv(const char* text, std::size_t length, std::size_t begin, std::size_t end,
                 char delimiter, bool quoted) noexcept {
  Quotes quotes(text, length, delimiter);
  const char* at = text + begin;
  const char* const stop = text + end;
  while (at < stop) {
    if (quoted) {
      at = quotes.close(at, stop);
      quoted = !quotes.take_closed();
    } else {
      at = find(at, stop, '"');
      if (at == stop) break;
      quoted = quotes.opens(at);
      ++at;
    }
  }
  return {quoted, quotes.wrong()};
}

std::size_t csv_shift(const char* text, std::size_t length, std::size_t at) noexcept {
  while (at != 0 && at < length && text[at - 1] == '"') ++at;
  return at;
}

std::size_t csv_record_end(const char* text, std::size_t length, std::size_t at, char delimiter,
                           bool quoted) noexcept {
  Quotes quotes(text, length, delimiter);
  const char* now = text + at;
  const char* const stop = text + length;
  while (now < stop) {
    if (quoted) {
      now = quotes.close(now, stop);
      quoted = !quotes.take_closed();
      continue;
    }
    const char* const line = find_end(now, stop);
    const char* const quote = find(now, line, '"');
    if (quote == line)
      return static_cast<std::size_t>((line == stop ? stop : behind(line, stop)) - text);
    quoted = quotes.opens(quote);
    now = quote + 1;
  }
  return length;
}

std::size_t csv_last_end(const char* text, std::size_t length, std::size_t begin,
                         char delimiter) noexcept {
  std::size_t last = begin;
  bool quoted = false;
  Quotes quotes(text, length, delimiter);
  const char* at = text + begin;
  const char* const stop = text + length;
  while (at < stop) {
    if (quoted) {
      at = quotes.close(at, stop);
      quoted = !quotes.take_closed();
      continue;
    }
    // The last line end before the next quote is the end of a record, if it is complete: more text
    // may follow a \r, and a \n belongs to it then.
    const char* const quote = find(at, stop, '"');
    for (const char* back = quote; back != at; --back) {
      if (back[-1] == '\n' || (back[-1] == '\r' && back != stop && back[0] != '\n')) {
        last = static_cast<std::size_t>(back - text);
        break;
      }
    }
    if (quote == stop) break;
    quoted = quotes.opens(quote);
    at = quote + 1;
  }
  return last;
}

void signed_log(const double* values, double* out, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i)
    out[i] = std::copysign(std::log1p(std::fabs(values[i])), values[i]);
}

}  // namespace mpips::data
