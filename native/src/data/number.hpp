#pragma once

#include <cstdint>

namespace mpips::data {

// Read one number from [begin, end), which must be used up entirely.
//
// Accepts an optional sign, digits with an optional point, and a decimal exponent. The result is
// the double nearest to the text; what is too small for a double is 0. Returns false for anything
// else, "nan" and "inf" and numbers too large for a double included.
bool parse_double(const char* begin, const char* end, double& value) noexcept;

// Read digits from `at` on and leave `at` behind them; false if there is none or int64 overflows.
bool parse_index(const char*& at, const char* end, std::int64_t& index) noexcept;

}  // namespace mpips::data
