#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/names.hpp"
#include "bindings/register.hpp"
#include "bindings/server.hpp"
#include "server/backup_times.hpp"
#include "server/delay_threshold.hpp"
#include "server/evenness.hpp"
#include "server/plateau.hpp"
#include "server/push_intervals.hpp"
#include "server/shard.hpp"

namespace py = pybind11;

namespace mpips {

void register_consistency(py::module_& m) {
  m.attr("SWITCH_LEAD") = switch_lead;
  py::enum_<Model>(m, "Model")
      .value("BSP", Model::bsp)
      .value("SSP", Model::ssp)
      .value("ASP", Model::asp);
  py::class_<ConsistencyConfig>(m, "ConsistencyConfig")
      .def(py::init([](Model model, std::uint32_t bound, const std::string& policy,
                       std::uint32_t max_staleness, float lambda, bool mean, bool adaptive,
                       bool estimates, std::uint64_t switch_at, float rate, bool finds_switch) {
             ConsistencyConfig config;
             config.model = model;
             config.bound = bound;
             config.adaptive = adaptive;
             config.policy = enumerator_named<Policy>("policy", policy, policy_names);
             config.max_staleness = max_staleness;
             config.estimates = estimates;
             config.lambda = lambda;
             config.mean = mean;
             config.switch_at = switch_at;
             config.rate = rate;
             config.finds_switch = finds_switch;
             return config;
           }),
           py::arg("model"), py::arg("bound"), py::arg("policy"), py::arg("max_staleness"),
           py::arg("lambda_"), py::arg("mean"), py::arg("adaptive") = false,
           py::arg("estimates") = false, py::arg("switch_at") = 0, py::arg("rate") = 1.0F,
           py::arg("finds_switch") = false);
  py::class_<Evenness::Estimate>(m, "EvennessEstimate")
      .def_readonly("gain", &Evenness::Estimate::gain)
      .def_readonly("clocks", &Evenness::Estimate::clocks)
      .def_readonly("clock_s", &Evenness::Estimate::clock_s)
      .def_readonly("fastest_s", &Evenness::Estimate::fastest_s)
      .def_readonly("slowest_s", &Evenness::Estimate::slowest_s)
      .def_readonly("slowest", &Evenness::Estimate::slowest);
  py::class_<Evenness>(m, "Evenness")
      .def(py::init<std::size_t, std::uint64_t, std::uint64_t, double>(), py::arg("n_workers"),
           py::arg("first"), py::arg("longest"), py::arg("least"))
      // Note the own time of each worker, microseconds, and the end of the clock at `now` seconds;
      // a worker with None has finished.
      .def(
          "close",
          [](Evenness& measure, const std::vector<std::optional<std::uint32_t>>& own_us,
             double now) {
            if (own_us.size() != measure.n_workers())
              throw py::value_error("own_us must have a time, or None, for each worker");
            std::vector<std::size_t> workers;
            for (std::size_t w = 0; w < own_us.size(); ++w) {
              if (!own_us[w]) continue;
              workers.push_back(w);
              measure.note(w, *own_us[w]);
            }
            return measure.close(workers, now);
          },
          py::arg("own_us"), py::arg("now"))
      .def("last", &Evenness::last);
  py::class_<PushIntervals>(m, "PushIntervals")
      .def(py::init<std::size_t, std::uint64_t>(), py::arg("n_workers"), py::arg("most"))
      .def(
          "decide",
          [](PushIntervals& log, std::uint64_t from, std::uint64_t bound, std::uint64_t before) {
            log.decide({from, bound, before});
          },
          py::arg("clock"), py::arg("bound"), py::arg("before"))
      .def(
          "tick",
          [](PushIntervals& log, std::size_t worker, std::uint64_t clock, bool waits, double now) {
            if (worker >= log.n_workers()) throw py::index_error("there is no such worker");
            log.tick(worker, clock, waits, now);
          },
          py::arg("worker"), py::arg("clock"), py::arg("waits"), py::arg("now"))
      .def("reach", &PushIntervals::reach, py::arg("clock"), py::arg("now"))
      .def("take", [](PushIntervals& log) { return pairs_of(log.take()); });
  py::class_<BackupTimes>(m, "BackupTimes")
      .def(py::init<std::size_t>(), py::arg("n_workers"))
      .def(
          "tick",
          [](BackupTimes& log, std::size_t worker, double now) {
            if (worker >= log.n_workers()) throw py::index_error("there is no such worker");
            log.tick(worker, now);
          },
          py::arg("worker"), py::arg("now"))
      .def(
          "close",
          [](BackupTimes& log, const std::vector<std::size_t>& workers, double now) {
            for (const std::size_t w : workers)
              if (w >= log.n_workers()) throw py::index_error("there is no such worker");
            log.close(workers, now);
          },
          py::arg("workers"), py::arg("now"))
      .def(
          "finish",
          [](BackupTimes& log, std::size_t worker) {
            if (worker >= log.n_workers()) throw py::index_error("there is no such worker");
            log.finish(worker);
          },
          py::arg("worker"))
      .def("take", &BackupTimes::take, py::arg("now"));
  py::class_<DelayThreshold>(m, "DelayThreshold")
      .def(py::init<std::uint64_t>(), py::arg("least"))
      .def(
          "note",
          [](DelayThreshold& log, std::size_t worker,
             const py::array_t<float, py::array::c_style>& push) {
            return log.note(worker, push.data(), static_cast<std::size_t>(push.size()));
          },
          py::arg("worker"), py::arg("push").noconvert())
      .def("set", &DelayThreshold::set, py::arg("threshold"))
      .def("rejects", &DelayThreshold::rejects, py::arg("staleness"))
      .def_property_readonly("threshold", &DelayThreshold::threshold)
      .def_property_readonly("signal", &DelayThreshold::signal)
      .def_property_readonly("noise", &DelayThreshold::noise)
      .def_property_readonly_static("EVERY",
                                    [](const py::object&) { return DelayThreshold::every; })
      .def_property_readonly_static("PAIRS",
                                    [](const py::object&) { return DelayThreshold::pairs; })
      .def_property_readonly_static("MOST", [](const py::object&) { return DelayThreshold::most; });
}

}  // namespace mpips
