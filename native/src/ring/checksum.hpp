#pragma once

#include <xxhash.h>

#include "kernels/kernel_table.hpp"
#include "ring/layout.hpp"

namespace mpips {

// Return XXH3-64. The vector kernels are used only for data longer than a few cache lines; shorter
// data is hashed inline.
inline std::uint64_t hash(const void* data, std::size_t n, std::uint64_t seed = 0) noexcept {
  constexpr std::size_t vectors_from = 241;
  return n < vectors_from ? XXH3_64bits_withSeed(data, n, seed) : kernels().hash(data, n, seed);
}

inline std::uint32_t checksum(const void* data, std::size_t n) noexcept {
  return static_cast<std::uint32_t>(hash(data, n));
}

// Return the checksum of a segment in a rendezvous buffer. It has 64 bits, more than that of a
// record, because the segment is longer.
inline std::uint64_t area_checksum(const void* data, std::size_t n) noexcept {
  return hash(data, n);
}

// Return the checksum of a reply's rows and of its header. It covers the header, because one that
// is half of this reply and half of the previous reply in the slot must not validate the older
// rows.
inline std::uint32_t reply_checksum(const ReplyHeader& header, const void* rows,
                                    std::size_t n) noexcept {
  const std::uint64_t words[4] = {header.sequence, header.version, header.count, header.min_clock};
  return static_cast<std::uint32_t>(hash(rows, n, hash(words, sizeof words)));
}

// Return the checksum of all fields of a header except header_checksum. The payload's checksum is
// covered.
inline std::uint32_t header_checksum(const RecordHeader& header) noexcept {
  RecordHeader copy = header;
  copy.header_checksum = 0;
  return checksum(&copy, sizeof copy);
}

}  // namespace mpips
