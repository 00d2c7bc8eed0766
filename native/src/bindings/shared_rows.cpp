#include "reduction/shared_rows.hpp"

#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "shm/shared_memory.hpp"

namespace mpips {
namespace {

// The rows that a group shares, together with the memory that they use.
struct BoundRows {
  SharedRows rows;
  py::object memory;

  void check(const KeyArray& slots, bool may_be_none) const {
    require_vector(slots, "slots");
    for (std::size_t i = 0; i < length(slots); ++i) {
      const std::int64_t slot = slots.data()[i];
      if (slot >= static_cast<std::int64_t>(rows.n_slots()) || slot < SharedRows::none ||
          (slot == SharedRows::none && !may_be_none))
        throw py::index_error("slot " + std::to_string(slot) + " of " +
                              std::to_string(rows.n_slots()));
    }
  }
  std::size_t dim_of(const FloatArray& array, const KeyArray& slots, const char* name) const {
    const std::size_t dim = require_rows(array, length(slots), name);
    if (dim > rows.stride())
      throw py::value_error(std::string(name) + " has rows of length " + std::to_string(dim) +
                            ", expected at most " + std::to_string(rows.stride()));
    return dim;
  }
};

std::unique_ptr<BoundRows> make_shared_rows(py::object memory, std::size_t offset,
                                            std::size_t n_bytes, std::size_t stride,
                                            std::size_t worker, std::size_t n_workers,
                                            bool oversubscribed) {
  const auto& file = memory.cast<const SharedMemory&>();
  if (worker >= n_workers || stride == 0 || offset % line_bytes != 0 ||
      offset > file.writable_bytes() || n_bytes > file.writable_bytes() - offset)
    throw py::value_error("memory, rows and workers do not fit together");
  return std::make_unique<BoundRows>(BoundRows{
      SharedRows(file.data() + offset, n_bytes, stride, worker, n_workers, oversubscribed),
      memory});
}

std::pair<KeyArray, ByteArray> claim(BoundRows& b, std::uint64_t table, std::uint64_t clock,
                                     const KeyArray& keys) {
  require_vector(keys, "keys");
  KeyArray slots(keys.shape(0));
  ByteArray others(keys.shape(0));
  const std::int64_t* from = keys.data();
  std::int64_t* to = slots.mutable_data();
  std::uint8_t* flags = others.mutable_data();
  {
    const ReleaseGil release;
    b.rows.claim(table, clock, from, length(keys), to, flags);
  }
  return {slots, others};
}

}  // namespace

void register_shared_rows(py::module_& m) {
  using B = BoundRows;
  py::class_<B>(m, "SharedRows")
      .def(py::init(&make_shared_rows), py::arg("memory"), py::arg("offset"), py::arg("n_bytes"),
           py::arg("stride"), py::arg("worker"), py::arg("n_workers"), py::arg("oversubscribed"))
      .def_property_readonly("n_slots", [](const B& b) { return b.rows.n_slots(); })
      .def("claim", &claim, py::arg("table"), py::arg("clock"), py::arg("keys").noconvert())
      .def(
          "publish",
          [](B& b, std::uint64_t clock, const KeyArray& slots, const FloatArray& rows) {
            b.check(slots, true);
            const std::size_t dim = b.dim_of(rows, slots, "rows");
            const ReleaseGil release;
            b.rows.publish(clock, slots.data(), length(slots), rows.data(), dim);
          },
          py::arg("clock"), py::arg("slots").noconvert(), py::arg("rows").noconvert())
      .def(
          "give_up",
          [](B& b, std::uint64_t clock, const KeyArray& slots) {
            b.check(slots, true);
            b.rows.give_up(clock, slots.data(), length(slots));
          },
          py::arg("clock"), py::arg("slots").noconvert())
      .def(
          "left",
          [](const B& b, const KeyArray& slots) {
            b.check(slots, false);
            ByteArray left(slots.shape(0));
            b.rows.find_left(slots.data(), length(slots), left.mutable_data());
            return left;
          },
          py::arg("slots").noconvert())
      .def(
          "wait_ready",
          [](const B& b, std::uint64_t clock, const KeyArray& slots, std::size_t from,
             double max_s) {
            b.check(slots, false);
            const ReleaseGil release;
            return b.rows.wait_ready(clock, slots.data(), length(slots), from, max_s);
          },
          py::arg("clock"), py::arg("slots").noconvert(), py::arg("from_"), py::arg("max_s"))
      .def(
          "copy",
          [](const B& b, const KeyArray& slots, FloatArray& out) {
            b.check(slots, false);
            const std::size_t dim = b.dim_of(out, slots, "out");
            float* to = out.mutable_data();
            const ReleaseGil release;
            b.rows.copy(slots.data(), length(slots), dim, to);
          },
          py::arg("slots").noconvert(), py::arg("out").noconvert())
      .def(
          "claimant",
          [](const B& b, std::size_t slot) {
            if (slot >= b.rows.n_slots())
              throw py::index_error("slot " + std::to_string(slot) + " of " +
                                    std::to_string(b.rows.n_slots()));
            return b.rows.claimant(slot);
          },
          py::arg("slot"));
}

}  // namespace mpips
