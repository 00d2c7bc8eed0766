#include "words/examples.hpp"

#include "keys/mix.hpp"

namespace mpips::words {
namespace {

constexpr std::size_t block_examples = 128;

std::uint64_t random_number(std::uint64_t key, std::uint64_t i) noexcept {
  return mix_splitmix(key + (i + 1) * splitmix_step);
}

// Scale the lower half of x to 0 .. n-1.
std::uint64_t below(std::uint64_t x, std::uint64_t n) noexcept {
  return (x & 0xffffffffU) * n >> 32;
}

// Collects examples and trains them in blocks.
class Block {
 public:
  Block(const LocalRows& rows, const Rule& rule)
      : rows_(rows), rule_(rule), kernel_(rule.kernels->train_examples), work_(2 * rows.stride) {
    outputs_.reserve(block_examples * (1 + rule.negative));
  }

  void begin_chunk(std::uint64_t key) noexcept {
    key_ = negatives_key(key);
    drawn_ = 0;
  }

  void add_input(std::int32_t word) { inputs_.push_back(row_of(word)); }

  // End an example, which predicts `word`.
  void end_example(std::int32_t word) {
    outputs_.push_back(row_of(word));
    for (std::size_t k = 0; k < rule_.negative; ++k)
      outputs_.push_back(rows_.pool[below(next_half(), rows_.n_pool)]);
    starts_.push_back(static_cast<std::uint32_t>(inputs_.size()));
    if (starts_.size() > block_examples) train();
  }

  Trained finish() {
    train();
    return trained_;
  }

 private:
  std::uint32_t row_of(std::int32_t word) const noexcept {
    return static_cast<std::uint32_t>(rows_.places[word]);
  }

  std::uint64_t next_half() noexcept {
    const std::uint64_t i = drawn_++;
    if (i % 2 == 0) number_ = random_number(key_, i / 2);
    return i % 2 == 0 ? number_ >> 32 : number_;
  }

  void train() {
    const std::size_t n = starts_.size() - 1;
    if (n == 0) return;
    const ExampleBatch batch{rows_.inputs,
                             rows_.outputs,
                             rows_.stride,
                             n,
                             1 + rule_.negative,
                             inputs_.data(),
                             rule_.skip_gram ? nullptr : starts_.data(),
                             outputs_.data(),
                             rule_.rate,
                             rows_.sigmoids,
                             rows_.losses,
                             work_.data()};
    trained_.loss += kernel_(batch);
    trained_.n_examples += static_cast<std::int64_t>(n);
    inputs_.clear();
    outputs_.clear();
    starts_.resize(1);
  }

  const LocalRows& rows_;
  const Rule& rule_;
  double (*kernel_)(const ExampleBatch&) noexcept;
  std::vector<float> work_;
  std::vector<std::uint32_t> inputs_, outputs_, starts_{0};
  std::uint64_t key_ = 0, drawn_ = 0, number_ = 0;
  Trained trained_{0.0, 0};
};

}  // namespace

std::uint64_t negatives_key(std::uint64_t key) noexcept { return mix_splitmix(~key); }

void sample_words(const std::int32_t* tokens, const std::int64_t* starts, std::size_t n_chunks,
                  const std::uint64_t* keys, const std::uint64_t* thresholds, std::size_t window,
                  SampledWords* sampled) {
  sampled->words.clear();
  sampled->reach.clear();
  sampled->starts.assign(1, 0);
  for (std::size_t c = 0; c < n_chunks; ++c) {
    const std::int32_t* const chunk = tokens + starts[c];
    const auto n = static_cast<std::size_t>(starts[c + 1] - starts[c]);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int32_t word = chunk[i];
      if (word < 0) {
        sampled->words.push_back(word);
        sampled->reach.push_back(0);
        continue;
      }
      const std::uint64_t x = random_number(keys[c], i);
      if (x >> 32 >= thresholds[word]) continue;
      sampled->words.push_back(word);
      sampled->reach.push_back(static_cast<std::int32_t>(1 + below(x, window)));
    }
    sampled->starts.push_back(static_cast<std::int64_t>(sampled->words.size()));
  }
}

Trained train_words(const SampledView& sampled, const std::uint64_t* keys, const LocalRows& rows,
                    const Rule& rule) {
  Block block(rows, rule);
  const std::int32_t* const words = sampled.words;
  for (std::size_t c = 0; c < sampled.n_chunks; ++c) {
    block.begin_chunk(keys[c]);
    std::int64_t begin = sampled.starts[c], end = begin;  // of the sentence
    for (std::int64_t i = begin; i < sampled.starts[c + 1]; ++i) {
      if (words[i] < 0) continue;
      if (i >= end) {
        for (begin = end = i; end < sampled.starts[c + 1] && words[end] >= 0;) ++end;
      }
      const std::int64_t from = i - begin > sampled.reach[i] ? i - sampled.reach[i] : begin;
      const std::int64_t to = end - i > sampled.reach[i] ? i + sampled.reach[i] + 1 : end;
      if (to - from < 2) continue;
      for (std::int64_t j = from; j < to; ++j) {
        if (j == i) continue;
        block.add_input(words[j]);
        if (rule.skip_gram) block.end_example(words[i]);
      }
      if (!rule.skip_gram) block.end_example(words[i]);
    }
  }
  return block.finish();
}

}  // namespace mpips::words
