#include <pybind11/pybind11.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "kernels/kernel_table.hpp"

namespace py = pybind11;

namespace mpips {
namespace {

// XXH3-64 of bytes that are added in pieces; it does not depend on where the pieces are cut.
class Xxh3 {
 public:
  Xxh3() : state_(XXH3_createState()) {
    if (state_ == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(state_.get());
  }
  void update(const void* data, std::size_t n) noexcept {
    kernels().hash_more(state_.get(), data, n);
  }
  std::uint64_t digest() const noexcept { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

void update_sum(Xxh3& sum, const py::buffer& data) {
  const py::buffer_info info = data.request();
  if (PyBuffer_IsContiguous(info.view(), 'C') == 0)
    throw py::value_error("a checksum needs a contiguous array or buffer");
  py::gil_scoped_release release;
  sum.update(info.ptr, static_cast<std::size_t>(info.size * info.itemsize));
}

constexpr std::size_t kBlock = 256;  // bytes that are compared and copied together

// Copy the blocks of units that differ, and mark these units. A block that is equal is read but not
// written, so where few have changed this takes less time than a copy. With blocks of 1 KiB it takes
// one and a half times as long where all have changed.
void copy_units(std::uint8_t* to, const std::uint8_t* from, std::size_t n, std::size_t unit,
                std::uint8_t* changed) noexcept {
  for (std::size_t at = 0; at < n; at += unit, ++changed) {
    const std::size_t end = std::min(at + unit, n);
    for (std::size_t block = at; block < end; block += kBlock) {
      const std::size_t count = std::min(kBlock, end - block);
      if (std::memcmp(to + block, from + block, count) == 0) continue;
      std::memcpy(to + block, from + block, count);
      *changed = 1;
    }
  }
}

void copy_changed(ByteArray to, const ByteArray& from, std::size_t unit, ByteArray changed) {
  require_vector(to, "to");
  require_vector(from, "array");
  require_vector(changed, "changed");
  const std::size_t n = length(from);
  if (unit == 0 || length(to) != n || length(changed) != (n + unit - 1) / unit)
    throw py::value_error("arrays of " + std::to_string(length(to)) + " and " + std::to_string(n) +
                          " bytes and " + std::to_string(length(changed)) +
                          " marks do not fit units of " + std::to_string(unit) + " bytes");
  std::uint8_t* const target = to.mutable_data();
  std::uint8_t* const marks = changed.mutable_data();
  ReleaseGil release;
  copy_units(target, from.data(), n, unit, marks);
}

}  // namespace

void register_checkpoint(py::module_& m) {
  py::class_<Xxh3>(m, "Xxh3", "XXH3-64 of arrays that are added in pieces. Not thread-safe.")
      .def(py::init<>())
      .def("update", &update_sum, py::arg("data"),
           "Append the bytes of a contiguous array or buffer. Releases the GIL.")
      .def("digest", &Xxh3::digest, "Return the checksum of all bytes so far.");
  m.def(
      "copy_changed", &copy_changed, py::arg("to").noconvert(), py::arg("array").noconvert(),
      py::arg("unit"), py::arg("changed").noconvert(),
      "Copy an array of bytes onto an equally long one in units of `unit` bytes, the last one "
      "shorter.\n\nSet changed[i] = 1 for each unit that differed, and leave the others. Releases "
      "the GIL.");
}

}  // namespace mpips
