#pragma once

#include <cstddef>
#include <cstdint>

// Plain types that every instruction set shares. Files compiled with ISA flags include this and no
// standard header with inline functions: a copy made there could be linked into the baseline.
namespace mpips {

enum class OptimizerKind : std::uint8_t {
  sgd,
  momentum,
  nesterov,
  adagrad,
  rmsprop,
  adam,
  adamw,
  ftrl
};

constexpr std::size_t n_optimizers = 8;

// What the inner loops read; made by `prepare`. A rule reads the fields it needs.
struct UpdateArgs {
  float gradient_scale;
  float clip_value;       // off: one whose square is finite, or infinity if none is taken
  float coupled_decay;    // gradient += coupled_decay * w
  float decoupled_decay;  // w -= decoupled_decay * w
  float lr;               // times `rate`; adam, adamw: divided by the first bias correction
  float momentum;
  float decay1, rest1;  // of the first moment: beta1 and 1 - beta1
  float decay2, rest2;  // of the second moment: beta2 or rho, and 1 minus it
  float root_scale;     // 1 / sqrt(second bias correction)
  float eps;
  float rate;  // 1, or what the policy for stale pushes multiplies the learning rate with
  float inverse_lr;
  float l1, l2, beta;
};

// Changes n weights (and their state) in place. A state that the rule does not have may be null.
using UpdateFn = void (*)(float* w, float* s0, float* s1, const float* g, std::size_t n,
                          const UpdateArgs& args) noexcept;

// Where a kernel that can be killed at any instruction keeps what it is about to change. It works
// through its arrays piece by piece (at most 32 floats): old values into one of two slots, by
// turns; then, in one store, which piece that is and where it was kept; then the change. So at any
// instruction all pieces before that one are changed, it is in its slot, and those behind it are as
// they were. The slot of the piece before stays as it is until the position has moved on. The
// caller has two places, with slots of their own, and says in `at` which one to use and with which
// slot to begin: not with the one that the position names.
struct UndoSlots {
  static constexpr unsigned shift = 10;               // element in the position's word
  static constexpr std::uint64_t in_slot = 1 << 8;    // below it: which slot, and how many floats
  static constexpr std::uint64_t place_bit = 1 << 7;  // the caller's: see Journal::place
  static constexpr std::uint64_t slot_bit = 1 << 6;
  static constexpr std::size_t slot_floats = 32, n_arrays = 3;

  alignas(64) std::uint64_t position;
  std::uint64_t start[2];  // the caller's, by place; set by kernels of rows
  alignas(64) float slots[2][2][n_arrays][slot_floats];  // by place and turn
};
// `at`: the position's word for element 0, with place_bit and slot_bit.
using LoggedUpdateFn = void (*)(float* w, float* s0, float* s1, const float* g, std::size_t n,
                                const UpdateArgs& args, UndoSlots* undo, std::uint64_t at) noexcept;

// Rows of a table that are changed one after the other. A row holds `dim` weights and as many of
// each state behind them; the next ones' lines are asked for ahead.
struct RowsToChange {
  float* table;               // row 0
  const std::uint32_t* rows;  // `n` are changed, those of `n_known` behind them come later
  std::size_t n, n_known, stride, dim;  // of a row: floats
  const float* gradient;                // n times dim
  std::size_t ahead, lines;             // rows; lines of each
};
using RowsUpdateFn = void (*)(const RowsToChange& rows, const UpdateArgs& args) noexcept;
// Rows number `first` and so on of a part of an operation, which begins at `part`: each is a place
// of its own (see Journal::place), by turns; no piece of place `first` modulo 2 may be kept.
using LoggedRowsUpdateFn = void (*)(const RowsToChange& rows, const UpdateArgs& args,
                                    UndoSlots* undo, std::uint64_t part,
                                    std::uint64_t first) noexcept;

// One instruction set's kernels. No alignment is asked for; all tables give the same bits.
struct KernelTable {
  const char* name;
  UpdateFn update[n_optimizers];               // by OptimizerKind
  LoggedUpdateFn update_logged[n_optimizers];  // the same bits; see UndoSlots
  RowsUpdateFn update_rows[n_optimizers];
  LoggedRowsUpdateFn update_rows_logged[n_optimizers];
  // dst += src
  void (*add)(float* dst, const float* src, std::size_t n) noexcept;
  // dst *= a
  void (*scale)(float* dst, float a, std::size_t n) noexcept;
  // True if there is no NaN and no infinity.
  bool (*all_finite)(const float* src, std::size_t n) noexcept;
  // True if no magnitude is greater than `bound`, and there is no NaN.
  bool (*all_within)(const float* src, std::size_t n, float bound) noexcept;
  // dst = src; true if there is no NaN and no infinity.
  bool (*copy_finite)(float* dst, const float* src, std::size_t n) noexcept;
  // The same past the caches; dst at a multiple of 64 bytes. Complete when it returns.
  bool (*stream_finite)(float* dst, const float* src, std::size_t n) noexcept;
  // out = g + lambda * (w - base) * g * g, at most the largest float; out may be g (DC-ASGD, Zheng
  // et al., ICML 2017).
  void (*compensate)(float* out, const float* g, const float* w, const float* base, float lambda,
                     std::size_t n) noexcept;
  // XXH3-64 of n bytes.
  std::uint64_t (*hash)(const void* data, std::size_t n, std::uint64_t seed) noexcept;
  // The next n bytes for an XXH3_state_t, which all tables share.
  void (*hash_more)(void* state, const void* data, std::size_t n) noexcept;
};

}  // namespace mpips
