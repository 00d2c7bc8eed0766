#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ring/layout.hpp"
#include "shm/copy.hpp"

// What the files of RingWriter share.
namespace mpips {

// What a record is to the writer of a ring.
constexpr std::uint8_t role_other = 0, role_push_end = 1, role_tick = 2;

// Return the flags of a segment [done, done + count) of a push or pull of n.
inline std::uint16_t segment_flags(std::size_t done, std::size_t count, std::size_t n) noexcept {
  return static_cast<std::uint16_t>((done == 0 ? flag_first : 0) |
                                    (done + count == n ? flag_last : 0));
}

// Copy bytes into a record; return the place behind them.
inline std::uint8_t* append(std::uint8_t* at, const void* from, std::size_t bytes) noexcept {
  copy_bytes(at, from, bytes);
  return at + bytes;
}

}  // namespace mpips
