#include "ring/layout.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/register.hpp"
#include "shm/shared_memory.hpp"

// The layout of a region: where a server's tables and the rings of its workers lie.
namespace py = pybind11;

namespace mpips {
namespace {

py::array dense_view(const py::object& owner, const Layout& layout, std::uint32_t table) {
  const DenseExtent& d = layout.extent(table);
  const auto& m = owner.cast<const SharedMemory&>();
  py::array_t<float> view(static_cast<py::ssize_t>(d.n),
                          reinterpret_cast<const float*>(m.data() + d.values), owner);
  py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return view;
}

void write_header(SharedMemory& memory, const Layout& layout, std::uint32_t generation,
                  std::uint32_t server, std::uint64_t token_low, std::uint64_t token_high) {
  RegionHeader h{};
  h.version = memory_format;
  h.generation = generation;
  h.token[0] = token_low;
  h.token[1] = token_high;
  h.server = server;
  h.n_workers = layout.n_workers();
  h.n_slots = layout.geometry().n_slots;
  h.slot_bytes = layout.geometry().slot_bytes;
  h.total_bytes = layout.total_bytes();
  h.magic = region_magic;
  std::memcpy(memory.data(), &h, sizeof h);
}

// Return true if these bytes are the header of the region that the layout describes.
bool header_matches(const py::array_t<std::uint8_t>& bytes, const Layout& layout,
                    std::uint32_t generation, std::uint32_t server, std::uint64_t token_low,
                    std::uint64_t token_high) {
  RegionHeader h{};
  if (static_cast<std::size_t>(bytes.size()) < sizeof h) return false;
  std::memcpy(&h, bytes.data(), sizeof h);
  return h.magic == region_magic && h.version == memory_format && h.generation == generation &&
         h.server == server && h.token[0] == token_low && h.token[1] == token_high &&
         h.n_workers == layout.n_workers() && h.n_slots == layout.geometry().n_slots &&
         h.slot_bytes == layout.geometry().slot_bytes && h.total_bytes == layout.total_bytes();
}

void bind_geometry(py::module_& m) {
  py::class_<RingGeometry>(m, "RingGeometry")
      .def(py::init([](std::uint32_t n_slots, std::uint32_t slot_bytes, bool replies) {
             return RingGeometry{n_slots, slot_bytes, replies};
           }),
           py::arg("n_slots"), py::arg("slot_bytes"), py::arg("replies"))
      .def_readonly("n_slots", &RingGeometry::n_slots)
      .def_readonly("slot_bytes", &RingGeometry::slot_bytes)
      .def_readonly("replies", &RingGeometry::replies)
      .def_property_readonly("results_offset", &RingGeometry::results_offset)
      .def_property_readonly("stamps_offset", &RingGeometry::stamps_offset)
      .def_property_readonly("slots_offset", &RingGeometry::slots_offset)
      .def_property_readonly("answer_bytes", &RingGeometry::answer_bytes)
      .def_property_readonly("record_stride", &RingGeometry::record_stride)
      .def_property_readonly("replies_offset", &RingGeometry::replies_offset)
      .def_property_readonly("mailbox_bytes", &RingGeometry::mailbox_bytes)
      .def_property_readonly("payload_capacity", &RingGeometry::payload_capacity);
}

void bind_layout(py::module_& m) {
  py::class_<Layout>(m, "Layout")
      .def(py::init([](std::uint32_t n_workers, std::uint32_t n_tables, RingGeometry geometry,
                       const std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t,
                                                    std::optional<Codec>>>& dense,
                       std::size_t area_bytes, std::vector<std::uint32_t> near) {
             std::vector<DenseExtent> extents;
             for (const auto& [table, n, n_state, pull] : dense)
               extents.push_back({n, n_state, table, pull.value_or(Codec{})});
             return Layout(n_workers, n_tables, geometry, std::move(extents), area_bytes,
                           std::move(near));
           }),
           py::arg("n_workers"), py::arg("n_tables"), py::arg("geometry"), py::arg("dense"),
           py::arg("area_bytes") = 0, py::arg("near") = std::vector<std::uint32_t>())
      .def_property_readonly("n_workers", &Layout::n_workers)
      .def_property_readonly("geometry", &Layout::geometry)
      .def_property_readonly("awaited_offset", &Layout::awaited)
      .def_property_readonly("clocks_offset", &Layout::clocks)
      .def("head_offset", &Layout::head, py::arg("table"))
      .def("mailbox_offset", &Layout::mailbox, py::arg("worker"))
      .def("area_bytes", &Layout::area_bytes, py::arg("worker"))
      .def_property_readonly("tables_offset", &Layout::tables_offset)
      .def_property_readonly("total_bytes", &Layout::total_bytes)
      .def(
          "dense_offsets",
          [](const Layout& l, std::uint32_t table) {
            const DenseExtent& d = l.extent(table);
            return py::make_tuple(d.versions, d.values, Layout::n_blocks(d.n));
          },
          py::arg("table"))
      .def(
          "dense_state",
          [](const Layout& l, std::uint32_t table, std::size_t slot) {
            return l.extent(table).state_of(slot);
          },
          py::arg("table"), py::arg("slot"))
      .def(
          "updates_offset",
          [](const Layout& l, std::uint32_t table) {
            return l.head(table) + offsetof(TableHead, updates);
          },
          py::arg("table"))
      .def(
          "decision_offset",
          [](const Layout& l, std::uint32_t table) {
            return l.head(table) + offsetof(TableHead, decision);
          },
          py::arg("table"))
      // Return (offset, bytes from block to block, codec) of the image for pulls; None: there is
      // none.
      .def(
          "dense_image",
          [](const Layout& l,
             std::uint32_t table) -> std::optional<std::tuple<std::size_t, std::size_t, Codec>> {
            const DenseExtent& d = l.extent(table);
            if (d.image == 0) return std::nullopt;
            return std::make_tuple(d.image, d.image_stride(), d.pull);
          },
          py::arg("table"))
      // Return the indices of the tables whose pulls are differences.
      .def_property_readonly("common_tables",
                             [](const Layout& l) {
                               std::vector<std::uint32_t> tables;
                               for (const DenseExtent& d : l.dense())
                                 if (d.has_common()) tables.push_back(d.table);
                               return tables;
                             })
      // Return (offset of the head, offset of the copy, codec) of the common copy for pulls; None:
      // there is none.
      .def(
          "dense_common",
          [](const Layout& l,
             std::uint32_t table) -> std::optional<std::tuple<std::size_t, std::size_t, Codec>> {
            const DenseExtent& d = l.extent(table);
            if (!d.has_common()) return std::nullopt;
            return std::make_tuple(d.common_head, d.common, d.pull);
          },
          py::arg("table"));
}

void bind_header(py::module_& m) {
  m.def("write_region_header", &write_header, py::arg("memory"), py::arg("layout"),
        py::arg("generation"), py::arg("server"), py::arg("token_low"), py::arg("token_high"));
  m.def("region_header_matches", &header_matches, py::arg("header"), py::arg("layout"),
        py::arg("generation"), py::arg("server"), py::arg("token_low"), py::arg("token_high"));
}

}  // namespace

void register_layout(py::module_& m) {
  bind_geometry(m);
  bind_layout(m);
  bind_header(m);
  m.attr("BLOCK_FLOATS") = block_floats;
  m.attr("LINE_BYTES") = line_bytes;
  m.attr("FINISHED_CLOCK") = finished_clock;
  m.attr("HEAD_BYTES") = sizeof(TableHead);
  m.attr("CLOCK_LINE_BYTES") = sizeof(ClockLine);
  m.def("dense_view", &dense_view, py::arg("memory"), py::arg("layout"), py::arg("table"));
}

}  // namespace mpips
