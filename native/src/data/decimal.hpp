#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace mpips::data {

// Bytes before the end of a number that `parse_decimal` may read.
constexpr std::ptrdiff_t kReadBefore = 16;

namespace detail {

// Up to 15 digits fit a double's mantissa, so one division by a power of ten rounds correctly.
constexpr int kExactDigits = 15;
constexpr double kPowersOfTen[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};

constexpr std::uint64_t kEach = 0x0101010101010101;  // 1 in each byte
constexpr std::uint64_t kZeros = kEach * '0';

inline std::uint64_t load(const char* at) noexcept {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// Return the place of the first byte that is a point, or 8.
inline int point_in(std::uint64_t word) noexcept {
  const std::uint64_t others = word ^ (kEach * '.');
  const std::uint64_t found = (others - kEach) & ~others & (kEach * 0x80);
  return found == 0 ? 8 : __builtin_ctzll(found) / 8;
}

// Remove the byte at `place`; those before it move up, and the first one is 0.
inline std::uint64_t without(std::uint64_t word, int place) noexcept {
  const std::uint64_t before = (1ULL << (8 * place)) - 1;
  const std::uint64_t behind = ~(before << 8 | 0xFF);
  return (word & behind) | (word & before) << 8;
}

inline bool all_digits(std::uint64_t word) noexcept {
  const std::uint64_t upper = kEach * 0xF0;
  return (((word & upper) ^ kZeros) | (((word + kEach * 6) & upper) ^ kZeros)) == 0;
}

// Return the number of eight digits; the byte of the lowest address is the first digit.
inline std::uint64_t eight_digits(std::uint64_t word) noexcept {
  word -= kZeros;
  word = word * 10 + (word >> 8);  // pairs of digits in every other byte
  const std::uint64_t low = (word & 0x000000FF000000FF) * 0x000F424000000064;
  const std::uint64_t high = ((word >> 16) & 0x000000FF000000FF) * 0x0000271000000001;
  return (low + high) >> 32;
}

}  // namespace detail

// Read a plain decimal of at most 15 digits and 16 characters behind the sign. Return false for any
// other cell, which may be a number, too. At least kReadBefore bytes before `end` must be
// readable.
//
// The characters are taken as two words of eight, the digits of both at once: a loop over
// characters takes several times as long, since the processor cannot predict where the digits end.
inline bool parse_decimal(const char* begin, const char* end, double& value) noexcept {
  using namespace detail;
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
  return false;
#endif
  const bool negative = begin != end && *begin == '-';
  begin += negative;
  const std::ptrdiff_t length = end - begin;
  if (length < 1 || length > 16) return false;
  std::uint64_t high = load(end - 16), low = load(end - 8);
  // Put zeros in the place of what precedes the cell.
  if (length <= 8) {
    const std::uint64_t others = length == 8 ? 0 : ~0ULL >> (8 * length);
    low = (low & ~others) | (kZeros & others);
    high = kZeros;
  } else {
    const std::uint64_t others = length == 16 ? 0 : ~0ULL >> (8 * (length - 8));
    high = (high & ~others) | (kZeros & others);
  }

  // Take the point out: what is left of it moves by one place.
  int n_decimals = 0;
  bool has_point = true;
  if (const int place = point_in(low); place < 8) {
    low = without(low, place) | high >> 56;
    high = high << 8 | '0';
    n_decimals = 7 - place;
  } else if (const int farther = point_in(high); farther < 8) {
    high = without(high, farther) | '0';
    n_decimals = 15 - farther;
  } else {
    has_point = false;
  }
  const std::ptrdiff_t n_digits = length - has_point;
  if (n_digits < 1 || n_digits > kExactDigits || !all_digits(low) || !all_digits(high))
    return false;
  const std::uint64_t mantissa = eight_digits(high) * 100'000'000 + eight_digits(low);
  // Signs are as random as digits, so set the sign without a branch.
  const double size = static_cast<double>(mantissa) / kPowersOfTen[n_decimals];
  std::uint64_t bits;
  std::memcpy(&bits, &size, sizeof bits);
  bits |= static_cast<std::uint64_t>(negative) << 63;
  std::memcpy(&value, &bits, sizeof bits);
  return true;
}

}  // namespace mpips::data
