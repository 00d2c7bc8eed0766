#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings/ring.hpp"

namespace mpips {

void bind_dense_pushes(py::class_<RingWriter>& writer) {
  writer
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
          "push_whole",
          [](RingWriter& w, std::uint16_t table, std::uint64_t clock, const FloatArray& update,
             bool check_finite) -> std::optional<bool> {
            const auto n = static_cast<std::size_t>(update.size());
            if (n * sizeof(float) > w.geometry().payload_capacity())
              throw py::value_error("an update of " + std::to_string(n) +
                                    " values does not fit into one record");
            const Written written = w.push_whole(table, clock, update.data(), n, check_finite);
            if (written == Written::no_room) return std::nullopt;
            return written == Written::yes;
          },
          py::arg("table"), py::arg("clock"), py::arg("update").noconvert(),
          py::arg("check_finite"))
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
          py::arg("done"), py::arg("count"), py::arg("n"));
}

}  // namespace mpips
