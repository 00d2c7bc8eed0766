#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

// Numbers of a record of a run: seven bits in each byte, the lowest first, and the highest bit set
// in all bytes but the last. docs/reference/record.md describes the files.
namespace mpips {

// The program differs from that of the recorded run, or the record is damaged.
class RecordDifference : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void put_varint(std::vector<std::uint8_t>* out, std::uint64_t value) {
  while (value >= 0x80) {
    out->push_back(static_cast<std::uint8_t>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<std::uint8_t>(value));
}

// Write a difference modulo 2^64: small ones of either sign take one byte.
inline void put_difference(std::vector<std::uint8_t>* out, std::uint64_t to, std::uint64_t from) {
  const auto d = static_cast<std::int64_t>(to - from);
  put_varint(out, (static_cast<std::uint64_t>(d) << 1) ^ static_cast<std::uint64_t>(d >> 63));
}

// Reads what the functions above wrote.
class VarintReader {
 public:
  VarintReader(const std::uint8_t* data, std::size_t n) : at_(data), end_(data + n) {}
  bool done() const noexcept { return at_ == end_; }
  std::uint8_t take_byte() {
    if (at_ == end_) throw RecordDifference("a file of the record ends inside an entry");
    return *at_++;
  }
  std::uint64_t take() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint8_t byte = take_byte();
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    throw RecordDifference("a file of the record has a number of more than 64 bits");
  }
  std::uint64_t take_difference(std::uint64_t from) {
    const std::uint64_t coded = take();
    return from + ((coded >> 1) ^ (~(coded & 1) + 1));
  }
  // Return a number below `limit`.
  std::size_t take_index(std::size_t limit, const char* what) {
    const std::uint64_t value = take();
    if (value >= limit)
      throw RecordDifference("a file of the record has the " + std::string(what) + " " +
                             std::to_string(value) + " of " + std::to_string(limit));
    return static_cast<std::size_t>(value);
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace mpips
