#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string_view>

#include "bindings/arrays.hpp"
#include "bindings/kernel_named.hpp"
#include "bindings/register.hpp"
#include "words/examples.hpp"
#include "words/text.hpp"

namespace mpips {
namespace {

using IntArray = ArrayOf<std::int32_t>;

// Feed bytes to a reader; raise ValueError(message, place in the block) for an error of the text.
template <class Reader>
void feed(Reader& reader, const py::bytes& block) {
  const auto text = static_cast<std::string_view>(block);
  try {
    const ReleaseGil release;
    reader.feed(text);
  } catch (const words::TextError& error) {
    PyErr_SetObject(PyExc_ValueError, py::make_tuple(error.what(), error.at).ptr());
    throw py::error_already_set();
  }
}

void add_counts(words::WordCounter& counter, const py::bytes& counted, const KeyArray& counts) {
  require_vector(counts, "counts");
  const auto text = static_cast<std::string_view>(counted);
  const auto n = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  if (n != length(counts) || (!text.empty() && text.back() != '\n'))
    throw py::value_error("words must have a line feed behind each word, and one count per word");
  const std::int64_t* at = counts.data();
  const ReleaseGil release;
  counter.add(text, at, n);
}

py::tuple part(const words::WordCounter& counter, std::uint64_t number, std::uint64_t n_parts) {
  if (number >= n_parts) throw py::value_error("part must be below n_parts");
  words::CountedWords found = counter.part(number, n_parts);
  return py::make_tuple(py::bytes(found.words), to_array(std::move(found.counts)));
}

py::tuple take(words::WordEncoder& encoder) {
  auto taken =
      py::make_tuple(to_array(std::move(encoder.tokens)), to_array(std::move(encoder.lengths)));
  encoder.tokens.clear();
  encoder.lengths.clear();
  return taken;
}

// Check that `starts` has one place more than `keys`, ascending from 0 to n.
void require_starts(const KeyArray& starts, const WordArray& keys, std::size_t n) {
  require_vector(starts, "starts");
  require_vector(keys, "keys");
  const std::size_t n_chunks = length(keys);
  const std::int64_t* at = starts.data();
  bool good =
      length(starts) == n_chunks + 1 && at[0] == 0 && at[n_chunks] == static_cast<std::int64_t>(n);
  for (std::size_t c = 0; good && c < n_chunks; ++c) good = at[c] <= at[c + 1];
  if (!good) throw py::value_error("starts must ascend from 0 to the number of words, one per key");
}

// Check that all words are below n; negative ones end sentences.
void require_words(const IntArray& numbers, std::size_t n) {
  require_vector(numbers, "words");
  const std::int32_t* at = numbers.data();
  for (std::size_t i = 0; i < length(numbers); ++i)
    if (at[i] >= 0 && static_cast<std::size_t>(at[i]) >= n)
      throw py::value_error("word " + std::to_string(at[i]) + " is not below " + std::to_string(n));
}

py::tuple sample_words(const IntArray& tokens, const KeyArray& starts, const WordArray& keys,
                       const WordArray& thresholds, std::int64_t window) {
  require_words(tokens, length(thresholds));
  require_starts(starts, keys, length(tokens));
  if (window < 1 || window > INT32_MAX) throw py::value_error("window must be 1 or more");
  words::SampledWords sampled;
  {
    const ReleaseGil release;
    words::sample_words(tokens.data(), starts.data(), length(keys), keys.data(), thresholds.data(),
                        static_cast<std::size_t>(window), &sampled);
  }
  return py::make_tuple(to_array(std::move(sampled.words)), to_array(std::move(sampled.reach)),
                        to_array(std::move(sampled.starts)));
}

// Give the words without a place the places from `first` on, in order of appearance; return them.
py::array number_words(const IntArray& numbers, IntArray& places, std::int32_t first) {
  require_words(numbers, length(places));
  std::vector<std::int64_t> found;
  {
    const std::int32_t* at = numbers.data();
    const std::size_t n = length(numbers);
    std::int32_t* place = places.mutable_data();
    const ReleaseGil release;
    for (std::size_t i = 0; i < n; ++i) {
      if (at[i] < 0 || place[at[i]] >= 0) continue;
      place[at[i]] = first++;
      found.push_back(at[i]);
    }
  }
  return to_array(std::move(found));
}

void require_places(const IntArray& numbers, const IntArray& places, std::size_t n_rows) {
  require_words(numbers, length(places));
  const std::int32_t *at = numbers.data(), *place = places.data();
  for (std::size_t i = 0; i < length(numbers); ++i)
    if (at[i] >= 0 && (place[at[i]] < 0 || static_cast<std::size_t>(place[at[i]]) >= n_rows))
      throw py::value_error("word " + std::to_string(at[i]) + " has no row");
}

std::size_t stride_of(const FloatArray& inputs, const FloatArray& outputs) {
  if (inputs.ndim() != 2 || outputs.ndim() != 2 || inputs.shape(1) != outputs.shape(1) ||
      inputs.shape(1) < 1 || inputs.shape(1) % static_cast<py::ssize_t>(ExampleBatch::lanes) != 0)
    throw py::value_error("inputs and outputs must have rows of one length, a multiple of 16");
  return static_cast<std::size_t>(inputs.shape(1));
}

void require_table(const FloatArray& table, const char* name) {
  if (table.ndim() != 1 || length(table) != ExampleBatch::n_places)
    throw py::value_error(std::string(name) + " must have " +
                          std::to_string(ExampleBatch::n_places) + " values");
}

py::tuple train_words(const IntArray& numbers, const IntArray& reach, const KeyArray& starts,
                      const WordArray& keys, const IntArray& places, FloatArray& inputs,
                      FloatArray& outputs, const IntArray& pool, const FloatArray& sigmoids,
                      const FloatArray& losses, bool skip_gram, std::size_t negative, float rate,
                      const std::optional<std::string>& kernels_name) {
  const KernelTable& table = table_named(kernels_name);
  const std::size_t stride = stride_of(inputs, outputs);
  require_places(numbers, places, static_cast<std::size_t>(inputs.shape(0)));
  require_starts(starts, keys, length(numbers));
  require_vector(reach, "reach");
  require_vector(pool, "pool");
  if (reach.size() != numbers.size()) throw py::value_error("words and reach differ in length");
  if (negative >= ExampleBatch::most_outputs || (negative > 0 && length(pool) == 0))
    throw py::value_error("negative must be at most 63, and 0 without a pool");
  for (std::size_t i = 0; i < length(pool); ++i)
    if (pool.data()[i] < 0 || pool.data()[i] >= outputs.shape(0))
      throw py::value_error("pool names a row that outputs does not have");
  if (inputs.shape(0) > outputs.shape(0))
    throw py::value_error("outputs has fewer rows than inputs");
  require_table(sigmoids, "sigmoids");
  require_table(losses, "losses");
  const words::SampledView sampled{numbers.data(), reach.data(), starts.data(), length(keys)};
  const words::LocalRows rows{inputs.mutable_data(),
                              outputs.mutable_data(),
                              stride,
                              places.data(),
                              reinterpret_cast<const std::uint32_t*>(pool.data()),
                              length(pool),
                              sigmoids.data(),
                              losses.data()};
  words::Trained trained{};
  {
    const std::uint64_t* of_chunks = keys.data();
    const ReleaseGil release;
    trained = words::train_words(sampled, of_chunks, rows, {skip_gram, negative, rate, &table});
  }
  return py::make_tuple(trained.loss, trained.n_examples);
}

}  // namespace

void register_words(py::module_& m) {
  using words::WordCounter;
  using words::WordEncoder;
  py::class_<WordCounter>(m, "WordCounter")
      .def(py::init())
      .def("feed", &feed<WordCounter>, py::arg("block"))
      .def("add", &add_counts, py::arg("words"), py::arg("counts").noconvert())
      .def("part", &part, py::arg("part"), py::arg("n_parts"))
      .def("__len__", &WordCounter::size);
  py::class_<WordEncoder>(m, "WordEncoder")
      .def(py::init([](const py::bytes& vocabulary, std::size_t chunk_words) {
             if (chunk_words < 1) throw py::value_error("chunk_words must be 1 or more");
             return WordEncoder(static_cast<std::string_view>(vocabulary), chunk_words);
           }),
           py::arg("vocabulary"), py::arg("chunk_words"))
      .def("feed", &feed<WordEncoder>, py::arg("block"))
      .def("finish", &WordEncoder::finish)
      .def("take", &take)
      .def_readonly("n_words", &WordEncoder::n_words);
  m.def("sample_words", &sample_words, py::arg("tokens").noconvert(), py::arg("starts").noconvert(),
        py::arg("keys").noconvert(), py::arg("thresholds").noconvert(), py::arg("window"));
  m.def("number_words", &number_words, py::arg("words").noconvert(), py::arg("places").noconvert(),
        py::arg("first"));
  m.def("train_words", &train_words, py::arg("words").noconvert(), py::arg("reach").noconvert(),
        py::arg("starts").noconvert(), py::arg("keys").noconvert(), py::arg("places").noconvert(),
        py::arg("inputs").noconvert(), py::arg("outputs").noconvert(), py::arg("pool").noconvert(),
        py::arg("sigmoids").noconvert(), py::arg("losses").noconvert(), py::arg("skip_gram"),
        py::arg("negative"), py::arg("rate"), py::arg("kernels"));
}

}  // namespace mpips
