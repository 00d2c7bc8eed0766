#pragma once

#include <cstddef>
#include <cstdint>

namespace mpips::data {

// A range of an open file, and the place of its bytes in memory.
struct FilePart {
  std::int64_t file;    // file descriptor
  std::int64_t offset;  // in the file, bytes
  std::int64_t length;  // bytes
  std::int64_t place;   // in memory, bytes
};

// Read the parts one after the other. Return the index of the first part that could not be read,
// with errno, or 0 in errno for a file that is too short; `n` if all were read. The caller has
// checked that all parts lie in `out`.
std::size_t read_parts(const FilePart* parts, std::size_t n, char* out, int& error) noexcept;

}  // namespace mpips::data
