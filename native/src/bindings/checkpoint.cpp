#include <pybind11/pybind11.h>
#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <new>

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

}  // namespace

void register_checkpoint(py::module_& m) {
  py::class_<Xxh3>(m, "Xxh3", "XXH3-64 of arrays that are added in pieces. Not thread-safe.")
      .def(py::init<>())
      .def("update", &update_sum, py::arg("data"),
           "Append the bytes of a contiguous array or buffer. Releases the GIL.")
      .def("digest", &Xxh3::digest, "Return the checksum of all bytes so far.");
}

}  // namespace mpips
