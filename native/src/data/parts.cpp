#include "data/parts.hpp"

#include <unistd.h>

#include <cerrno>

namespace mpips::data {

std::size_t read_parts(const FilePart* parts, std::size_t n, char* out, int& error) noexcept {
  error = 0;
  for (std::size_t i = 0; i < n; ++i) {
    std::int64_t done = 0;
    while (done < parts[i].length) {
      const ssize_t got =
          pread(static_cast<int>(parts[i].file), out + parts[i].place + done,
                static_cast<std::size_t>(parts[i].length - done), parts[i].offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        error = got < 0 ? errno : 0;
        return i;
      }
      done += got;
    }
  }
  return n;
}

}  // namespace mpips::data
