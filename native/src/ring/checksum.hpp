#pragma once

#include <xxhash.h>

#include "ring/layout.hpp"

namespace mpips {

inline std::uint32_t checksum(const void* data, std::size_t n) noexcept {
  return static_cast<std::uint32_t>(XXH3_64bits(data, n));
}

// Of a piece of an update in an area; longer than that of a record, as the piece is.
inline std::uint64_t area_checksum(const void* data, std::size_t n) noexcept {
  return XXH3_64bits(data, n);
}

// Of the rows of a reply and of its header: a header that is half of this reply and half of the one
// before it in the slot must not vouch for the older rows.
inline std::uint32_t reply_checksum(const ReplyHeader& header, const void* rows,
                                    std::size_t n) noexcept {
  const std::uint64_t words[3] = {header.sequence, header.version, header.count};
  return static_cast<std::uint32_t>(
      XXH3_64bits_withSeed(rows, n, XXH3_64bits(words, sizeof words)));
}

// Of every header field but the checksum of the header itself; the payload's is included.
inline std::uint32_t header_checksum(const RecordHeader& header) noexcept {
  RecordHeader copy = header;
  copy.header_checksum = 0;
  return checksum(&copy, sizeof copy);
}

}  // namespace mpips
