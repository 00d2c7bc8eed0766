#include "reduction/reduction.hpp"

#include <pybind11/stl.h>

#include <cstring>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "reduction/left_tables.hpp"
#include "shm/shared_memory.hpp"

namespace mpips {
namespace {

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
    return reduction.array(table, slot);
  }
};

using Rules = std::vector<std::tuple<std::string, OptimizerConfig, bool, std::uint64_t, bool>>;

std::vector<ReplicatedRule> rules_of(const Rules& rules) {
  std::vector<ReplicatedRule> made;
  for (const auto& [name, optimizer, mean, steps, replaces] : rules)
    made.push_back({name, optimizer, mean, steps, replaces});
  return made;
}

// Clock, base, `repeats` and `finished` of ReductionStart.
using Start = std::tuple<std::uint64_t, std::uint64_t, bool, bool>;

std::unique_ptr<BoundReduction> make_reduction(py::object memory, const NodeLayout& layout,
                                               std::size_t worker, std::vector<std::size_t> local,
                                               const Rules& rules, bool oversubscribed,
                                               const Start& start) {
  const auto& file = memory.cast<const SharedMemory&>();
  bool is_local = false;
  for (const std::size_t w : local) is_local = is_local || w == worker;
  if (layout.total_bytes() > file.writable_bytes() || rules.size() != layout.n_tables() ||
      !is_local || local.back() >= layout.n_workers())
    throw py::value_error("memory, layout, workers and rules do not fit together");
  const auto& [clock, base, repeats, finished] = start;
  return std::make_unique<BoundReduction>(
      BoundReduction{Reduction(file.data(), layout, worker, std::move(local), rules_of(rules),
                               oversubscribed, {clock, base, repeats, finished}),
                     memory});
}

py::array values_of(py::object self, std::size_t table, std::size_t slot) {
  const auto& bound = self.cast<BoundReduction&>();
  const float* data = bound.values(table, slot);
  py::array_t<float> array(static_cast<py::ssize_t>(bound.layout().n(table)), data, bound.memory);
  array.attr("setflags")(py::arg("write") = false);
  return std::move(array);
}

void bind_node_layout(py::module_& m) {
  py::class_<NodeLayout>(m, "NodeLayout")
      .def(py::init<std::size_t, std::vector<std::pair<std::size_t, std::size_t>>, std::size_t,
                    bool, std::vector<std::size_t>>(),
           py::arg("n_workers"), py::arg("tables"), py::arg("rounds"), py::arg("durable") = false,
           py::arg("places") = std::vector<std::size_t>{})
      .def_property_readonly("durable", &NodeLayout::durable)
      .def_property_readonly("head_bytes", &NodeLayout::head_bytes)
      .def_property_readonly("rounds", &NodeLayout::rounds)
      .def_property_readonly("first_bytes", &NodeLayout::first_bytes)
      .def_property_readonly("total_bytes", &NodeLayout::total_bytes)
      .def("array", &NodeLayout::array, py::arg("table"), py::arg("slot"), py::arg("version") = 0)
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

// The tables that an earlier launch has left, with the memory in which they lie.
struct BoundLeftTables {
  LeftTables tables;
  NodeLayout layout;
  py::object memory;
};

using LeftPlaces = std::vector<std::tuple<std::uint64_t, std::uint64_t, bool>>;

std::unique_ptr<BoundLeftTables> make_left(py::object memory, const NodeLayout& layout,
                                           const Rules& rules, const LeftPlaces& workers,
                                           std::uint64_t base) {
  const auto& file = memory.cast<const SharedMemory&>();
  if (!layout.durable() || layout.total_bytes() > file.size() ||
      rules.size() != layout.n_tables() || workers.size() != layout.n_workers())
    throw py::value_error("memory, layout, workers and rules do not fit together");
  std::vector<LeftWorker> made;
  for (const auto& [clock, ahead, finished] : workers) made.push_back({clock, ahead, finished});
  return std::make_unique<BoundLeftTables>(BoundLeftTables{
      LeftTables(file.data(), layout, rules_of(rules), std::move(made), base), layout, memory});
}

void bind_left_tables(py::module_& m) {
  using L = BoundLeftTables;
  py::class_<L>(m, "LeftTables")
      .def(py::init(&make_left), py::arg("memory"), py::arg("layout"), py::arg("rules"),
           py::arg("workers"), py::arg("base"))
      .def("lacks", [](const L& l) { return l.tables.lacks(); })
      .def("contributions", [](const L& l) { return l.tables.contributions(); })
      .def(
          "write",
          [](L& l, const SharedMemory& to) {
            if (to.writable_bytes() < l.layout.head_bytes())
              throw py::value_error("the new memory is too small");
            if (!l.tables.lacks().empty()) throw py::value_error(l.tables.lacks());
            const ReleaseGil release;
            l.tables.write(to.data());
          },
          py::arg("to"))
      .def(
          "copy_contributions",
          [](L& l, SharedMemory& to) {
            if (to.writable_bytes() < l.layout.total_bytes())
              throw py::value_error("the new memory is too small");
            const auto* from = l.memory.cast<const SharedMemory&>().data();
            for (const auto& [offset, bytes] : l.tables.contributions()) {
              if (offset + bytes > l.layout.first_bytes()) to.commit(offset, bytes);
              std::memcpy(to.data() + offset, from + offset, bytes);
            }
          },
          py::arg("to"));
  m.def(
      "set_local_workers",
      [](const SharedMemory& memory, const NodeLayout& layout,
         const std::vector<std::size_t>& local,
         std::uint64_t base) { set_local(memory.data(), layout, local, base); },
      py::arg("memory"), py::arg("layout"), py::arg("local"), py::arg("base"));
  m.def(
      "set_start_versions",
      [](const SharedMemory& memory, const NodeLayout& layout,
         const std::vector<std::uint64_t>& steps) { set_start(memory.data(), layout, steps); },
      py::arg("memory"), py::arg("layout"), py::arg("steps"));
}

}  // namespace

void register_reduction(py::module_& m) {
  py::register_exception<RuleMismatch>(m, "RuleMismatch",
                                       py::module_::import("mpips.errors").attr("ConfigError"));
  bind_node_layout(m);
  bind_left_tables(m);
  using B = BoundReduction;
  py::class_<B>(m, "Reduction")
      .def(py::init(&make_reduction), py::arg("memory"), py::arg("layout"), py::arg("worker"),
           py::arg("local"), py::arg("rules"), py::arg("oversubscribed"),
           py::arg("start") = Start{})
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
            if (!b.reduction.may_push(t) || b.reduction.pushes(t) >= b.layout().rounds())
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
      .def_property_readonly("repeats", [](const B& b) { return b.reduction.repeats(); })
      .def(
          "may_push",
          [](const B& b, std::size_t t) {
            b.check(t);
            return b.reduction.may_push(t);
          },
          py::arg("table"))
      .def(
          "all_sent", [](const B& b, std::uint64_t clocks) { return b.reduction.all_sent(clocks); },
          py::arg("clocks"))
      .def(
          "note_sent",
          [](B& b, std::size_t w, std::uint64_t clocks) { b.reduction.note_sent(w, clocks); },
          py::arg("worker"), py::arg("clocks"))
      .def(
          "raw_rule",
          [](const B& b, std::size_t t) {
            b.check(t);
            const ConfigWords words = b.reduction.rule_words(t);
            py::array_t<std::uint8_t> raw(sizeof words);
            std::memcpy(raw.mutable_data(), words.data(), sizeof words);
            return raw;
          },
          py::arg("table"))
      .def(
          "note_rule",
          [](B& b, std::size_t w, std::size_t t, std::uint64_t clock, const ByteArray& raw) {
            b.check(t);
            ConfigWords words;
            if (static_cast<std::size_t>(raw.size()) != sizeof words)
              throw py::value_error("hyperparameters of another length");
            std::memcpy(words.data(), raw.data(), sizeof words);
            b.reduction.note_rule(w, t, clock, words);
          },
          py::arg("worker"), py::arg("table"), py::arg("clock"), py::arg("raw").noconvert())
      .def(
          "advance", [](B& b) { b.reduction.advance(); }, WithoutGil())
      .def(
          "complete",
          [](const B& b, std::size_t t) {
            b.check(t);
            return b.reduction.complete(t);
          },
          py::arg("table"))
      .def_property_readonly("settled", [](const B& b) { return b.reduction.settled(); })
      .def(
          "wait_room",
          [](B& b, std::size_t t, double max_s) {
            b.check(t);
            const ReleaseGil release;
            return b.reduction.wait_room(t, max_s);
          },
          py::arg("table"), py::arg("max_s"))
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
                                   found->summed, found->unsent);
           })
      .def("place", [](const B& b) { return b.reduction.place(); })
      .def(
          "updated",
          [](const B& b, std::size_t t) {
            b.check(t);
            return b.reduction.updated(t);
          },
          py::arg("table"))
      .def(
          "ticked", [](const B& b, std::size_t w) { return b.reduction.ticked(w); },
          py::arg("worker"))
      .def(
          "sent", [](const B& b, std::size_t w) { return b.reduction.sent(w); }, py::arg("worker"))
      .def(
          "finished", [](const B& b, std::size_t w) { return b.reduction.finished(w); },
          py::arg("worker"))
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
