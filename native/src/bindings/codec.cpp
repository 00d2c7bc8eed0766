#include "ring/codec.hpp"

#include <pybind11/numpy.h>

#include <string>

#include "bindings/arrays.hpp"
#include "bindings/names.hpp"
#include "bindings/register.hpp"
#include "keys/mix.hpp"

namespace py = pybind11;

namespace mpips {
namespace {

// Return the number from which a push takes its random numbers.
std::uint64_t random_key(std::uint64_t seed, std::uint64_t worker, std::uint64_t clock,
                         std::uint64_t number) {
  std::uint64_t key = mix_splitmix(seed + splitmix_step);
  for (const std::uint64_t word : {worker, clock, number})
    key = mix_splitmix((key ^ word) + splitmix_step);
  return key;
}

void require_codec(const Codec& codec, std::size_t skew, bool encodes = true) {
  if (is_biased(codec.kind) || (encodes && codec.kind == CodecKind::shared))
    throw py::value_error("codec " +
                          std::string(codec_names[static_cast<std::size_t>(codec.kind)]) +
                          " needs a residual: use Feedback and decode_biased");
  if (codec.kind == CodecKind::none || skew >= codec.block)
    throw py::value_error("skew = " + std::to_string(skew) + ": must be below the block of " +
                          std::to_string(codec.block) + " values of a codec");
}

ArrayOf<std::uint8_t> encoded(const Codec& codec, const FloatArray& tensor, std::size_t begin,
                              std::size_t end, std::uint64_t key) {
  const auto whole = static_cast<std::size_t>(tensor.size());
  require_codec(codec, 0);
  if (begin > end || end > whole)
    throw py::value_error("values " + std::to_string(begin) + " to " + std::to_string(end) +
                          " of a tensor of " + std::to_string(whole) + ": out of range");
  const std::size_t bytes = encoded_bytes(codec, begin % codec.block, end - begin);
  ArrayOf<std::uint8_t> out(static_cast<py::ssize_t>(bytes));
  const float* from = tensor.data();
  std::uint8_t* to = out.mutable_data();
  {
    const ReleaseGil release;
    encode(codec, from, whole, begin, end - begin, key, to);
  }
  return out;
}

ArrayOf<std::uint8_t> rows_encoded(const Codec& codec, const FloatArray& rows, const KeyArray& keys,
                                   std::uint64_t key) {
  const std::size_t dim = row_length(keys, rows), n = length(keys);
  require_codec(codec, 0);
  if (dim != codec.block)
    throw py::value_error("rows have " + std::to_string(dim) + " values, the codec's block has " +
                          std::to_string(codec.block));
  ArrayOf<std::uint8_t> out(static_cast<py::ssize_t>(encoded_bytes(codec, 0, n * dim)));
  encode_rows(codec, rows.data(), keys.data(), n, key, out.mutable_data());
  return out;
}

ArrayOf<std::uint8_t> nearest(const Codec& codec, const FloatArray& values) {
  require_codec(codec, 0);
  const auto n = static_cast<std::size_t>(values.size());
  ArrayOf<std::uint8_t> out(static_cast<py::ssize_t>(encoded_bytes(codec, 0, n)));
  encode_nearest(codec, values.data(), n, out.mutable_data());
  return out;
}

void decode_into(const Codec& codec, const ByteArray& bytes, std::size_t skew, FloatArray& out) {
  require_codec(codec, skew, false);
  const auto n = static_cast<std::size_t>(out.size());
  const std::size_t expected = encoded_bytes(codec, skew, n);
  if (static_cast<std::size_t>(bytes.size()) != expected)
    throw py::value_error(std::to_string(n) + " values take " + std::to_string(expected) +
                          " bytes, not " + std::to_string(bytes.size()));
  const std::uint8_t* from = bytes.data();
  float* to = out.mutable_data();
  const ReleaseGil release;
  decode(codec, from, skew, n, to);
}

}  // namespace

void register_codec(py::module_& m) {
  py::class_<Codec>(m, "Codec")
      .def(py::init([](const std::string& kind, std::uint32_t block, double share) {
             const Codec codec{enumerator_named<CodecKind>("codec", kind, codec_names), block,
                               share};
             if (block < 1 || block > most_block)
               throw py::value_error("block = " + std::to_string(block) + ": must be 1 to " +
                                     std::to_string(most_block));
             return codec;
           }),
           py::arg("kind"), py::arg("block"), py::arg("share") = 0.0)
      .def_property_readonly(
          "kind", [](const Codec& c) { return codec_names[static_cast<std::size_t>(c.kind)]; })
      .def_readonly("block", &Codec::block)
      .def_readonly("share", &Codec::share);
  m.def("random_key", &random_key, py::arg("seed"), py::arg("worker"), py::arg("clock"),
        py::arg("number"));
  m.def("encode", &encoded, py::arg("codec"), py::arg("tensor").noconvert(), py::arg("begin"),
        py::arg("end"), py::arg("random_key"));
  m.def("encode_rows", &rows_encoded, py::arg("codec"), py::arg("rows").noconvert(),
        py::arg("keys").noconvert(), py::arg("random_key"));
  m.def("encoded_bytes", &encoded_bytes, py::arg("codec"), py::arg("skew"), py::arg("count"));
  m.def("encode_nearest", &nearest, py::arg("codec"), py::arg("values").noconvert());
  m.def("decode", &decode_into, py::arg("codec"), py::arg("encoded").noconvert(), py::arg("skew"),
        py::arg("out").noconvert());
}

}  // namespace mpips
