#pragma once

#include <cstdint>

namespace mpips::data {

// Read one number from [begin, end), which must be used up entirely.
//
// It accepts an optional sign, digits with an optional point, and a decimal exponent. The result is
// the double nearest to the text; numbers too small for a double are 0. Returns false for anything
// else, including "nan", "inf" and numbers too large for a double.
bool parse_double(const char* begin, const char* end, double& value) noexcept;

// Read digits from `at` on and leave `at` behind them; return false if there are none or int64
// overflows.
bool parse_index(const char*& at, const char* end, std::int64_t& index) noexcept;

}  // namespace mpips::data
