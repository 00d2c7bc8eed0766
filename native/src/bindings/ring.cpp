#include "bindings/ring.hpp"

#include <pybind11/stl.h>

#include <string_view>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "ring/worker_wait.hpp"
#include "shm/shared_memory.hpp"

// The writer of a ring.
namespace mpips {
namespace {

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

void bind_outcome(py::module_& m) {
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
}

// Its state, which it may continue from an earlier launch.
void bind_position(py::class_<RingWriter>& writer) {
  writer
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
      .def("owe_tick", &RingWriter::owe_tick, py::arg("clock"))
      .def_property_readonly("owes_tick", &RingWriter::owes_tick)
      .def("require_whole", &RingWriter::require_whole, py::arg("table"), py::arg("name"))
      .def_property_readonly("replays", &RingWriter::replays)
      .def("is_ahead_of", &RingWriter::is_ahead_of, py::arg("clock"))
      .def_property_readonly("next_sequence", &RingWriter::next_sequence)
      .def_property_readonly("n_cuts", &RingWriter::n_cuts)
      .def_property_readonly("applied", &RingWriter::applied)
      .def_property_readonly("received", &RingWriter::received)
      .def_property_readonly("credits", &RingWriter::credits)
      .def_property("published", &RingWriter::published, &RingWriter::set_published)
      .def("new_parts", &RingWriter::new_parts, py::arg("most"), py::arg("slack"));
}

// Records that are no pushes and no pulls.
void bind_records(py::class_<RingWriter>& writer) {
  writer
      .def(
          "tick",
          [](RingWriter& w, std::uint64_t c, std::uint32_t own_us) {
            return w.write_tick(RecordKind::tick, c, own_us);
          },
          py::arg("clock"), py::arg("own_us") = 0)
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
          py::arg("values").noconvert(), py::arg("done"));
}

// Replies, and waiting for the server.
void bind_waits(py::class_<RingWriter>& writer) {
  writer.def("collect", &RingWriter::collect, WithoutGil())
      .def("open_pulls", &RingWriter::open_pulls)
      .def("collected_before", &RingWriter::open_pulls_end)
      .def(
          "wait_applied",
          [](RingWriter& w, std::uint64_t count, double max_s, bool oversubscribed) {
            return wait_until([&] { return w.applied() >= count; }, max_s, oversubscribed);
          },
          py::arg("count"), py::arg("max_s"), py::arg("oversubscribed"), WithoutGil())
      .def(
          "wait_received",
          [](RingWriter& w, std::uint64_t count, double max_s, bool oversubscribed) {
            return wait_until([&] { return w.received() >= count; }, max_s, oversubscribed);
          },
          py::arg("count"), py::arg("max_s"), py::arg("oversubscribed"), WithoutGil())
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
          py::arg("before"), py::arg("max_s"), py::arg("oversubscribed"), WithoutGil())
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
          py::arg("max_s"), py::arg("oversubscribed"), WithoutGil());
}

// Versions of values: those that pulls have brought and those that pushes were computed on.
void bind_versions(py::class_<RingWriter>& writer) {
  writer.def("pushed_before", &RingWriter::pushed_before, py::arg("table"))
      .def("base_version", &RingWriter::base_version, py::arg("table"))
      .def("set_base_version", &RingWriter::set_base_version, py::arg("table"), py::arg("version"))
      .def("set_bound", &RingWriter::set_bound, py::arg("table"), py::arg("bound"))
      .def("set_switch", &RingWriter::set_switch, py::arg("clock"))
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
          py::arg("sequence"));
}

// Results of pushes, counters and the trace.
void bind_results(py::class_<RingWriter>& writer) {
  writer
      .def(
          "set_trace",
          [](RingWriter& w, TraceRing* trace, std::uint16_t server) { w.set_trace(trace, server); },
          py::arg("trace").none(true), py::arg("server"), py::keep_alive<1, 2>())
      .def(
          "set_pull_log",
          [](RingWriter& w, PullLog* log, std::size_t server) { w.set_pull_log(log, server); },
          py::arg("log"), py::arg("server"), py::keep_alive<1, 2>())
      .def("count_credit_stall", &RingWriter::count_credit_stall)
      .def("count_pulled", &RingWriter::count_pulled, py::arg("bytes"))
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

}  // namespace

void register_ring(py::module_& m) {
  py::register_exception<ReplayMismatch>(m, "ReplayMismatch");
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const InterruptedPush& error) {
      const py::object type = py::module_::import("mpips.errors").attr("MpipsError");
      PyErr_SetString(type.ptr(), error.what());
    }
  });
  bind_outcome(m);
  py::class_<RingWriter> writer(m, "RingWriter");
  writer.def(py::init([](SharedMemory& memory, std::size_t offset, const RingGeometry& geometry,
                         std::uint16_t worker, std::uint32_t generation, bool checksums,
                         std::size_t n_tables) {
               if (offset + geometry.mailbox_bytes() > memory.writable_bytes())
                 throw py::value_error("the mailbox lies outside the writable memory");
               return RingWriter(memory.data() + offset, geometry, worker, generation, checksums,
                                 n_tables);
             }),
             py::arg("memory"), py::arg("offset"), py::arg("geometry"), py::arg("worker"),
             py::arg("generation"), py::arg("checksums"), py::arg("n_tables"),
             py::keep_alive<1, 2>());
  bind_position(writer);
  bind_records(writer);
  bind_dense_pushes(writer);
  bind_rows(writer);
  bind_waits(writer);
  bind_versions(writer);
  bind_results(writer);
}

}  // namespace mpips
