#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ring/codec.hpp"
#include "ring/layout.hpp"

// Error feedback: the residual of one worker's pushes to one shard, and the encoding of a push with
// it. The residual is what earlier pushes have not sent. A push encodes residual + update, and what
// its codes do not contain is the new residual. The idea is that of 1-bit SGD (F. Seide et al.,
// Interspeech 2014); S. P. Karimireddy et al. (ICML 2019) show when it converges.
//
//   topk     The values of the greatest magnitudes are sent (sparse). Their least magnitude is that
//            of the same share of a sample. If the number of values above it differs from the
//            target by more than 30 %, a histogram of all values replaces the sample.
//   randomk  Each value is sent with the same probability (sparse), by a random number from
//            (key, number of the value in the whole tensor).
//   onebit   Each value is sent as its sign, with the mean magnitude of its block of 512.
//   shared   Each value is sent as an integer times the scale that all workers have for its block
//            in this clock. What exceeds 127 scales stays, and so does what rounding leaves.
//
// Memory: a line with two tags, then one or two halves of n values each.
// mpips/worker/feedback/residuals.py describes what the halves are for, and why a push that is
// killed anywhere loses nothing. Only the worker writes here, so no order between threads matters.
// What matters is the order in which a killed worker leaves its stores:
// - `begin` removes the tag of the older half before it changes that half.
// - `close` stores the tag after the last value of the new half, and the writer stores the stamp of
//   the push's last record after the tag.
// With one half the residual is changed in place: for memory that ends with the process.
namespace mpips {

enum class FeedbackKind : std::uint8_t { topk, randomk, onebit, shared };
constexpr const char* feedback_names[] = {"topk", "randomk", "onebit",
                                          "shared_int8"};  // by FeedbackKind

class Feedback {
 public:
  static constexpr std::uint64_t no_tag = ~std::uint64_t{0};

  // Return the bytes of the memory; a multiple of 64.
  static std::size_t bytes(std::size_t n, std::size_t halves) noexcept {
    return line_bytes + halves * round_up(n * sizeof(float), line_bytes);
  }

  // Use memory for n values, the first of which is value `first` of the tensor. `share`: of the
  // values that are sent, above 0 and at most 1; without meaning for onebit and shared. `block`: of
  // shared, of which `first` is a multiple.
  Feedback(std::uint8_t* memory, std::size_t n, std::size_t first, std::size_t halves,
           FeedbackKind kind, double share, std::uint32_t block = 1) noexcept;

  std::size_t n() const noexcept { return n_; }
  CodecKind codec() const noexcept {
    if (kind_ == FeedbackKind::shared) return CodecKind::shared;
    return kind_ == FeedbackKind::onebit ? CodecKind::onebit : CodecKind::sparse;
  }
  // Return the place in its block of the next value to encode; 0 for codecs without scales of
  // blocks.
  std::size_t skew() const noexcept { return kind_ == FeedbackKind::shared ? done_ % block_ : 0; }
  std::size_t n_scales() const noexcept { return (n_ + block_ - 1) / block_; }
  // Set the exponents of the blocks for the pushes that follow; see shared_scale.
  void set_scales(const std::uint8_t* exponents) {
    scales_.assign(exponents, exponents + n_scales());
  }

  // Return true if a half is valid for a worker whose next record has number `next`.
  bool is_valid(std::uint64_t next) const noexcept;
  // Continue with the newest half whose push is in a record before `next`, and forget a half of a
  // later record. Return false if there is no such half; the residual is then zero.
  bool settle(std::uint64_t next) noexcept;
  // Let no half be valid, so that `settle` finds none.
  void forget() noexcept;
  // Begin with this residual. For new memory.
  void fill(const float* values) noexcept;
  // The residual; unchanged until the next `begin`.
  const float* residual() const noexcept { return half(current_); }
  // Return one more than the number of the record that ended the last push; 0: none.
  std::uint64_t pushed() const noexcept;

  // True from `begin` to `close`.
  bool is_open() const noexcept { return open_; }
  std::size_t done() const noexcept { return done_; }  // values that are encoded
  // Begin a push; `update` stays unchanged until `close`. All values are finite.
  void begin(const float* update, std::uint64_t key);
  // Encode values from `done()` on into a record; return how many, and the bytes.
  std::pair<std::size_t, std::size_t> encode(std::uint8_t* to, std::size_t capacity);
  // End the push, whose last record has this number.
  void close(std::uint64_t sequence) noexcept;

 private:
  std::uint64_t* tag(std::size_t which) const noexcept {
    return reinterpret_cast<std::uint64_t*>(memory_) + which;
  }
  float* half(std::size_t which) const noexcept {
    return reinterpret_cast<float*>(memory_ + bytes(n_, which));
  }
  void choose_greatest(const float* update);
  void choose_by_histogram();
  void choose_at_random(const float* update, std::uint64_t key);
  void list_above(const float* values, std::size_t from, std::size_t count, std::uint32_t low);
  void take_chosen(std::size_t next, float* values, std::size_t from);
  std::pair<std::size_t, std::size_t> encode_sparse(std::uint8_t* to, std::size_t cap);
  std::pair<std::size_t, std::size_t> encode_onebit(std::uint8_t* to, std::size_t cap) noexcept;
  std::pair<std::size_t, std::size_t> encode_shared(std::uint8_t* to, std::size_t cap) noexcept;

  std::uint8_t* memory_;
  std::size_t n_, first_, halves_;
  FeedbackKind kind_;
  double share_;
  std::uint32_t block_;
  std::vector<std::uint8_t> scales_;  // exponent of each block
  std::uint64_t key_ = 0;             // of the random numbers of the open push
  std::size_t current_ = 0, new_ = 0;
  bool open_ = false;
  std::size_t done_ = 0;
  const float* update_ = nullptr;
  std::vector<std::uint32_t> chosen_;  // places of the values that are sent, ascending
  std::vector<float> taken_;           // these values, which the new half does not contain
  std::size_t next_chosen_ = 0;        // of them, the first one that is not encoded
  std::vector<std::uint32_t> sample_;
  std::vector<std::uint8_t> distances_;  // of the values of a record, encoded
};

}  // namespace mpips
