#include <pybind11/stl.h>

#include <cstring>
#include <string>
#include <vector>

#include "bench/handover.hpp"
#include "bench/robin.hpp"
#include "bench/stream_table.hpp"
#include "bindings/arrays.hpp"
#include "kernels/kernel_table.hpp"

namespace mpips {

namespace {

using Floats = ArrayOf<float>;

// Return the tables that can run, the plain one first. A table is there if the kernels of its
// instruction set are.
std::vector<const StreamTable*> stream_tables() {
  std::vector<const StreamTable*> tables{&plain_streams};
#if MPIPS_X86
  for (const std::string& name : available_kernels())
    for (const StreamTable* table : {&avx2_streams, &avx512_streams})
      if (name == table->name) tables.push_back(table);
#endif
  return tables;
}

const StreamTable& streams_named(const std::string& name) {
  std::string known;
  for (const StreamTable* table : stream_tables()) {
    if (name == table->name) return *table;
    known += (known.empty() ? "" : ", ") + std::string(table->name);
  }
  throw py::value_error("streams = '" + name + "': must be one of " + known);
}

std::vector<std::string> stream_names(bool past_cache) {
  std::vector<std::string> names;
  for (const StreamTable* table : stream_tables())
    if (!past_cache || table->triad_past_cache != nullptr) names.emplace_back(table->name);
  return names;
}

std::size_t size_of(const Floats& array) { return static_cast<std::size_t>(array.size()); }

void require_size(const Floats& array, std::size_t n, const char* name) {
  if (size_of(array) == n) return;
  throw py::value_error(std::string(name) + " has " + std::to_string(array.size()) +
                        " values, expected " + std::to_string(n));
}

void stream_in_place(Floats& x, float factor, const std::string& streams) {
  const StreamTable& table = streams_named(streams);
  float* to = x.mutable_data();
  const std::size_t n = size_of(x);
  const ReleaseGil release;
  table.in_place(to, factor, n);
}

void stream_copy(Floats& dst, const Floats& src) {
  const std::size_t n = size_of(dst);
  require_size(src, n, "src");
  float* to = dst.mutable_data();
  const float* from = src.data();
  const ReleaseGil release;
  std::memcpy(to, from, n * sizeof(float));
}

void stream_sum(Floats& dst, const Floats& src, const std::string& streams) {
  const StreamTable& table = streams_named(streams);
  const std::size_t n = size_of(dst);
  require_size(src, n, "src");
  float* to = dst.mutable_data();
  const float* from = src.data();
  const ReleaseGil release;
  table.sum(to, from, n);
}

void stream_triad(Floats& a, const Floats& b, const Floats& c, float factor, bool past_cache,
                  const std::string& streams) {
  const StreamTable& table = streams_named(streams);
  const std::size_t n = size_of(a);
  require_size(b, n, "b");
  require_size(c, n, "c");
  float* to = a.mutable_data();
  const float *left = b.data(), *right = c.data();
  const auto triad = past_cache ? table.triad_past_cache : table.triad;
  if (triad == nullptr)
    throw py::value_error("streams = '" + streams + "' has no stores that bypass the caches");
  if (past_cache && reinterpret_cast<std::uintptr_t>(to) % 64 != 0)
    throw py::value_error("a must begin on a 64-byte line to be written past the caches");
  const ReleaseGil release;
  triad(to, left, right, factor, n);
}

void stream_touch(Floats& values, std::vector<Floats> state, const Floats& gradient,
                  const std::string& streams) {
  const StreamTable& table = streams_named(streams);
  const std::size_t n = size_of(values);
  if (state.size() > 2)
    throw py::value_error(std::to_string(state.size()) + " states: there can be at most 2");
  float* states[2] = {nullptr, nullptr};
  for (std::size_t k = 0; k < state.size(); ++k) {
    require_size(state[k], n, "a state");
    states[k] = state[k].mutable_data();
  }
  require_size(gradient, n, "gradient");
  float* w = values.mutable_data();
  const float* g = gradient.data();
  const ReleaseGil release;
  table.touch[state.size()](w, states[0], states[1], g, n);
}

HandoverWords& words_in(WordArray& memory) {
  if (memory.size() * sizeof(std::uint64_t) < sizeof(HandoverWords))
    throw py::value_error("words has " + std::to_string(memory.size()) +
                          " values, expected at least " +
                          std::to_string(sizeof(HandoverWords) / sizeof(std::uint64_t)));
  return *reinterpret_cast<HandoverWords*>(memory.mutable_data());
}

double handover_of(WordArray& words, Floats& shared, Floats& own, bool is_first, std::size_t n,
                   double limit_s) {
  require_size(shared, size_of(own), "shared");
  HandoverWords& both = words_in(words);
  float *to = shared.mutable_data(), *values = own.mutable_data();
  const std::size_t size = size_of(own);
  const ReleaseGil release;
  return handover(both, to, values, size, is_first, n, limit_s);
}

}  // namespace

}  // namespace mpips

PYBIND11_MODULE(_loops, m) {
  using namespace mpips;
  m.doc() = "Loops that benchmarks compare with: streams of memory, handovers, another hash map";
  m.def("stream_names", &stream_names, py::arg("past_cache") = false);
  m.def("stream_in_place", &stream_in_place, py::arg("x").noconvert(), py::arg("factor"),
        py::arg("streams"));
  m.def("stream_copy", &stream_copy, py::arg("dst").noconvert(), py::arg("src").noconvert());
  m.def("stream_sum", &stream_sum, py::arg("dst").noconvert(), py::arg("src").noconvert(),
        py::arg("streams"));
  m.def("stream_triad", &stream_triad, py::arg("a").noconvert(), py::arg("b").noconvert(),
        py::arg("c").noconvert(), py::arg("factor"), py::arg("past_cache"), py::arg("streams"));
  m.def("stream_touch", &stream_touch, py::arg("values").noconvert(), py::arg("state").noconvert(),
        py::arg("gradient").noconvert(), py::arg("streams"));
  m.def("handover", &handover_of, py::arg("words").noconvert(), py::arg("shared").noconvert(),
        py::arg("own").noconvert(), py::arg("is_first"), py::arg("n"), py::arg("limit_s"));
  bind_robin(m);
}
