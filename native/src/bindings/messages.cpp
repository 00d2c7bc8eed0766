#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"

// The most frequent message of a worker on another node; mpips.transport.p2p_service has the
// others.
namespace mpips {
namespace {

struct MessageHead {
  std::uint64_t operation, offset, bytes, count;
};

// Copy the bytes of a small put from a message into a region.
//
// Returns the put's count; -1, with nothing copied, for another operation, a put without bytes, and
// a range that is not inside [start, stop).
std::int64_t take_put(const ByteArray& message, std::size_t n_bytes, ByteArray& region,
                      std::uint64_t put, std::uint64_t start, std::uint64_t stop) {
  MessageHead head;
  n_bytes = std::min(n_bytes, static_cast<std::size_t>(message.size()));
  stop = std::min(stop, static_cast<std::uint64_t>(region.size()));
  if (n_bytes <= sizeof head) return -1;
  std::memcpy(&head, message.data(), sizeof head);
  if (head.operation != put || head.bytes != n_bytes - sizeof head) return -1;
  if (head.offset < start || head.offset > stop || head.bytes > stop - head.offset) return -1;
  std::memcpy(region.mutable_data() + head.offset, message.data() + sizeof head, head.bytes);
  return static_cast<std::int64_t>(head.count);
}

}  // namespace

void register_messages(py::module_& m) {
  m.def("take_put", &take_put, py::arg("message").noconvert(), py::arg("n_bytes"),
        py::arg("region").noconvert(), py::arg("put"), py::arg("start"), py::arg("stop"));
}

}  // namespace mpips
