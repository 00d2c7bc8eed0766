#include "reduction/reduction.hpp"

#include <pybind11/stl.h>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "shm/shared_memory.hpp"

namespace mpips {
namespace {

using Release = py::call_guard<py::gil_scoped_release>;

// A reduction together with the memory that it uses.
struct BoundReduction {
  Reduction reduction;
  py::object memory;

  const NodeLayout& layout() const noexcept { return reduction.layout(); }

  void check(std::size_t table) const {
    if (table >= layout().n_tables())
      throw py::index_error("table " + std::to_string(table) + " of " +
                            std::to_string(layout().n_tables()));
  }

  void check_length(std::size_t table, const FloatArray& array, const char* name) const {
    check(table);
    if (static_cast<std::size_t>(array.size()) != layout().n(table))
      throw py::value_error(std::string(name) + " has " + std::to_string(array.size()) +
                            " values, expected " + std::to_string(layout().n(table)));
  }

  const float* values(std::size_t table, std::size_t slot) const {
    check(table);
    if (slot > layout().n_state(table)) throw py::index_error("the rule has no such state");
    return reinterpret_cast<const float*>(memory.cast<const SharedMemory&>().data() +
                                          layout().array(table, slot));
  }
};

using Rules = std::vector<std::tuple<std::string, OptimizerConfig, bool, std::uint64_t, bool>>;

std::unique_ptr<BoundReduction> make(py::object memory, const NodeLayout& layout,
                                     std::size_t worker, std::vector<std::size_t> local,
                                     const Rules& rules, bool oversubscribed) {
  const auto& file = memory.cast<const SharedMemory&>();
  bool is_local = false;
  for (const std::size_t w : local) is_local = is_local || w == worker;
  if (layout.total_bytes() > file.writable_bytes() || rules.size() != layout.n_tables() ||
      !is_local || local.back() >= layout.n_workers())
    throw py::value_error("memory, layout, workers and rules do not fit together");
  std::vector<ReplicatedRule> made;
  for (const auto& [name, optimizer, mean, steps, replaces] : rules)
    made.push_back({name, optimizer, mean, steps, replaces});
  return std::make_unique<BoundReduction>(BoundReduction{
      Reduction(file.data(), layout, worker, std::move(local), std::move(made), oversubscribed),
      memory});
}

py::array values_of(py::object self, std::size_t table, std::size_t slot) {
  const auto& bound = self.cast<BoundReduction&>();
  const float* data = bound.values(table, slot);
  py::array_t<float> array(static_cast<py::ssize_t>(bound.layout().n(table)), data, bound.memory);
  array.attr("setflags")(py::arg("write") = false);
  return std::move(array);
}

void bind_layout(py::module_& m) {
  py::class_<NodeLayout>(m, "NodeLayout")
      .def(py::init<std::size_t, std::vector<std::pair<std::size_t, std::size_t>>, std::size_t>(),
           py::arg("n_workers"), py::arg("tables"), py::arg("rounds"))
      .def_property_readonly("rounds", &NodeLayout::rounds)
      .def_property_readonly("first_bytes", &NodeLayout::first_bytes)
      .def_property_readonly("total_bytes", &NodeLayout::total_bytes)
      .def("array", &NodeLayout::array, py::arg("table"), py::arg("slot"))
      .def("contribution", &NodeLayout::contribution, py::arg("worker"), py::arg("table"),
           py::arg("round"));
  m.def(
      "slice_of",
      [](std::size_t n, std::size_t i, std::size_t m_, std::size_t table) {
        const Slice slice = slice_of(n, i, m_, table);
        return std::make_pair(slice.start, slice.stop);
      },
      py::arg("n"), py::arg("i"), py::arg("m"), py::arg("table"));
}

}  // namespace

void register_reduction(py::module_& m) {
  py::register_exception<RuleMismatch>(m, "RuleMismatch",
                                       py::module_::import("mpips.errors").attr("ConfigError"));
  bind_layout(m);
  using B = BoundReduction;
  py::class_<B>(m, "Reduction")
      .def(py::init(&make), py::arg("memory"), py::arg("layout"), py::arg("worker"),
           py::arg("local"), py::arg("rules"), py::arg("oversubscribed"))
      .def_property_readonly("clock", [](const B& b) { return b.reduction.clock(); })
      .def(
          "steps", [](const B& b, std::size_t t) { return b.reduction.steps(t); }, py::arg("table"))
      .def(
          "configure",
          [](B& b, std::size_t t, const OptimizerConfig& c) { b.reduction.configure(t, c); },
          py::arg("table"), py::arg("optimizer"))
      .def(
          "rule_hash",
          [](const B& b, std::size_t t) {
            b.check(t);
            return b.reduction.rule_hash(t);
          },
          py::arg("table"))
      .def(
          "pushes",
          [](const B& b, std::size_t t) {
            b.check(t);
            return b.reduction.pushes(t);
          },
          py::arg("table"))
      .def(
          "push",
          [](B& b, std::size_t t, const FloatArray& update, bool check_finite) {
            b.check_length(t, update, "update");
            if (!b.reduction.complete(t) || b.reduction.pushes(t) >= b.layout().rounds())
              throw py::value_error("there is no room for a push");
            const ReleaseGil release;
            return b.reduction.push(t, update.data(), check_finite);
          },
          py::arg("table"), py::arg("update").noconvert(), py::arg("check_finite"))
      .def(
          "close",
          [](B& b, std::size_t t) {
            b.check(t);
            b.reduction.close(t);
          },
          py::arg("table"))
      .def("tick", [](B& b) { b.reduction.tick(); })
      .def("finish", [](B& b) { b.reduction.finish(); })
      .def(
          "advance", [](B& b) { b.reduction.advance(); }, Release())
      .def(
          "complete",
          [](const B& b, std::size_t t) {
            b.check(t);
            return b.reduction.complete(t);
          },
          py::arg("table"))
      .def_property_readonly("settled", [](const B& b) { return b.reduction.settled(); })
      .def(
          "wait_complete",
          [](B& b, std::size_t t, double max_s) {
            b.check(t);
            const ReleaseGil release;
            return b.reduction.wait_complete(t, max_s);
          },
          py::arg("table"), py::arg("max_s"))
      .def("awaited",
           [](const B& b) -> py::object {
             const auto found = b.reduction.awaited();
             if (!found) return py::none();
             return py::make_tuple(found->worker, found->table, found->clock, found->ticked,
                                   found->summed);
           })
      .def("place", [](const B& b) { return b.reduction.place(); })
      .def("values", &values_of, py::arg("table"), py::arg("slot"))
      .def(
          "pull",
          [](const B& b, std::size_t t, FloatArray& out) {
            b.check_length(t, out, "out");
            const float* from = b.values(t, 0);
            float* to = out.mutable_data();
            const ReleaseGil release;
            std::copy_n(from, b.layout().n(t), to);
          },
          py::arg("table"), py::arg("out").noconvert())
      .def(
          "room_for",
          [](const B& b, std::size_t t, std::uint64_t clock) {
            b.check(t);
            return b.reduction.room_for(t, clock);
          },
          py::arg("table"), py::arg("clock"))
      .def(
          "note_push",
          [](B& b, std::size_t w, std::size_t t, std::uint64_t clock, std::uint64_t pushes,
             std::uint64_t rule) { b.reduction.note_push(w, t, clock, pushes, rule); },
          py::arg("worker"), py::arg("table"), py::arg("clock"), py::arg("pushes"), py::arg("rule"))
      .def(
          "note_close",
          [](B& b, std::size_t w, std::size_t t, std::uint64_t clock) {
            b.reduction.note_close(w, t, clock);
          },
          py::arg("worker"), py::arg("table"), py::arg("clock"))
      .def(
          "note_tick",
          [](B& b, std::size_t w, std::uint64_t clock) { b.reduction.note_tick(w, clock); },
          py::arg("worker"), py::arg("clock"))
      .def(
          "note_finish",
          [](B& b, std::size_t w, std::uint64_t clock) { b.reduction.note_finish(w, clock); },
          py::arg("worker"), py::arg("clock"));
}

}  // namespace mpips
