#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel_types.hpp"

// Examples of word2vec (Mikolov et al., "Distributed Representations of Words and Phrases and their
// Compositionality", NIPS 2013), drawn from the words of a text with random numbers by counter:
// random number i of a chunk is mix_splitmix(key of the chunk + (i + 1) * splitmix_step). So the
// examples of a chunk depend on nothing but its words and its key.
namespace mpips::words {

// Words that are left after subsampling, with the reach of their windows.
struct SampledWords {
  std::vector<std::int32_t> words;   // numbers of words; -1 ends a sentence
  std::vector<std::int32_t> reach;   // 1 to `window`; 0 where a sentence ends
  std::vector<std::int64_t> starts;  // where each chunk begins, and the end of the last
};

// Draw which words are sampled. Token i of a chunk uses random number i: word w is sampled if the
// upper half is below thresholds[w]; the lower half gives the reach. starts: n_chunks + 1 places in
// `tokens`. All numbers of words must be below n_thresholds.
void sample_words(const std::int32_t* tokens, const std::int64_t* starts, std::size_t n_chunks,
                  const std::uint64_t* keys, const std::uint64_t* thresholds, std::size_t window,
                  SampledWords* sampled);

// Rows in which words are trained, and where they lie.
struct LocalRows {
  float *inputs, *outputs;
  std::size_t stride;
  const std::int32_t* places;  // row of each word, in both arrays
  const std::uint32_t* pool;   // rows of `outputs` among which negative samples are drawn
  std::size_t n_pool;
  const float *sigmoids, *losses;
};

struct Rule {
  bool skip_gram;  // else continuous bag of words
  std::size_t negative;
  float rate;
  const KernelTable* kernels;
};

struct Trained {
  double loss;  // summed over the examples, each before its own update
  std::int64_t n_examples;
};

// Kept words of `n_chunks` chunks, in the form of SampledWords.
struct SampledView {
  const std::int32_t *words, *reach;
  const std::int64_t* starts;
  std::size_t n_chunks;
};

// Train all examples of sampled words, one after the other. Negative sample i of a chunk is the
// entry random_half(i) * n_pool / 2^32 of the pool, where random_half(i) is the upper (i even) or
// lower half of random number i / 2 of the key that `negatives_key` returns.
Trained train_words(const SampledView& sampled, const std::uint64_t* keys, const LocalRows& rows,
                    const Rule& rule);

std::uint64_t negatives_key(std::uint64_t key) noexcept;

}  // namespace mpips::words
