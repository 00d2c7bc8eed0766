#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/rules.hpp"

// Plain types that all instruction sets share. Files compiled with ISA flags include this header
// and no standard header with inline functions: the linker could take a copy compiled there for the
// baseline code.
namespace mpips {

// Change n weights and their state in place. A state that the rule does not have may be null.
using UpdateFn = void (*)(float* w, float* s0, float* s1, const float* g, std::size_t n,
                          const UpdateArgs& args) noexcept;

// The undo slots of a logged kernel, which may be killed at any instruction.
//
// Protocol. The kernel works through its arrays in pieces of at most 32 floats. For each piece it
//   1. copies the old values into one of two slots, which it uses alternately,
//   2. stores `position` in one store: which piece it is, and in which slot its old values lie,
//   3. changes the piece.
// So at any instruction all pieces before the one that `position` names are changed, that piece can
// be restored from its slot, and all later pieces are unchanged. The slot of the piece before it is
// not overwritten until `position` has moved on.
//
// The caller has two places, each with two slots. Its argument `at` says which place the kernel
// uses and with which slot it begins; this must not be the slot that `position` names.
struct UndoSlots {
  static constexpr unsigned shift = 10;  // the element's number lies above this bit of `position`
  // old values lie in a slot: slot_bit says in which, the bits below how many floats
  static constexpr std::uint64_t in_slot = 1 << 8;
  static constexpr std::uint64_t place_bit = 1 << 7;  // which place; see Journal::place
  static constexpr std::uint64_t slot_bit = 1 << 6;
  static constexpr std::size_t slot_floats = 32, n_arrays = 3;

  alignas(64) std::uint64_t position;
  std::uint64_t start[2];  // by place; set by the caller, or by the kernels of rows
  alignas(64) float slots[2][2][n_arrays][slot_floats];  // by place and slot
};
// `at` is the value of `position` for element 0, with place_bit and slot_bit of the first piece.
using LoggedUpdateFn = void (*)(float* w, float* s0, float* s1, const float* g, std::size_t n,
                                const UpdateArgs& args, UndoSlots* undo, std::uint64_t at) noexcept;

// Rows of a table to change one after the other. A row has `dim` weights followed by `dim` floats
// of each state. The kernel prefetches the rows that follow.
struct RowsToChange {
  float* table;               // row 0
  const std::uint32_t* rows;  // indices; rows beyond `n` follow in a later call
  // n: rows to change; n_known: indices in `rows`; stride, dim: floats per row, and of its weights
  std::size_t n, n_known, stride, dim;
  const float* gradient;     // n * dim floats
  std::size_t ahead, lines;  // prefetch this many rows ahead, and this many cache lines of each
};
using RowsUpdateFn = void (*)(const RowsToChange& rows, const UpdateArgs& args) noexcept;
// The rows are rows `first`, `first + 1`, ... of one part of an operation; elements of the part are
// numbered from `part`. Rows use the two places (see Journal::place) alternately. `position` must
// not name a slot of the place of row `first`, which is `first` modulo 2.
using LoggedRowsUpdateFn = void (*)(const RowsToChange& rows, const UpdateArgs& args,
                                    UndoSlots* undo, std::uint64_t part,
                                    std::uint64_t first) noexcept;

// Examples of word2vec with negative samples (Mikolov et al., NIPS 2013). An example has one input
// row, or the mean of several, and `n_outputs` output rows: the first is that of its word, the
// others are those of negative samples. All rows change in place, example after example. Elements
// of a row from its dimension on are 0.
struct ExampleBatch {
  static constexpr std::size_t lanes = 16, most_outputs = 64;
  // The tables of sigmoids and losses have a place for every 1/128 from -bound to bound.
  static constexpr float bound = 8.0F, places_per_unit = 128.0F;
  static constexpr std::size_t n_places = 2048;

  float *inputs, *outputs;  // row 0
  std::size_t stride;       // floats per row, a multiple of `lanes`
  std::size_t n, n_outputs;
  const std::uint32_t* input_rows;
  const std::uint32_t* input_starts;  // n + 1 places in input_rows; null: one row each
  const std::uint32_t* output_rows;   // n * n_outputs
  float rate;
  const float *sigmoids, *losses;  // of a dot product x: 1 / (1 + exp(-x)) and log(1 + exp(-x))
  float* work;                     // 2 * stride floats
};

// The kernels of one instruction set. No alignment is needed; all tables give the same bits.
struct KernelTable {
  const char* name;
  UpdateFn update[n_optimizers];               // by OptimizerKind
  LoggedUpdateFn update_logged[n_optimizers];  // same bits as `update`; see UndoSlots
  RowsUpdateFn update_rows[n_optimizers];
  LoggedRowsUpdateFn update_rows_logged[n_optimizers];
  // Return the mean of the squares of the gradients that the rule sees; 0 if n is 0.
  float (*mean_square)(const float* w, const float* g, std::size_t n,
                       const UpdateArgs& args) noexcept;
  // dst += src
  void (*add)(float* dst, const float* src, std::size_t n) noexcept;
  // dst *= a
  void (*scale)(float* dst, float a, std::size_t n) noexcept;
  // Return true if no value is NaN or infinite.
  bool (*all_finite)(const float* src, std::size_t n) noexcept;
  // Return true if all magnitudes are at most `bound` and no value is NaN.
  bool (*all_within)(const float* src, std::size_t n, float bound) noexcept;
  // Store in out[0] the sum of src - centre, and in out[1] that of its square; see sum_loops.hpp.
  void (*centred_sums)(const float* src, std::size_t n, float centre, double* out) noexcept;
  // dst = src; return true if no value is NaN or infinite.
  bool (*copy_finite)(float* dst, const float* src, std::size_t n) noexcept;
  // Like copy_finite, with stores that bypass the caches. dst is a multiple of 64 bytes. The stores
  // are complete on return.
  bool (*stream_finite)(float* dst, const float* src, std::size_t n) noexcept;
  // out = g + lambda * (w - base) * g * g, clipped to the largest finite float; out may be g. This
  // is the delay compensation of DC-ASGD (Zheng et al., ICML 2017).
  void (*compensate)(float* out, const float* g, const float* w, const float* base, float lambda,
                     std::size_t n) noexcept;
  // Codecs; see codec_loops.hpp.
  float (*max_abs)(const float* src, std::size_t n) noexcept;
  void (*encode_bf16)(std::uint16_t* dst, const float* src, std::size_t n) noexcept;
  void (*decode_bf16)(float* dst, const std::uint16_t* src, std::size_t n) noexcept;
  void (*round_bf16)(std::uint16_t* dst, const float* src, std::size_t n, std::uint32_t key0,
                     std::uint32_t key1) noexcept;
  void (*encode_fp16)(std::uint16_t* dst, const float* src, std::size_t n, float factor) noexcept;
  void (*decode_fp16)(float* dst, const std::uint16_t* src, std::size_t n, float factor) noexcept;
  void (*encode_int8)(std::int8_t* dst, const float* src, std::size_t n, float factor,
                      std::uint32_t key0, std::uint32_t key1, std::uint32_t first) noexcept;
  void (*round_int8)(std::int8_t* dst, const float* src, std::size_t n, float factor) noexcept;
  void (*decode_int8)(float* dst, const std::int8_t* src, std::size_t n, float scale) noexcept;
  float (*encode_shared)(std::int8_t* dst, float* rest, const float* a, const float* b,
                         std::size_t n, float factor, float scale, std::uint32_t key0,
                         std::uint32_t key1, std::uint32_t first) noexcept;
  std::size_t (*add_count)(float* dst, const float* a, const float* b, std::size_t n,
                           std::uint32_t low) noexcept;
  std::size_t (*list_above)(std::uint32_t* out, const float* src, std::size_t n, std::uint32_t low,
                            std::uint32_t base) noexcept;
  std::size_t (*list_random)(std::uint32_t* out, std::uint32_t first, std::size_t n,
                             std::uint32_t key0, std::uint32_t key1, std::uint32_t below,
                             std::uint32_t base) noexcept;
  float (*add_fold)(float* dst, const float* a, const float* b) noexcept;
  void (*encode_signs)(std::uint32_t* words, float* values, float magnitude) noexcept;
  void (*decode_signs)(float* dst, const std::uint32_t* words, float magnitude) noexcept;
  // Return the summed loss of the examples, each before its own update.
  double (*train_examples)(const ExampleBatch& batch) noexcept;
  // Return XXH3-64 of n bytes.
  std::uint64_t (*hash)(const void* data, std::size_t n, std::uint64_t seed) noexcept;
  // Add n bytes to an XXH3_state_t. All tables can continue each other's states.
  void (*hash_more)(void* state, const void* data, std::size_t n) noexcept;
};

}  // namespace mpips
