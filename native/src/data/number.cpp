#include "data/number.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

namespace mpips::data {
namespace {

constexpr double kPowersOfTen[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
// Up to 15 digits fit a double's mantissa, so one division by a power of ten rounds correctly.
constexpr int kExactDigits = 15;

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

// Read a short plain decimal, the common case. False means "another case", not "not a number".
bool parse_short(const char* at, const char* end, double& value) noexcept {
  std::uint64_t mantissa = 0;
  int n_digits = 0, n_decimals = 0;
  for (; at != end && is_digit(*at); ++at, ++n_digits) mantissa = mantissa * 10 + (*at - '0');
  if (at != end && *at == '.') {
    for (++at; at != end && is_digit(*at); ++at, ++n_digits, ++n_decimals)
      mantissa = mantissa * 10 + (*at - '0');
  }
  if (at != end || n_digits == 0 || n_digits > kExactDigits) return false;
  value = static_cast<double>(mantissa) / kPowersOfTen[n_decimals];
  return true;
}

// Read the exponent at the end of a number. Where it exceeds 2^58, return a value about as large:
// no text has so many digits that this matters.
std::int64_t read_exponent(const char* at, const char* end) noexcept {
  const bool negative = at != end && *at == '-';
  if (at != end && (*at == '-' || *at == '+')) ++at;
  std::int64_t value = 0;
  for (; at != end; ++at) value = std::min<std::int64_t>(value * 10 + (*at - '0'), 1LL << 58);
  return negative ? -value : value;
}

// Return true if a number out of range is too small. from_chars does not report on which side a
// number left the range. The place of its first nonzero digit shows it, together with the exponent.
// A number without one is 0, which no exponent changes.
bool is_underflow(const char* begin, const char* end) noexcept {
  std::int64_t first = 0;  // 1: digit left of the point, 2: the one before it; 0: right of it
  bool point = false, found = false;
  for (const char* at = begin; at != end; ++at) {
    if (*at == 'e' || *at == 'E') {
      first += read_exponent(at + 1, end);
      break;
    }
    if (*at == '.') {
      point = true;
      continue;
    }
    found = found || *at != '0';
    if (found && !point) ++first;
    if (!found && point) --first;
  }
  return !found || first <= 0;
}

}  // namespace

bool parse_double(const char* begin, const char* end, double& value) noexcept {
  const bool negative = begin != end && *begin == '-';
  if (begin != end && (*begin == '-' || *begin == '+')) ++begin;
  if (begin == end || (!is_digit(*begin) && *begin != '.')) return false;

  if (!parse_short(begin, end, value)) {
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (stop != end) return false;
    if (error == std::errc::result_out_of_range) {
      if (!is_underflow(begin, end)) return false;
      value = 0.0;
    } else if (error != std::errc()) {
      return false;
    }
  }
  if (negative) value = -value;
  return std::isfinite(value);
}

bool parse_index(const char*& at, const char* end, std::int64_t& index) noexcept {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kBeforeLast = kLargest / 10;
  const char* const begin = at;
  std::int64_t value = 0;
  for (; at != end && is_digit(*at); ++at) {
    const int digit = *at - '0';
    if (value > kBeforeLast || (value == kBeforeLast && digit > kLargest % 10)) return false;
    value = value * 10 + digit;
  }
  index = value;
  return at != begin;
}

}  // namespace mpips::data
