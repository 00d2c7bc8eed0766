#include "ring/feedback.hpp"

#include <pybind11/numpy.h>

#include <string>

#include "bindings/arrays.hpp"
#include "bindings/names.hpp"
#include "bindings/register.hpp"
#include "ring/layout.hpp"
#include "shm/shared_memory.hpp"

namespace py = pybind11;

namespace mpips {
namespace {

constexpr std::size_t least_capacity = 256;  // bytes of a record, at least

Feedback make_feedback(const SharedMemory& memory, std::size_t offset, std::size_t n,
                       std::size_t first, std::size_t halves, const std::string& kind, double share,
                       std::uint32_t block) {
  const auto chosen = enumerator_named<FeedbackKind>("codec", kind, feedback_names);
  if (halves < 1 || halves > 2)
    throw py::value_error("halves = " + std::to_string(halves) + ": must be 1 or 2");
  if (!(share > 0.0 && share <= 1.0))
    throw py::value_error("share = " + std::to_string(share) + ": must be above 0, at most 1");
  if (block < 1 || block > most_block || first % block != 0)
    throw py::value_error("block = " + std::to_string(block) + ": must be 1 to " +
                          std::to_string(most_block) + " and divide first");
  if (n > ~std::uint32_t{0})
    throw py::value_error("a residual of " + std::to_string(n) + " values: at most 2^32 - 1");
  const std::size_t bytes = Feedback::bytes(n, halves);
  if (offset % line_bytes != 0 || offset > memory.writable_bytes() ||
      bytes > memory.writable_bytes() - offset)
    throw py::value_error("a residual of " + std::to_string(bytes) + " bytes at " +
                          std::to_string(offset) + ": does not fit into its memory");
  return Feedback(memory.data() + offset, n, first, halves, chosen, share, block);
}

void require_length(const Feedback& feedback, const FloatArray& values, const char* name) {
  require_vector(values, name);
  if (length(values) != feedback.n())
    throw py::value_error(std::string(name) + " has " + std::to_string(length(values)) +
                          " values, the residual has " + std::to_string(feedback.n()));
}

py::array residual_view(const py::object& owner) {
  const auto& feedback = owner.cast<const Feedback&>();
  py::array_t<float> view(static_cast<py::ssize_t>(feedback.n()), feedback.residual(), owner);
  py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return view;
}

py::tuple encode_record(Feedback& feedback, std::size_t capacity) {
  if (!feedback.is_open() || capacity < least_capacity)
    throw py::value_error("encode needs a push that has begun, and 256 bytes or more");
  ArrayOf<std::uint8_t> out(static_cast<py::ssize_t>(capacity));
  std::uint8_t* to = out.mutable_data();
  std::pair<std::size_t, std::size_t> found;
  {
    const ReleaseGil release;
    found = feedback.encode(to, capacity);
  }
  return py::make_tuple(found.first, out[py::slice(0, static_cast<py::ssize_t>(found.second), 1)]);
}

bool decode_record(const std::string& kind, const ByteArray& bytes, FloatArray& out) {
  const auto codec = enumerator_named<CodecKind>("codec", kind, codec_names);
  if (!is_biased(codec)) throw py::value_error("codec " + kind + " has no residual: use decode");
  require_vector(out, "out");
  float* to = out.mutable_data();
  const std::uint8_t* from = bytes.data();
  const std::size_t n = length(out), n_bytes = length(bytes);
  const ReleaseGil release;
  return decode_biased(codec, from, n_bytes, n, to);
}

}  // namespace

void register_feedback(py::module_& m) {
  py::class_<Feedback>(m, "Feedback")
      .def(py::init(&make_feedback), py::arg("memory"), py::arg("offset"), py::arg("n"),
           py::arg("first"), py::arg("halves"), py::arg("kind"), py::arg("share"),
           py::arg("block") = 1, py::keep_alive<1, 2>())
      .def_static("n_bytes", &Feedback::bytes, py::arg("n"), py::arg("halves"))
      .def_property_readonly("n", &Feedback::n)
      .def_property_readonly("pushed", &Feedback::pushed)
      .def_property_readonly("is_open", &Feedback::is_open)
      .def_property_readonly("residual", &residual_view)
      .def("is_valid", &Feedback::is_valid, py::arg("next"))
      .def("forget", &Feedback::forget)
      .def("settle", &Feedback::settle, py::arg("next"))
      .def(
          "fill",
          [](Feedback& f, const FloatArray& values) {
            require_length(f, values, "the residual");
            f.fill(values.data());
          },
          py::arg("values").noconvert())
      .def(
          "begin",
          [](Feedback& f, const FloatArray& update, std::uint64_t key) {
            require_length(f, update, "the update");
            const float* from = update.data();
            const ReleaseGil release;
            f.begin(from, key);
          },
          py::arg("update").noconvert(), py::arg("random_key"), py::keep_alive<1, 2>())
      .def(
          "set_scales",
          [](Feedback& f, const ByteArray& exponents) {
            if (length(exponents) != f.n_scales())
              throw py::value_error(std::to_string(length(exponents)) + " scales: expected " +
                                    std::to_string(f.n_scales()));
            f.set_scales(exponents.data());
          },
          py::arg("exponents").noconvert())
      .def("encode", &encode_record, py::arg("capacity"))
      .def("close", &Feedback::close, py::arg("sequence"));
  m.def("decode_biased", &decode_record, py::arg("codec"), py::arg("encoded").noconvert(),
        py::arg("out").noconvert());
}

}  // namespace mpips
