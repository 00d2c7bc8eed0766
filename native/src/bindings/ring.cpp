#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "bindings/rows.hpp"
#include "ring/dense_view.hpp"
#include "ring/ring_writer.hpp"
#include "ring/worker_wait.hpp"
#include "shm/shared_memory.hpp"

namespace py = pybind11;

namespace mpips {
namespace {

py::array memory_view(const py::object& owner, std::size_t offset, std::size_t bytes,
                      bool writable) {
  const auto& m = owner.cast<const SharedMemory&>();
  if (offset > m.size() || bytes > m.size() - offset)
    throw py::index_error("bytes " + std::to_string(offset) + " to " +
                          std::to_string(offset + bytes) + " of a memory of " +
                          std::to_string(m.size()) + " bytes: out of range");
  if (writable && offset + bytes > m.writable_bytes())
    throw py::value_error("this part of the shared memory is read-only here");
  py::array_t<std::uint8_t> view(static_cast<py::ssize_t>(bytes), m.data() + offset, owner);
  if (!writable)
    py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return view;
}

py::array dense_view(const py::object& owner, const Layout& layout, std::uint32_t table) {
  const DenseExtent& d = layout.extent(table);
  const auto& m = owner.cast<const SharedMemory&>();
  py::array_t<float> view(static_cast<py::ssize_t>(d.n),
                          reinterpret_cast<const float*>(m.data() + d.values), owner);
  py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return view;
}

void bind_memory(py::module_& m) {
  auto& error =
      py::register_exception<SharedMemoryError>(m, "SharedMemoryError", PyExc_RuntimeError);
  py::register_exception<SharedMemoryBusy>(m, "SharedMemoryBusy", error);
  py::class_<SharedMemory>(m, "SharedMemory")
      .def_static("create", &SharedMemory::create, py::arg("name"), py::arg("n_bytes"),
                  py::arg("reserve"))
      .def_static("create_sparse", &SharedMemory::create_sparse, py::arg("name"),
                  py::arg("n_bytes"))
      .def_static("anonymous", &SharedMemory::anonymous, py::arg("n_bytes"), py::arg("reserve"),
                  py::arg("huge") = true)
      .def_static("attach", &SharedMemory::attach, py::arg("name"), py::arg("writable"))
      .def_static("reopen", &SharedMemory::reopen, py::arg("name"), py::arg("reserve"))
      .def_static("remove_if_unused", &SharedMemory::remove_if_unused, py::arg("name"))
      .def_property_readonly("name", &SharedMemory::name)
      .def_property_readonly("n_bytes", &SharedMemory::size)
      .def_property_readonly(
          "address",
          [](const SharedMemory& s) { return reinterpret_cast<std::uintptr_t>(s.data()); })
      .def("grow", &SharedMemory::grow, py::arg("n_bytes"))
      .def("commit", &SharedMemory::commit, py::arg("offset"), py::arg("n_bytes"))
      .def("unlink", &SharedMemory::unlink)
      .def("keep", &SharedMemory::keep)
      .def("view", &memory_view, py::arg("offset"), py::arg("n_bytes"), py::arg("writable"));
}

void write_header(SharedMemory& memory, const Layout& layout, std::uint32_t generation,
                  std::uint32_t server, std::uint64_t token_low, std::uint64_t token_high) {
  RegionHeader h{};
  h.version = layout_version;
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
  return h.magic == region_magic && h.version == layout_version && h.generation == generation &&
         h.server == server && h.token[0] == token_low && h.token[1] == token_high &&
         h.n_workers == layout.n_workers() && h.n_slots == layout.geometry().n_slots &&
         h.slot_bytes == layout.geometry().slot_bytes && h.total_bytes == layout.total_bytes();
}

void bind_layout(py::module_& m) {
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
  m.def("write_region_header", &write_header, py::arg("memory"), py::arg("layout"),
        py::arg("generation"), py::arg("server"), py::arg("token_low"), py::arg("token_high"));
  m.def("region_header_matches", &header_matches, py::arg("header"), py::arg("layout"),
        py::arg("generation"), py::arg("server"), py::arg("token_low"), py::arg("token_high"));
  m.attr("BLOCK_FLOATS") = block_floats;
  m.attr("LINE_BYTES") = line_bytes;
  m.attr("FINISHED_CLOCK") = finished_clock;
  m.attr("HEAD_BYTES") = sizeof(TableHead);
  m.attr("CLOCK_LINE_BYTES") = sizeof(ClockLine);
  m.def("dense_view", &dense_view, py::arg("memory"), py::arg("layout"), py::arg("table"));
}

const float* base_or_null(const std::optional<FloatArray>& base, const FloatArray& update) {
  if (!base) return nullptr;
  if (base->size() != update.size())
    throw py::value_error("base has shape " + shape_text(*base) +
                          ", expected that of the update, " + shape_text(update));
  return base->data();
}

py::dict counters_dict(const PushCounters& c) {
  const auto of = [&](Outcome o) { return c.outcomes[static_cast<std::size_t>(o)]; };
  py::dict d;
  d["pushed"] = c.pushed;
  d["applied"] = of(Outcome::applied) + of(Outcome::scaled) + of(Outcome::compensated) +
                 of(Outcome::accumulated);
  d["scaled"] = of(Outcome::scaled);
  d["compensated"] = of(Outcome::compensated);
  d["rejected"] = of(Outcome::rejected);
  d["late"] = of(Outcome::late);
  d["max_staleness"] = c.max_staleness;
  d["staleness_sum"] = c.staleness_sum;
  d["credit_stalls"] = c.credit_stalls;
  d["pushed_bytes"] = c.pushed_bytes;
  d["pulled_bytes"] = c.pulled_bytes;
  d["push_saved_bytes"] = c.push_saved_bytes;
  d["pull_saved_bytes"] = c.pull_saved_bytes;
  return d;
}

void bind_writer(py::module_& m) {
  py::enum_<Outcome>(m, "Outcome")
      .value("NONE", Outcome::none)
      .value("APPLIED", Outcome::applied)
      .value("SCALED", Outcome::scaled)
      .value("COMPENSATED", Outcome::compensated)
      .value("REJECTED", Outcome::rejected)
      .value("LATE", Outcome::late)
      .value("ACCUMULATED", Outcome::accumulated)
      .value("ANSWERED", Outcome::answered)
      .value("SEGMENT", Outcome::segment);
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<RingWriter> writer(m, "RingWriter");
  bind_planned_rows(writer);
  writer
      .def(py::init([](SharedMemory& memory, std::size_t offset, const RingGeometry& geometry,
                       std::uint16_t worker, std::uint32_t generation, bool checksums,
                       std::size_t n_tables) {
             if (offset + geometry.mailbox_bytes() > memory.writable_bytes())
               throw py::value_error("the mailbox lies outside the writable memory");
             return RingWriter(memory.data() + offset, geometry, worker, generation, checksums,
                               n_tables);
           }),
           py::arg("memory"), py::arg("offset"), py::arg("geometry"), py::arg("worker"),
           py::arg("generation"), py::arg("checksums"), py::arg("n_tables"), py::keep_alive<1, 2>())
      .def(
          "resume",
          [](RingWriter& w, std::uint64_t sequence, std::uint64_t applied, std::uint64_t clock,
             bool finished, std::uint64_t pushes, std::uint64_t tag,
             std::vector<std::pair<std::uint64_t, std::uint64_t>> ended, bool skips_clocks) {
            w.resume(sequence, applied,
                     {clock, finished, pushes, tag, std::move(ended), skips_clocks});
          },
          py::arg("sequence"), py::arg("applied"), py::arg("clock"), py::arg("finished"),
          py::arg("pushes"), py::arg("tag"), py::arg("ended"), py::arg("skips_clocks"))
      .def_property_readonly("replays", &RingWriter::replays)
      .def("is_ahead_of", &RingWriter::is_ahead_of, py::arg("clock"))
      .def_property_readonly("next_sequence", &RingWriter::next_sequence)
      .def_property_readonly("applied", &RingWriter::applied)
      .def_property_readonly("received", &RingWriter::received)
      .def_property_readonly("credits", &RingWriter::credits)
      .def_property("published", &RingWriter::published, &RingWriter::set_published)
      .def(
          "tick", [](RingWriter& w, std::uint64_t c) { return w.write_tick(RecordKind::tick, c); },
          py::arg("clock"))
      .def(
          "finish",
          [](RingWriter& w, std::uint64_t c) { return w.write_tick(RecordKind::finish, c); },
          py::arg("clock"))
      .def(
          "cut",
          [](RingWriter& w, std::uint64_t clock, std::uint64_t id, std::uint64_t described,
             const py::bytes& payload) {
            const auto bytes = static_cast<std::string_view>(payload);
            return w.write_cut(clock, id, described, bytes.data(), bytes.size());
          },
          py::arg("clock"), py::arg("id"), py::arg("described"), py::arg("payload"))
      .def("set_closing", &RingWriter::set_closing, py::arg("closing"))
      .def("configure", &RingWriter::configure, py::arg("table"), py::arg("clock"),
           py::arg("ordinal"), py::arg("config"))
      .def(
          "store",
          [](RingWriter& w, std::uint16_t table, std::uint64_t clock, std::uint16_t slot,
             std::uint64_t steps, std::uint64_t offset, const FloatArray& values,
             std::size_t done) {
            py::gil_scoped_release release;
            return w.store(table, clock, slot, steps, offset, values.data(),
                           static_cast<std::size_t>(values.size()), done);
          },
          py::arg("table"), py::arg("clock"), py::arg("slot"), py::arg("steps"), py::arg("offset"),
          py::arg("values").noconvert(), py::arg("done"))
      .def(
          "push_dense",
          [](RingWriter& w, std::uint16_t table, std::uint64_t clock, const FloatArray& update,
             const std::optional<FloatArray>& base, std::size_t done) {
            const float* b = base_or_null(base, update);
            py::gil_scoped_release release;
            return w.push_dense(table, clock, update.data(), b,
                                static_cast<std::size_t>(update.size()), done);
          },
          py::arg("table"), py::arg("clock"), py::arg("update").noconvert(),
          py::arg("base").noconvert(), py::arg("done"))
      .def(
          "push_encoded",
          [](RingWriter& w, std::uint16_t table, std::uint64_t clock, const Codec& codec,
             const FloatArray& tensor, std::size_t begin, std::size_t end, std::uint64_t random_key,
             std::size_t done) {
            const auto whole = static_cast<std::size_t>(tensor.size());
            if (begin > end || end > whole || done > end - begin || codec.kind == CodecKind::none)
              throw py::value_error("values " + std::to_string(begin) + " to " +
                                    std::to_string(end) + " of a tensor of " +
                                    std::to_string(whole) + ": out of range, or no codec");
            const float* from = tensor.data();
            py::gil_scoped_release release;
            return w.push_encoded(table, clock, codec, from, whole, begin, end - begin, random_key,
                                  done);
          },
          py::arg("table"), py::arg("clock"), py::arg("codec"), py::arg("tensor").noconvert(),
          py::arg("begin"), py::arg("end"), py::arg("random_key"), py::arg("done"))
      .def(
          "push_feedback",
          [](RingWriter& w, std::uint16_t table, std::uint64_t clock, Feedback& feedback,
             const FloatArray& update, std::uint64_t random_key) {
            if (static_cast<std::size_t>(update.size()) != feedback.n())
              throw py::value_error("the update has " + std::to_string(update.size()) +
                                    " values, the residual has " + std::to_string(feedback.n()));
            const float* from = update.data();
            py::gil_scoped_release release;
            return w.push_feedback(table, clock, &feedback, from, random_key);
          },
          py::arg("table"), py::arg("clock"), py::arg("feedback"), py::arg("update").noconvert(),
          py::arg("random_key"))
      .def(
          "push_staged",
          [](RingWriter& w, std::uint16_t table, std::uint64_t clock, std::uint64_t offset,
             std::optional<std::uint64_t> base_offset, std::size_t n) {
            return w.push_staged(table, clock, {offset, base_offset.value_or(~std::uint64_t{0})},
                                 n);
          },
          py::arg("table"), py::arg("clock"), py::arg("offset"), py::arg("base_offset"),
          py::arg("n"))
      .def(
          "push_area",
          [](RingWriter& w, std::uint16_t table, std::uint64_t clock, std::uint64_t offset,
             std::optional<std::uint64_t> checksum, std::size_t done, std::size_t count,
             std::size_t n) {
            return w.push_area(table, clock, {offset, checksum.value_or(0)}, !checksum, done, count,
                               n);
          },
          py::arg("table"), py::arg("clock"), py::arg("offset"), py::arg("checksum"),
          py::arg("done"), py::arg("count"), py::arg("n"))
      .def(
          "push_rows",
          [](RingWriter& w, std::uint16_t table, std::uint64_t clock, const KeyArray& keys,
             const FloatArray& rows, const std::optional<FloatArray>& base, std::size_t done) {
            const auto n = static_cast<std::size_t>(keys.size());
            const std::size_t dim = row_length(keys, rows);
            const float* b = base_or_null(base, rows);
            py::gil_scoped_release release;
            return w.push_rows(table, clock, {keys.data(), rows.data(), b, n, dim}, done);
          },
          py::arg("table"), py::arg("clock"), py::arg("keys").noconvert(),
          py::arg("rows").noconvert(), py::arg("base").noconvert(), py::arg("done"))
      .def(
          "pull_rows",
          [](RingWriter& w, std::uint16_t table, std::uint64_t clock, const KeyArray& keys,
             FloatArray& out, std::size_t done) {
            const auto n = static_cast<std::size_t>(keys.size());
            const std::size_t dim = row_length(keys, out);
            float* to = out.mutable_data();
            py::gil_scoped_release release;
            return w.pull_rows(table, clock, {keys.data(), to, n, dim}, done);
          },
          py::arg("table"), py::arg("clock"), py::arg("keys").noconvert(),
          py::arg("out").noconvert(), py::arg("done"))
      .def("collect", &RingWriter::collect, Release())
      .def("open_pulls", &RingWriter::open_pulls)
      .def("collected_before", &RingWriter::open_pulls_end)
      .def(
          "wait_applied",
          [](RingWriter& w, std::uint64_t count, double max_s, bool oversubscribed) {
            return wait_until([&] { return w.applied() >= count; }, max_s, oversubscribed);
          },
          py::arg("count"), py::arg("max_s"), py::arg("oversubscribed"), Release())
      .def(
          "wait_received",
          [](RingWriter& w, std::uint64_t count, double max_s, bool oversubscribed) {
            return wait_until([&] { return w.received() >= count; }, max_s, oversubscribed);
          },
          py::arg("count"), py::arg("max_s"), py::arg("oversubscribed"), Release())
      .def(
          "wait_collected",
          [](RingWriter& w, std::uint64_t before, double max_s, bool oversubscribed) {
            return wait_until(
                [&] {
                  w.collect();
                  return w.open_pulls_end() >= before;
                },
                max_s, oversubscribed);
          },
          py::arg("before"), py::arg("max_s"), py::arg("oversubscribed"), Release())
      .def(
          "wait_credit",
          [](RingWriter& w, double max_s, bool oversubscribed) {
            return wait_until(
                [&] {
                  w.collect();
                  return w.credits() > 0;
                },
                max_s, oversubscribed);
          },
          py::arg("max_s"), py::arg("oversubscribed"), Release())
      .def(
          "set_trace",
          [](RingWriter& w, TraceRing* trace, std::uint16_t server) { w.set_trace(trace, server); },
          py::arg("trace").none(true), py::arg("server"), py::keep_alive<1, 2>())
      .def("count_credit_stall", &RingWriter::count_credit_stall)
      .def("count_pulled", &RingWriter::count_pulled, py::arg("bytes"))
      .def("pushed_before", &RingWriter::pushed_before, py::arg("table"))
      .def("base_version", &RingWriter::base_version, py::arg("table"))
      .def("set_base_version", &RingWriter::set_base_version, py::arg("table"), py::arg("version"))
      .def(
          "name_base",
          [](RingWriter& w, std::uint16_t table, std::optional<std::uint64_t> version) {
            w.name_base(table, version.value_or(RingWriter::unnamed));
          },
          py::arg("table"), py::arg("version").none(true))
      .def(
          "pulled_version",
          [](const RingWriter& w, std::uint64_t sequence) -> std::optional<std::uint64_t> {
            const std::uint64_t version = w.pulled_version(sequence);
            if (version == RingWriter::unnamed) return std::nullopt;
            return version;
          },
          py::arg("sequence"))
      .def(
          "pulled_clock",
          [](const RingWriter& w, std::uint64_t sequence) -> std::optional<std::uint64_t> {
            const std::uint64_t clock = w.pulled_clock(sequence);
            if (clock == RingWriter::unnamed) return std::nullopt;
            return clock;
          },
          py::arg("sequence"))
      .def(
          "result",
          [](RingWriter& w, std::uint64_t sequence) {
            const std::uint64_t word = w.result(sequence);
            return std::make_pair(outcome_of(word), staleness_of(word));
          },
          py::arg("sequence"))
      .def("counters", [](RingWriter& w) { return counters_dict(w.counters()); })
      .def("known_counters", [](RingWriter& w) { return counters_dict(w.known_counters()); })
      .def_property_readonly("known_queue", &RingWriter::known_queue);
}

// Return the words of a table's head as (version, min_clock), or None while they are being written.
std::optional<std::pair<std::uint64_t, std::uint64_t>> read_head(const SharedMemory& memory,
                                                                 std::size_t offset) {
  if (offset + sizeof(TableHead) > memory.size())
    throw py::index_error("a table head at byte " + std::to_string(offset) + " of a memory of " +
                          std::to_string(memory.size()) + " bytes: out of range");
  const auto* head = reinterpret_cast<const TableHead*>(memory.data() + offset);
  std::pair<std::uint64_t, std::uint64_t> p;
  if (!read_pair(&head->version, &p.first) || !read_pair(&head->min_clock, &p.second))
    return std::nullopt;
  return p;
}

std::optional<std::uint64_t> read_word(const SharedMemory& memory, std::size_t offset) {
  if (offset + sizeof(PairWord) > memory.size())
    throw py::index_error("a word at byte " + std::to_string(offset) + " of a memory of " +
                          std::to_string(memory.size()) + " bytes: out of range");
  std::uint64_t value = 0;
  if (!read_pair(reinterpret_cast<const PairWord*>(memory.data() + offset), &value))
    return std::nullopt;
  return value;
}

bool copy_dense_range(const SharedMemory& memory, const Layout& layout, std::uint32_t table,
                      FloatArray& out, double max_s, bool oversubscribed) {
  const DenseExtent& d = layout.extent(table);
  if (static_cast<std::uint64_t>(out.size()) != d.n)
    throw py::value_error("out has " + std::to_string(out.size()) + " values, expected " +
                          std::to_string(d.n));
  const auto* versions = reinterpret_cast<const PairWord*>(memory.data() + d.versions);
  const auto* values = reinterpret_cast<const float*>(memory.data() + d.values);
  float* to = out.mutable_data();
  py::gil_scoped_release release;
  if (d.image != 0)
    return copy_image(versions, memory.data() + d.image, d, to, now_s() + max_s, oversubscribed);
  return copy_dense(versions, values, 0, d.n, to, now_s() + max_s, oversubscribed);
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

void bind_reads(py::module_& m) {
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
      py::arg("max_s"), py::arg("oversubscribed"), py::call_guard<py::gil_scoped_release>());
  m.def("copy_dense", &copy_dense_range, py::arg("memory"), py::arg("layout"), py::arg("table"),
        py::arg("out").noconvert(), py::arg("max_s"), py::arg("oversubscribed"));
  m.def("unstable_blocks", &unstable_blocks, py::arg("before").noconvert(),
        py::arg("after").noconvert());
}

}  // namespace

void register_ring(py::module_& m) {
  py::register_exception<ReplayMismatch>(m, "ReplayMismatch");
  bind_memory(m);
  bind_layout(m);
  bind_writer(m);
  bind_reads(m);
}

}  // namespace mpips
