#include "bindings/server.hpp"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/hot_rows.hpp"
#include "bindings/register.hpp"

namespace mpips {
namespace {

// Return a function that calls back when the server has not entered MPI for `interval_s` seconds; a
// server with remote peers enters MPI there.
Progress throttled(py::object callback, double interval_s, std::shared_ptr<MpiEntries> mpi) {
  if (callback.is_none()) return {};
  auto shared = std::make_shared<py::object>(std::move(callback));
  return [shared, interval_s, mpi] {
    if (!mpi->needed || now_s() - mpi->last_s < interval_s) return;
    py::gil_scoped_acquire acquire;
    (*shared)();
    mpi->last_s = now_s();
  };
}

py::dict stats_dict(const ServerCore& core, std::uint16_t table) {
  const TableStats& s = core.stats(table);
  py::dict d;
  d["pushed"] = s.pushed;
  d["applied"] = s.applied;
  d["scaled"] = s.scaled;
  d["compensated"] = s.compensated;
  d["rejected"] = s.rejected;
  d["late"] = s.late;
  d["updates"] = s.updates;
  d["rows_made"] = s.rows_made;
  d["rows_refused"] = s.rows_refused;
  d["rows_evicted"] = s.rows_evicted;
  d["rows_returned"] = s.rows_returned;
  d["pulled_rows"] = s.pulled_rows;
  d["staleness"] = std::vector<std::uint64_t>(s.staleness.begin(), s.staleness.end());
  return d;
}

// Return what `read_rows` returns for a table of a server; None if its rows are not counted.
py::object hot_rows(Server& server, std::uint16_t table, std::size_t most) {
  RowCounter* counter = server.core().row_counter(table);
  return counter != nullptr ? read_rows(*counter, now_s(), most) : py::object(py::none());
}

py::dict server_counters(Server& server) {
  const ServerCounters& c = server.core().counters();
  py::dict d;
  d["records"] = c.records;
  d["retries"] = c.retries;
  d["clocks"] = c.clocks;
  d["bytes_in"] = c.bytes_in;
  d["bytes_out"] = c.bytes_out;
  return d;
}

// The loop of a server.
void bind_loop(py::class_<Server>& server) {
  server
      .def(
          "set_staging",
          [](Server& s, std::size_t worker, const SharedMemory& memory) {
            s.core().set_staging(worker, {memory.data(), memory.size()});
          },
          py::arg("worker"), py::arg("memory"), py::keep_alive<1, 3>())
      .def(
          "set_patience", [](Server& s, double seconds) { s.core().set_patience(seconds); },
          py::arg("seconds"))
      .def("set_remote_peers", &Server::set_remote_peers, py::arg("any"))
      .def("start", [](Server& s) { s.core().start(); })
      .def(
          "drain",
          [](Server& s, double max_s, std::uint32_t max_sleep_us) {
            return s.core().drain(max_s, max_sleep_us);
          },
          py::arg("max_s"), py::arg("max_sleep_us"), WithoutGil())
      .def(
          "consume",
          [](Server& s, double max_s) {
            s.note_mpi_entry();
            return s.core().consume(max_s);
          },
          "Consume records for `max_s` seconds at most, right after an entry into MPI.",
          py::arg("max_s"), WithoutGil());
}

// Counters, and what is recorded of the records that a server consumes.
void bind_counters(py::class_<Server>& server) {
  server
      .def(
          "stats", [](Server& s, std::uint16_t t) { return stats_dict(s.core(), t); },
          py::arg("table"))
      .def("counters", &server_counters)
      .def(
          "set_trace", [](Server& s, TraceRing* trace) { s.core().set_trace(trace); },
          py::arg("trace").none(true), py::keep_alive<1, 2>())
      .def(
          "set_order_log", [](Server& s, OrderLog* log) { s.core().set_order_log(log); },
          py::arg("log").none(true), py::keep_alive<1, 2>())
      .def("follow", &Server::follow, py::arg("order"), py::arg("gate"), py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>())
      .def("observe_rows", [](Server& s) { s.core().observe_rows(); })
      .def("hot_rows", &hot_rows, py::arg("table"), py::arg("most"))
      .def("queue", [](Server& s) { return s.core().queue(); })
      .def(
          "decide_bounds",
          [](Server& s, std::uint16_t table, std::uint64_t most, std::uint64_t bound) {
            s.core().decide_bounds(table, most, bound);
          },
          py::arg("table"), py::arg("most"), py::arg("bound"))
      .def(
          "set_bound", [](Server& s, std::uint64_t bound) { return s.core().set_bound(bound); },
          py::arg("bound"))
      .def(
          "decide_backups",
          [](Server& s, std::uint16_t table, std::uint64_t most, std::uint64_t backup) {
            s.core().decide_backups(table, most, backup);
          },
          py::arg("table"), py::arg("most"), py::arg("backup"))
      .def(
          "resume_backups",
          [](Server& s, std::uint16_t table, std::uint64_t most) {
            return s.core().resume_backups(table, most);
          },
          py::arg("table"), py::arg("most"))
      .def(
          "set_backup", [](Server& s, std::uint64_t backup) { return s.core().set_backup(backup); },
          py::arg("backup"))
      .def("take_backup_times", [](Server& s) { return s.core().take_backup_times(); })
      .def("open_clock", [](Server& s) { return s.core().clocks().current(); })
      .def("reached_break", [](Server& s) { return s.core().reached_break(); })
      .def("min_clock", [](Server& s) { return s.core().clocks().min_clock(); })
      .def("has_switched", [](Server& s) { return s.core().has_switched(); })
      .def("switch_at", [](Server& s) { return s.core().switch_at(); })
      .def(
          "find_plateau",
          [](Server& s, std::uint64_t every, std::uint64_t pairs, double ratio) {
            s.core().find_plateau(every, pairs, ratio);
          },
          py::arg("every"), py::arg("pairs"), py::arg("ratio"))
      .def(
          "set_switch", [](Server& s, std::uint64_t at) { s.core().set_switch(at); },
          py::arg("clock"))
      .def("hold_switch", [](Server& s) { s.core().hold_switch(); })
      .def(
          "find_uneven",
          [](Server& s, std::uint64_t first, std::uint64_t longest, double least) {
            s.core().find_uneven(first, longest, least);
          },
          py::arg("first"), py::arg("longest"), py::arg("least"))
      // Return the last window of Switch at uneven workers; None: there is none.
      .def("evenness",
           [](Server& s) -> std::optional<Evenness::Estimate> {
             const Evenness* found = s.core().evenness();
             if (found == nullptr || found->last().clocks == 0) return std::nullopt;
             return found->last();
           })
      // Return (|G|^2, s^2) of the last estimate; None: this server does not decide by it.
      .def("plateau",
           [](Server& s) -> std::optional<std::pair<double, double>> {
             const Plateau* found = s.core().plateau();
             if (found == nullptr) return std::nullopt;
             return std::make_pair(found->signal(), found->noise());
           })
      // Return (clocks, seconds) of each worker since the last call.
      .def("take_intervals", [](Server& s) { return pairs_of(s.core().take_intervals()); })
      // Return (threshold, |grad f|^2, sigma^2) of Reject("auto"); None: the table has no such
      // policy.
      .def(
          "delay_threshold",
          [](Server& s,
             std::uint16_t t) -> std::optional<std::tuple<std::uint64_t, double, double>> {
            const DelayThreshold* found = s.core().delay_threshold(t);
            if (found == nullptr) return std::nullopt;
            return std::make_tuple(found->threshold(), found->signal(), found->noise());
          },
          py::arg("table"))
      .def("n_estimates", [](Server& s) { return s.core().n_estimates(); })
      .def(
          "set_delay_threshold",
          [](Server& s, std::uint16_t t, std::uint64_t threshold) {
            s.core().set_delay_threshold(t, threshold);
          },
          py::arg("table"), py::arg("threshold"));
}

// The state of tables and workers.
void bind_state(py::class_<Server>& server) {
  server
      .def(
          "version", [](Server& s, std::uint16_t t) { return s.core().version(t); },
          py::arg("table"))
      .def(
          "optimizer",
          [](Server& s, std::uint16_t t) -> std::optional<OptimizerConfig> {
            const OptimizerConfig* config = s.core().optimizer(t);
            return config != nullptr ? std::optional<OptimizerConfig>(*config) : std::nullopt;
          },
          py::arg("table"))
      .def(
          "configured_at", [](Server& s, std::uint16_t t) { return s.core().configured_at(t); },
          py::arg("table"))
      .def(
          "applied", [](Server& s, std::size_t w) { return s.core().applied(w); },
          py::arg("worker"))
      .def(
          "clock", [](Server& s, std::size_t w) { return s.core().clocks().clock(w); },
          py::arg("worker"))
      .def(
          "finished", [](Server& s, std::size_t w) { return s.core().clocks().finished(w); },
          py::arg("worker"))
      .def(
          "set_stage",
          [](Server& s, std::uint16_t t, std::uint32_t stage, std::uint32_t n_stages) {
            s.core().set_stage(t, stage, n_stages);
          },
          py::arg("table"), py::arg("stage"), py::arg("n_stages"))
      .def(
          "set_name",
          [](Server& s, std::uint16_t t, const std::string& n) { s.core().set_name(t, n); },
          py::arg("table"), py::arg("name"))
      .def(
          "set_steps_before",
          [](Server& s, std::uint16_t t, std::uint64_t n) { s.set_steps_before(t, n); },
          py::arg("table"), py::arg("n"))
      .def("steps", [](Server& s, std::uint16_t t) { return s.core().steps(t); }, py::arg("table"));
}

// Cuts of a snapshot.
void bind_cuts(py::class_<Server>& server) {
  server
      .def(
          "expect_cut", [](Server& s, std::uint64_t id) { s.core().expect_cut(id); }, py::arg("id"))
      .def("cut_ready", [](Server& s) { return s.core().cut_ready(); })
      .def("holds_cut", [](Server& s) { return s.core().holds_cut(); })
      .def(
          "release_cut", [](Server& s, std::uint64_t id) { s.core().release_cut(id); },
          py::arg("id"))
      .def(
          "position_text",
          [](Server& s, std::size_t w) { return py::bytes(s.core().position_text(w)); },
          py::arg("worker"));
}

}  // namespace

Server::Server(SharedMemory& region, Layout layout, std::uint32_t generation, std::uint32_t backup,
               bool oversubscribed, py::object progress, double progress_interval_s)
    : region_(&region),
      layout_(layout),
      progress_(throttled(std::move(progress), progress_interval_s, mpi_)),
      core_(region.data(), layout, generation, backup, oversubscribed) {
  if (region.writable_bytes() < layout.total_bytes())
    throw py::value_error("the region has " + std::to_string(region.writable_bytes()) +
                          " bytes, its layout needs " + std::to_string(layout.total_bytes()));
}

void Server::follow(RecordedOrder& order, PullGate& gate) {
  for (const auto& [table, shard] : dense_) shard->set_gate(&gate, table);
  core_.follow(&order, &gate);
}

void Server::set_steps_before(std::uint16_t table, std::uint64_t n) {
  core_.set_steps_before(table, n);
  const auto dense = dense_.find(table);
  if (dense != dense_.end() && dense->second->common() != nullptr)
    dense->second->common()->set_number(n);
}

void register_server(py::module_& m) {
  py::register_exception<ProtocolViolation>(m, "ProtocolViolation");
  py::register_exception<RecoveryError>(m, "RecoveryError", PyExc_RuntimeError);
  m.def(
      "journal_bytes",
      [](const Layout& l) {
        return Journal::bytes(l.n_workers(), l.n_tables(), l.geometry().payload_capacity());
      },
      py::arg("layout"));
  m.def("dense_buffer_bytes", &DenseShard::buffer_bytes, py::arg("n"), py::arg("n_workers"));
  py::class_<Server> server(m, "ServerCore");
  server.def(
      py::init<SharedMemory&, Layout, std::uint32_t, std::uint32_t, bool, py::object, double>(),
      py::arg("region"), py::arg("layout"), py::arg("generation"), py::arg("backup"),
      py::arg("oversubscribed"), py::arg("progress"), py::arg("progress_interval_s"),
      py::keep_alive<1, 2>());
  bind_server_tables(server);
  bind_server_content(server);
  bind_server_recovery(server);
  bind_server_replica(server);
  bind_server_look_ups(server);
  bind_server_storage(server);
  register_look_ups(m);
  bind_loop(server);
  bind_counters(server);
  bind_state(server);
  bind_cuts(server);
}

}  // namespace mpips
