#include "reduction/shared_pulls.hpp"

#include <pybind11/stl.h>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "shm/shared_memory.hpp"

namespace mpips {
namespace {

using Sizes = std::vector<std::size_t>;

// The pulls of a node together with the memory that they use.
struct BoundPulls {
  SharedPulls pulls;
  py::object memory;

  void check(std::size_t part) const {
    if (part >= pulls.n_parts())
      throw py::index_error("part " + std::to_string(part) + " of " +
                            std::to_string(pulls.n_parts()));
  }
};

std::unique_ptr<BoundPulls> make_pulls(py::object memory, const Sizes& sizes, std::size_t worker,
                                       std::size_t n_workers, bool oversubscribed) {
  const auto& file = memory.cast<const SharedMemory&>();
  if (worker >= n_workers || SharedPulls::bytes_for(sizes) > file.writable_bytes())
    throw py::value_error("memory, parts and workers do not fit together");
  return std::make_unique<BoundPulls>(
      BoundPulls{SharedPulls(file.data(), sizes, worker, n_workers, oversubscribed), memory});
}

}  // namespace

void register_shared_pulls(py::module_& m) {
  using B = BoundPulls;
  py::class_<B>(m, "SharedPulls")
      .def(py::init(&make_pulls), py::arg("memory"), py::arg("sizes"), py::arg("worker"),
           py::arg("n_workers"), py::arg("oversubscribed"))
      .def_static("bytes_for", &SharedPulls::bytes_for, py::arg("sizes"))
      .def(
          "is_ready",
          [](const B& b, std::size_t part, std::uint64_t clock) {
            b.check(part);
            return b.pulls.is_ready(part, clock);
          },
          py::arg("part"), py::arg("clock"))
      .def(
          "wait_ready",
          [](const B& b, std::size_t part, std::uint64_t clock, double max_s) {
            b.check(part);
            const ReleaseGil release;
            return b.pulls.wait_ready(part, clock, max_s);
          },
          py::arg("part"), py::arg("clock"), py::arg("max_s"))
      .def(
          "claim",
          [](B& b, std::size_t part, std::uint64_t clock) {
            b.check(part);
            return b.pulls.claim(part, clock);
          },
          py::arg("part"), py::arg("clock"))
      .def(
          "is_passed",
          [](const B& b, std::size_t part, std::uint64_t clock) {
            b.check(part);
            return b.pulls.is_passed(part, clock);
          },
          py::arg("part"), py::arg("clock"))
      .def(
          "claimant",
          [](const B& b, std::size_t part) {
            b.check(part);
            return b.pulls.claimant(part);
          },
          py::arg("part"))
      .def(
          "publish",
          [](B& b, std::size_t part, std::uint64_t clock, std::uint64_t version) {
            b.check(part);
            b.pulls.publish(part, clock, version);
          },
          py::arg("part"), py::arg("clock"), py::arg("version"))
      .def(
          "version",
          [](const B& b, std::size_t part) {
            b.check(part);
            return b.pulls.version(part);
          },
          py::arg("part"))
      .def(
          "values",
          [](const B& b, std::size_t part) {
            b.check(part);
            return py::array_t<float>(static_cast<py::ssize_t>(b.pulls.n(part)),
                                      b.pulls.values(part), b.memory);
          },
          py::arg("part"))
      .def(
          "copy",
          [](const B& b, std::size_t part, FloatArray& out) {
            b.check(part);
            if (static_cast<std::size_t>(out.size()) != b.pulls.n(part))
              throw py::value_error("out has " + std::to_string(out.size()) + " values, expected " +
                                    std::to_string(b.pulls.n(part)));
            const float* from = b.pulls.values(part);
            float* to = out.mutable_data();
            const ReleaseGil release;
            std::copy_n(from, b.pulls.n(part), to);
          },
          py::arg("part"), py::arg("out").noconvert());
}

}  // namespace mpips
