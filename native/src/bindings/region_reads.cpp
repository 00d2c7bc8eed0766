#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "ring/dense_view.hpp"
#include "ring/layout.hpp"
#include "ring/worker_wait.hpp"
#include "shm/shared_memory.hpp"

// Reads of a region by a worker: heads of tables, words, and the values of dense tables.
namespace mpips {
namespace {

void require_inside(const SharedMemory& memory, std::size_t offset, std::size_t bytes,
                    const char* what) {
  if (offset + bytes > memory.size())
    throw py::index_error(std::string(what) + " at byte " + std::to_string(offset) +
                          " of a memory of " + std::to_string(memory.size()) +
                          " bytes: out of range");
}

// Return the words of a table's head as (version, min_clock), or None while they are being written.
std::optional<std::pair<std::uint64_t, std::uint64_t>> read_head(const SharedMemory& memory,
                                                                 std::size_t offset) {
  require_inside(memory, offset, sizeof(TableHead), "a table head");
  const auto* head = reinterpret_cast<const TableHead*>(memory.data() + offset);
  std::pair<std::uint64_t, std::uint64_t> p;
  if (!read_pair(&head->version, &p.first) || !read_pair(&head->min_clock, &p.second))
    return std::nullopt;
  return p;
}

std::optional<std::uint64_t> read_word(const SharedMemory& memory, std::size_t offset) {
  require_inside(memory, offset, sizeof(PairWord), "a word");
  std::uint64_t value = 0;
  if (!read_pair(reinterpret_cast<const PairWord*>(memory.data() + offset), &value))
    return std::nullopt;
  return value;
}

void require_length(const FloatArray& out, const DenseExtent& d) {
  if (static_cast<std::uint64_t>(out.size()) != d.n)
    throw py::value_error("out has " + std::to_string(out.size()) + " values, expected " +
                          std::to_string(d.n));
}

bool copy_dense_range(const SharedMemory& memory, const Layout& layout, std::uint32_t table,
                      FloatArray& out, double max_s, bool oversubscribed) {
  const DenseExtent& d = layout.extent(table);
  require_length(out, d);
  const auto* versions = reinterpret_cast<const PairWord*>(memory.data() + d.versions);
  const auto* values = reinterpret_cast<const float*>(memory.data() + d.values);
  float* to = out.mutable_data();
  py::gil_scoped_release release;
  if (d.image != 0)
    return copy_image(versions, memory.data() + d.image, d, to, now_s() + max_s, oversubscribed);
  return copy_dense(versions, values, 0, d.n, to, now_s() + max_s, oversubscribed);
}

// Copy a state of the rule. The version words guard it like the values: every update changes a
// block's values and state while its word is odd.
bool copy_state(const SharedMemory& memory, const Layout& layout, std::uint32_t table,
                std::size_t slot, FloatArray& out, double max_s, bool oversubscribed) {
  const DenseExtent& d = layout.extent(table);
  require_length(out, d);
  const std::size_t at = d.state_of(slot);
  require_inside(memory, at, d.n * sizeof(float), "a state");
  const auto* versions = reinterpret_cast<const PairWord*>(memory.data() + d.versions);
  const auto* state = reinterpret_cast<const float*>(memory.data() + at);
  float* to = out.mutable_data();
  py::gil_scoped_release release;
  return copy_dense(versions, state, 0, d.n, to, now_s() + max_s, oversubscribed);
}

// Return the blocks whose two readings differ, or are not whole, or are odd; for remote reads.
std::vector<std::size_t> unstable_blocks(const ByteArray& before, const ByteArray& after) {
  if (before.size() != after.size())
    throw py::value_error("before has " + std::to_string(before.size()) + " bytes, after has " +
                          std::to_string(after.size()) + ": must be equal");
  std::vector<std::size_t> list;
  const auto n = static_cast<std::size_t>(before.size()) / sizeof(PairWord);
  const auto* a = reinterpret_cast<const PairWord*>(before.data());
  const auto* b = reinterpret_cast<const PairWord*>(after.data());
  for (std::size_t i = 0; i < n; ++i)
    if (a[i].value != ~a[i].complement || a[i].value != b[i].value || (a[i].value & 1) != 0)
      list.push_back(i);
  return list;
}

}  // namespace

void register_region_reads(py::module_& m) {
  m.def("read_head", &read_head, py::arg("memory"), py::arg("offset"));
  m.def("read_word", &read_word, py::arg("memory"), py::arg("offset"));
  m.def(
      "wait_head",
      [](const SharedMemory& memory, std::size_t offset, std::uint64_t version,
         std::uint64_t min_clock, double max_s, bool oversubscribed) {
        const auto* head = reinterpret_cast<const TableHead*>(memory.data() + offset);
        return wait_until([&] { return head_reached(head, version, min_clock); }, max_s,
                          oversubscribed);
      },
      py::arg("memory"), py::arg("offset"), py::arg("version"), py::arg("min_clock"),
      py::arg("max_s"), py::arg("oversubscribed"), WithoutGil());
  m.def("copy_dense", &copy_dense_range, py::arg("memory"), py::arg("layout"), py::arg("table"),
        py::arg("out").noconvert(), py::arg("max_s"), py::arg("oversubscribed"));
  m.def("copy_state", &copy_state, py::arg("memory"), py::arg("layout"), py::arg("table"),
        py::arg("slot"), py::arg("out").noconvert(), py::arg("max_s"), py::arg("oversubscribed"));
  m.def("unstable_blocks", &unstable_blocks, py::arg("before").noconvert(),
        py::arg("after").noconvert());
}

}  // namespace mpips
