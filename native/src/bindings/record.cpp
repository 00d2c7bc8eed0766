#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "record/order_log.hpp"
#include "record/recorded_order.hpp"
#include "record/recorded_pulls.hpp"
#include "ring/dense_view.hpp"
#include "ring/worker_wait.hpp"
#include "shm/shared_memory.hpp"

// Records of asynchronous runs, and their replay.
namespace mpips {
namespace {

std::vector<std::uint8_t> bytes_of(const py::bytes& data) {
  const std::string_view view = data;
  return {view.begin(), view.end()};
}

py::bytes to_bytes(const std::vector<std::uint8_t>& data) {
  return py::bytes(reinterpret_cast<const char*>(data.data()), data.size());
}

struct DenseBlocks {
  const PairWord* versions;
  const float* values;
  std::size_t n;
};

DenseBlocks blocks_of(const SharedMemory& region, const Layout& layout, std::uint32_t table) {
  const DenseExtent& d = layout.extent(table);
  if (layout.total_bytes() > region.size())
    throw py::value_error("the region has " + std::to_string(region.size()) +
                          " bytes, its layout " + std::to_string(layout.total_bytes()));
  return {reinterpret_cast<const PairWord*>(region.data() + d.versions),
          reinterpret_cast<const float*>(region.data() + d.values), d.n};
}

void require_length(const FloatArray& out, std::size_t n) {
  if (static_cast<std::size_t>(out.size()) != n)
    throw py::value_error("out has " + std::to_string(out.size()) + " values, expected " +
                          std::to_string(n));
}

PullWords words_of(const SharedMemory& memory, std::size_t n_tables, std::size_t n_workers) {
  if (memory.size() < PullWords::bytes(n_tables, n_workers))
    throw py::value_error("the memory of the words has " + std::to_string(memory.size()) +
                          " bytes, expected " +
                          std::to_string(PullWords::bytes(n_tables, n_workers)));
  return {memory.data(), n_workers};
}

// Copy a server's part of a dense table and note what it saw. Return the version of the table's
// head before the copy, or None if the values kept changing for `max_s` seconds.
std::optional<std::uint64_t> copy_recorded(const SharedMemory& region, const Layout& layout,
                                           std::uint32_t table, FloatArray& out, PullLog& log,
                                           std::size_t server, std::uint64_t own, double max_s,
                                           bool oversubscribed) {
  const DenseBlocks d = blocks_of(region, layout, table);
  require_length(out, d.n);
  const auto* head = reinterpret_cast<const TableHead*>(region.data() + layout.head(table));
  float* to = out.mutable_data();
  std::uint64_t version = 0;
  {
    const ReleaseGil release;
    const double end = now_s() + max_s;
    if (!wait_until([&] { return read_pair(&head->version, &version); }, max_s, oversubscribed))
      return std::nullopt;
    std::uint64_t* seen = log.seen(Layout::n_blocks(d.n));
    if (!copy_dense(d.versions, d.values, 0, d.n, to, end, oversubscribed, seen))
      return std::nullopt;
  }
  log.drop();
  log.add_part(server, table, own, version);
  log.keep();
  return version;
}

// The steps of a worker's file of the record.
struct PullSteps {
  std::vector<PullStep> steps;
};

// The records of a worker in the files of all servers.
struct WorkerRecords {
  std::vector<WorkerOrder> by_server;
};

WorkerRecords records_of_worker(const std::vector<py::bytes>& data, std::size_t worker,
                                std::size_t n_workers, std::size_t n_tables, const Stops& stops) {
  WorkerRecords found;
  for (const py::bytes& of_server : data)
    found.by_server.push_back(records_of(bytes_of(of_server), worker, n_workers, n_tables, stops));
  return found;
}

// Compare the records that a worker has written to a server with the recorded run. `next`: the
// sequence of its next record; `n_cuts`: records of cuts that it has written; `own`: records before
// the step, with those of cuts.
void require_written(const RecordedPulls& pulls, std::size_t server, std::size_t worker,
                     std::uint64_t own, std::uint64_t next, std::uint64_t n_cuts,
                     const SharedMemory& region, const Layout& layout) {
  pulls.require_written(server, own - n_cuts, next - n_cuts, [&] {
    const Mailbox box{region.data() + layout.mailbox(worker), layout.geometry()};
    std::vector<WrittenRecord> found;
    const std::uint64_t n = std::min<std::uint64_t>(next, box.geometry.n_slots);
    for (std::uint64_t q = next - n; q < next; ++q) {
      RecordHeader h;
      std::memcpy(&h, box.slot(q), sizeof h);
      const auto kind = static_cast<RecordKind>(h.kind);
      if (kind != RecordKind::cut) found.push_back({kind, h.table, h.clock});
    }
    return found;
  });
}

void bind_logs(py::module_& m) {
  py::class_<OrderLog>(m, "OrderLog")
      .def(py::init<std::size_t>(), py::arg("n_workers"))
      .def_property_readonly("n_bytes", &OrderLog::size)
      .def("take", [](OrderLog& log) { return to_bytes(log.take()); });
  py::class_<PullLog>(m, "PullLog")
      .def(py::init<std::size_t, std::size_t>(), py::arg("n_servers"), py::arg("n_tables"))
      .def_property_readonly("n_bytes", &PullLog::size)
      .def("take", [](PullLog& log) { return to_bytes(log.take()); })
      .def(
          "add_tick",
          [](PullLog& log, std::uint64_t clock, const std::vector<std::uint64_t>& own,
             bool is_end) { log.add_tick(clock, own, is_end); },
          py::arg("clock"), py::arg("own"), py::arg("is_end"));
  m.def("copy_recorded", &copy_recorded, py::arg("region"), py::arg("layout"), py::arg("table"),
        py::arg("out").noconvert(), py::arg("log"), py::arg("server"), py::arg("own"),
        py::arg("max_s"), py::arg("oversubscribed"));
}

void bind_replay(py::module_& m) {
  py::class_<PullSteps>(m, "PullSteps")
      .def(py::init([](const py::bytes& data, std::size_t n_servers, std::size_t n_tables,
                       std::uint64_t stop) {
             return PullSteps{read_pull_log(bytes_of(data), n_servers, n_tables, stop)};
           }),
           py::arg("data"), py::arg("n_servers"), py::arg("n_tables"), py::arg("stop") = no_stop);
  py::class_<WorkerRecords>(m, "WorkerRecords")
      .def(py::init(&records_of_worker), py::arg("data"), py::arg("worker"), py::arg("n_workers"),
           py::arg("n_tables"), py::arg("stops") = Stops{});
  py::class_<RecordedOrder>(m, "RecordedOrder")
      .def(py::init([](const py::bytes& data, std::size_t n_workers, std::vector<std::string> names,
                       Stops stops) {
             return std::make_unique<RecordedOrder>(bytes_of(data), n_workers, std::move(names),
                                                    std::move(stops));
           }),
           py::arg("data"), py::arg("n_workers"), py::arg("names"), py::arg("stops") = Stops{})
      .def(
          "add_break",
          [](RecordedOrder& order, std::optional<std::uint16_t> table, std::uint64_t updates,
             std::vector<std::uint64_t> clocks) {
            order.add_break({table, updates, std::move(clocks)});
          },
          py::kw_only(), py::arg("table") = std::nullopt, py::arg("updates") = 0,
          py::arg("clocks") = std::vector<std::uint64_t>{})
      .def("remove_break", &RecordedOrder::remove_break, py::arg("index"))
      .def_property_readonly("consumed", &RecordedOrder::consumed)
      .def_property_readonly("is_over",
                             [](const RecordedOrder& order) { return order.next() == nullptr; });
  py::class_<PullGate>(m, "PullGate")
      .def(py::init([](const SharedMemory& words, std::size_t n_tables, std::size_t n_workers,
                       std::size_t server, double timeout_s) {
             return std::make_unique<PullGate>(words_of(words, n_tables, n_workers), n_tables,
                                               n_workers, server, timeout_s);
           }),
           py::arg("words"), py::arg("n_tables"), py::arg("n_workers"), py::arg("server"),
           py::arg("timeout_s"), py::keep_alive<1, 2>())
      .def(
          "add_table",
          [](PullGate& gate, const SharedMemory& region, const Layout& layout, std::uint32_t table,
             std::string name) {
            const DenseBlocks d = blocks_of(region, layout, table);
            gate.add_table(table, d.versions, Layout::n_blocks(d.n), std::move(name));
          },
          py::arg("region"), py::arg("layout"), py::arg("table"), py::arg("name"),
          py::keep_alive<1, 2>())
      .def(
          "add_pulls",
          [](PullGate& gate, std::size_t worker, const PullSteps& steps,
             const RecordedOrder& order) {
            gate.add_pulls(worker, steps.steps, order.cuts(worker));
          },
          py::arg("worker"), py::arg("steps"), py::arg("order"));
  py::class_<RecordedPulls>(m, "RecordedPulls")
      .def(py::init([](const PullSteps& steps, std::size_t worker, std::vector<std::string> names,
                       const WorkerRecords& records, bool ends_early) {
             return std::make_unique<RecordedPulls>(steps.steps, worker, std::move(names),
                                                    records.by_server, ends_early);
           }),
           py::arg("steps"), py::arg("worker"), py::arg("names"), py::arg("records"),
           py::arg("ends_early") = false)
      .def(
          "read",
          [](RecordedPulls& pulls, const SharedMemory& region, const Layout& layout,
             std::uint32_t table, std::size_t server, std::uint64_t clock, FloatArray& out,
             const SharedMemory& words, double max_s, bool oversubscribed) {
            const DenseBlocks d = blocks_of(region, layout, table);
            require_length(out, d.n);
            const PullWords at = words_of(words, layout.n_tables(), layout.n_workers());
            float* to = out.mutable_data();
            const ReleaseGil release;
            return pulls.read(server, table, clock, d.versions, d.values, d.n, to, at, max_s,
                              oversubscribed);
          },
          py::arg("region"), py::arg("layout"), py::arg("table"), py::arg("server"),
          py::arg("clock"), py::arg("out").noconvert(), py::arg("words"), py::arg("max_s"),
          py::arg("oversubscribed"))
      .def("require_written", &require_written, py::arg("server"), py::arg("worker"),
           py::arg("own"), py::arg("next"), py::arg("n_cuts"), py::arg("region"), py::arg("layout"))
      .def_property_readonly("version", &RecordedPulls::version)
      .def("tick", &RecordedPulls::tick, py::arg("clock"), py::arg("is_end"));
}

}  // namespace

void register_record(py::module_& m) {
  py::register_exception<RecordDifference>(m, "RecordDifference", PyExc_RuntimeError);
  m.def("pull_words_bytes", &PullWords::bytes, py::arg("n_tables"), py::arg("n_workers"));
  bind_logs(m);
  bind_replay(m);
}

}  // namespace mpips
