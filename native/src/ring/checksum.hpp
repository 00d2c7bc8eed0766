#pragma once

#include <xxhash.h>

#include "kernels/kernel_table.hpp"
#include "ring/layout.hpp"

namespace mpips {

// XXH3-64. Vectors are used for what is longer than a few lines only; the rest is done at once.
inline std::uint64_t hash(const void* data, std::size_t n, std::uint64_t seed = 0) noexcept {
  constexpr std::size_t vectors_from = 241;
  return n < vectors_from ? XXH3_64bits_withSeed(data, n, seed) : kernels().hash(data, n, seed);
}

inline std::uint32_t checksum(const void* data, std::size_t n) noexcept {
  return static_cast<std::uint32_t>(hash(data, n));
}

// Of a piece of an update in an area; longer than that of a record, as the piece is.
inline std::uint64_t area_checksum(const void* data, std::size_t n) noexcept {
  return hash(data, n);
}

// Of the rows of a reply and of its header: a header that is half of this reply and half of the one
// before it in the slot must not vouch for the older rows.
inline std::uint32_t reply_checksum(const ReplyHeader& header, const void* rows,
                                    std::size_t n) noexcept {
  const std::uint64_t words[3] = {header.sequence, header.version, header.count};
  return static_cast<std::uint32_t>(hash(rows, n, hash(words, sizeof words)));
}

// Of every header field but the checksum of the header itself; the payload's is included.
inline std::uint32_t header_checksum(const RecordHeader& header) noexcept {
  RecordHeader copy = header;
  copy.header_checksum = 0;
  return checksum(&copy, sizeof copy);
}

}  // namespace mpips
