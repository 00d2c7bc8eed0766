#pragma once

// XXH_INLINE_ALL makes all its functions static, so each file has its own.
#include <xxhash.h>

#include "kernels/codec_loops.hpp"
#include "kernels/example_loops.hpp"
#include "kernels/kernel_types.hpp"
#include "kernels/rules.hpp"
#include "kernels/sum_loops.hpp"

// The loops, written once over a vector type V and compiled by scalar.cpp, avx2.cpp and avx512.cpp.
// V has `width` floats, the operations of IEEE 754 without fused multiply-add, and a type `Half` of
// half the width (or V itself). Each element sees the same operations wherever a tensor is cut: in
// a vector, in a half vector, or in a vector whose other lanes are masked. The namespace is unnamed
// because no two files may share an instantiation: they are compiled for different instruction
// sets.
namespace mpips {
namespace {

// Access to all lanes of a vector.
template <class V>
struct Whole {
  using Vector = V;
  std::size_t size() const noexcept { return V::width; }
  V load(const float* p) const noexcept { return V::load(p); }
  void store(float* p, V v) const noexcept { v.store(p); }
  void stream(float* p, V v) const noexcept { v.stream(p); }
};

// Access to the first n lanes; the memory of the others is not touched.
template <class V>
struct First {
  using Vector = V;
  std::size_t n;
  std::size_t size() const noexcept { return n; }
  V load(const float* p) const noexcept { return V::load_first(p, n); }
  void store(float* p, V v) const noexcept { v.store_first(p, n); }
  void stream(float* p, V v) const noexcept { v.store_first(p, n); }
};

// Call body(lanes, i) for pieces that start at i and together cover 0 to n; stop where it returns
// false. The half vector is for short rows: a wide masked access is slow if its masked-off lanes
// reach into another cache line.
template <class V, class Body>
inline bool sweep(std::size_t n, Body body) noexcept {
  using Half = typename V::Half;
  std::size_t i = 0;
  for (; i + V::width <= n; i += V::width)
    if (!body(Whole<V>{}, i)) return false;
  if (Half::width < V::width && i + Half::width <= n) {
    if (!body(Whole<Half>{}, i)) return false;
    i += Half::width;
  }
  return i == n || body(First<Half>{n - i}, i);
}

// Return true if the weights are to be stored past the caches, and can be.
inline bool goes_past(const UpdateArgs& args, const float* w) noexcept {
  return args.past_caches && reinterpret_cast<std::uintptr_t>(w) % 64 == 0;
}

// Orders the stores past the caches of a call, which the processor may delay and reorder, behind
// all stores before the call and before all stores after it. Recovery needs no such order within
// the call: when a process has been killed, all stores that it executed are in memory.
template <class V>
class PastCaches {
 public:
  explicit PastCaches(bool past) noexcept : past_(past) {
    if (past_) V::fence();
  }
  ~PastCaches() {
    if (past_) V::fence();
  }
  PastCaches(const PastCaches&) = delete;
  PastCaches& operator=(const PastCaches&) = delete;

 private:
  const bool past_;
};

// Update n weights and their state by one rule. `past`: store the weights past the caches.
template <class V, template <class> class Rule, bool past>
inline void update_by(float* w, float* s0, float* s1, const float* g, std::size_t n,
                      const UpdateArgs& args) noexcept {
  constexpr std::size_t n_state = Rule<V>::n_state;
  sweep<V>(n, [=](auto lanes, std::size_t i) {
    using T = typename decltype(lanes)::Vector;
    const Rule<T> rule(args);
    const rules::Gradient<T> gradient(args);
    T weight = lanes.load(w + i);
    T a = n_state > 0 ? lanes.load(s0 + i) : T::zero();
    T b = n_state > 1 ? lanes.load(s1 + i) : T::zero();
    rule(gradient(lanes.load(g + i), weight), weight, a, b);
    if (past)
      lanes.stream(w + i, weight);
    else
      lanes.store(w + i, weight);
    if (n_state > 0) lanes.store(s0 + i, a);
    if (n_state > 1) lanes.store(s1 + i, b);
    return true;
  });
}

template <class V, template <class> class Rule>
void update(float* w, float* s0, float* s1, const float* g, std::size_t n,
            const UpdateArgs& args) noexcept {
  if (!goes_past(args, w)) return update_by<V, Rule, false>(w, s0, s1, g, n, args);
  const PastCaches<V> order(true);
  update_by<V, Rule, true>(w, s0, s1, g, n, args);
}

// Keep the compiler from moving stores past this point: recovery depends on the order of stores in
// the program (see journal/journal.hpp).
inline void keep_order() noexcept { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

template <class V>
inline void copy(float* to, const float* from, std::size_t n) noexcept {
  sweep<V>(n, [=](auto lanes, std::size_t i) {
    lanes.store(to + i, lanes.load(from + i));
    return true;
  });
}

// Publish, in one store, which piece has its old values in which slot.
inline void keep(UndoSlots* undo, std::uint64_t position) noexcept {
  keep_order();
  __atomic_store_n(&undo->position, position, __ATOMIC_RELAXED);
  keep_order();
}

// Save and update a whole piece; its values stay in registers between the two.
template <class V, template <class> class Rule>
inline void update_piece(float* w, float* s0, float* s1, const float* g, const UpdateArgs& args,
                         float (*slot)[UndoSlots::slot_floats], UndoSlots* undo,
                         std::uint64_t position, bool past) noexcept {
  constexpr std::size_t n_state = Rule<V>::n_state, n = UndoSlots::slot_floats / V::width;
  V weight[n], a[n], b[n];
  for (std::size_t k = 0; k < n; ++k) {
    const std::size_t at = k * V::width;
    weight[k] = V::load(w + at);
    weight[k].store(slot[0] + at);
    a[k] = b[k] = V::zero();
    if (n_state > 0) {
      a[k] = V::load(s0 + at);
      a[k].store(slot[1] + at);
    }
    if (n_state > 1) {
      b[k] = V::load(s1 + at);
      b[k].store(slot[2] + at);
    }
  }
  keep(undo, position + UndoSlots::slot_floats);
  const Rule<V> rule(args);
  const rules::Gradient<V> gradient(args);
  for (std::size_t k = 0; k < n; ++k) {
    const std::size_t at = k * V::width;
    rule(gradient(V::load(g + at), weight[k]), weight[k], a[k], b[k]);
    if (past)
      weight[k].stream(w + at);
    else
      weight[k].store(w + at);
    if (n_state > 0) a[k].store(s0 + at);
    if (n_state > 1) b[k].store(s1 + at);
  }
  keep_order();
}

// Update n elements piece by piece. `at` has no slot_bit; the first piece uses slot `number` of
// `place`.
template <class V, template <class> class Rule>
[[gnu::always_inline]] inline void update_pieces(float* w, float* s0, float* s1, const float* g,
                                                 std::size_t n, const UpdateArgs& args,
                                                 UndoSlots* undo, std::uint64_t at,
                                                 std::size_t place, std::size_t number,
                                                 bool past = false) noexcept {
  constexpr std::size_t n_state = Rule<V>::n_state;
  at |= UndoSlots::in_slot;
  std::size_t i = 0;
  for (; i + UndoSlots::slot_floats <= n; i += UndoSlots::slot_floats, number ^= 1)
    update_piece<V, Rule>(w + i, n_state > 0 ? s0 + i : nullptr, n_state > 1 ? s1 + i : nullptr,
                          g + i, args, undo->slots[place][number], undo,
                          at + (i << UndoSlots::shift) + number * UndoSlots::slot_bit, past);
  const std::size_t count = n - i;
  if (count == 0) return;
  auto* slot = undo->slots[place][number];
  copy<V>(slot[0], w + i, count);
  if (n_state > 0) copy<V>(slot[1], s0 + i, count);
  if (n_state > 1) copy<V>(slot[2], s1 + i, count);
  keep(undo, at + (i << UndoSlots::shift) + number * UndoSlots::slot_bit + count);
  update_by<V, Rule, false>(w + i, n_state > 0 ? s0 + i : nullptr, n_state > 1 ? s1 + i : nullptr,
                            g + i, count, args);
  keep_order();
}

template <class V, template <class> class Rule>
void update_logged(float* w, float* s0, float* s1, const float* g, std::size_t n,
                   const UpdateArgs& args, UndoSlots* undo, std::uint64_t at) noexcept {
  const std::size_t place = (at & UndoSlots::place_bit) != 0,
                    number = (at & UndoSlots::slot_bit) != 0;
  const bool past = goes_past(args, w);
  const PastCaches<V> order(past);
  update_pieces<V, Rule>(w, s0, s1, g, n, args, undo, at & ~UndoSlots::slot_bit, place, number,
                         past);
}

// Prefetch row i. Always inlined: GCC considers a function that only prefetches free of effects and
// drops calls to it.
[[gnu::always_inline]] inline void ask_for(const RowsToChange& r, std::size_t i) noexcept {
  if (i >= r.n_known) return;
  const auto* at = reinterpret_cast<const char*>(r.table + r.rows[i] * r.stride);
  for (std::size_t line = 0; line < r.lines; ++line) __builtin_prefetch(at + 64 * line, 1);
}

template <class V, template <class> class Rule>
void update_rows(const RowsToChange& rows, const UpdateArgs& args) noexcept {
  constexpr std::size_t n_state = Rule<V>::n_state;
  // Copy both, so that they stay in registers: the stores below cannot change local copies.
  const RowsToChange r = rows;
  const UpdateArgs mine = args;
  for (std::size_t i = 0; i < r.n; ++i) {
    ask_for(r, i + r.ahead);
    float* w = r.table + r.rows[i] * r.stride;
    update_by<V, Rule, false>(w, n_state > 0 ? w + r.dim : nullptr,
                              n_state > 1 ? w + 2 * r.dim : nullptr, r.gradient + i * r.dim, r.dim,
                              mine);
  }
}

template <class V, template <class> class Rule>
void update_rows_logged(const RowsToChange& rows, const UpdateArgs& args, UndoSlots* undo,
                        std::uint64_t part, std::uint64_t first) noexcept {
  constexpr std::size_t n_state = Rule<V>::n_state;
  // Copy both, so that they stay in registers: the stores below cannot change local copies.
  const RowsToChange r = rows;
  const UpdateArgs mine = args;
  for (std::size_t i = 0; i < r.n; ++i) {
    ask_for(r, i + r.ahead);
    const std::uint64_t place = (first + i) & 1, element = (first + i) * r.dim;
    const std::size_t at = r.rows[i] * r.stride;
    __atomic_store_n(&undo->start[place], (at - element) * sizeof(float), __ATOMIC_RELAXED);
    keep_order();
    float* w = r.table + at;
    update_pieces<V, Rule>(
        w, n_state > 0 ? w + r.dim : nullptr, n_state > 1 ? w + 2 * r.dim : nullptr,
        r.gradient + i * r.dim, r.dim, mine, undo,
        part + (element << UndoSlots::shift) + place * UndoSlots::place_bit, place, 0);
  }
}

// Add the squares in eight lanes, element i in lane i % 8, and the lanes in pairs. So the order of
// the additions is that of every instruction set. Plain C++, which the compiler vectorises.
inline float mean_square(const float* w, const float* g, std::size_t n,
                         const UpdateArgs& args) noexcept {
  constexpr std::size_t n_lanes = 8;
  const float scale = args.gradient_scale, bound = args.clip_value, decay = args.coupled_decay;
  float lanes[n_lanes] = {};
  const auto add = [&](std::size_t i, std::size_t lane) {
    // NaN stays NaN: min and max return the second operand if one is NaN, as in the rules.
    const float scaled = g[i] * scale;
    const float least = bound < scaled ? bound : scaled;
    const float clipped = -bound > least ? -bound : least;
    const float gradient = clipped + decay * w[i];
    lanes[lane] += gradient * gradient;
  };
  std::size_t i = 0;
  for (; i + n_lanes <= n; i += n_lanes)
    for (std::size_t lane = 0; lane < n_lanes; ++lane) add(i + lane, lane);
  for (std::size_t lane = 0; i < n; ++i, ++lane) add(i, lane);
  if (n == 0) return 0.0F;
  const float even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6]);
  const float odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7]);
  return (even + odd) / static_cast<float>(n);
}

template <class V>
void add(float* dst, const float* src, std::size_t n) noexcept {
  sweep<V>(n, [=](auto lanes, std::size_t i) {
    lanes.store(dst + i, lanes.load(dst + i) + lanes.load(src + i));
    return true;
  });
}

template <class V>
void scale(float* dst, float a, std::size_t n) noexcept {
  sweep<V>(n, [=](auto lanes, std::size_t i) {
    lanes.store(dst + i, lanes.load(dst + i) * decltype(lanes)::Vector::set(a));
    return true;
  });
}

template <class V>
inline bool finite(V v) noexcept {
  return V::all(less_equal(abs(v), V::set(__FLT_MAX__)));
}

template <class V>
bool all_finite(const float* src, std::size_t n) noexcept {
  return sweep<V>(n, [=](auto lanes, std::size_t i) { return finite(lanes.load(src + i)); });
}

template <class V>
bool all_within(const float* src, std::size_t n, float bound) noexcept {
  return sweep<V>(n, [=](auto lanes, std::size_t i) {
    using T = typename decltype(lanes)::Vector;
    return T::all(less_equal(abs(lanes.load(src + i)), T::set(bound)));
  });
}

template <class V>
bool copy_finite(float* dst, const float* src, std::size_t n) noexcept {
  bool all = true;
  sweep<V>(n, [=, &all](auto lanes, std::size_t i) {
    const auto v = lanes.load(src + i);
    all &= finite(v);
    lanes.store(dst + i, v);
    return true;
  });
  return all;
}

// Copy with streaming stores, for copies larger than the caches: the destination is not read before
// it is written. dst must be a multiple of the vector's size.
template <class V>
bool stream_finite(float* dst, const float* src, std::size_t n) noexcept {
  bool all = true;
  std::size_t i = 0;
  for (; i + V::width <= n; i += V::width) {
    const V v = V::load(src + i);
    all &= finite(v);
    v.stream(dst + i);
  }
  V::fence();
  return copy_finite<V>(dst + i, src + i, n - i) && all;
}

template <class W>
void compensate(float* out, const float* g, const float* w, const float* base, float lambda,
                std::size_t n) noexcept {
  sweep<W>(n, [=](auto lanes, std::size_t i) {
    using V = typename decltype(lanes)::Vector;
    const V gradient = lanes.load(g + i);
    const V moved = lanes.load(w + i) - lanes.load(base + i);
    // Multiply by `moved` first: the gradient's square could be infinite, and infinity times zero
    // is NaN.
    const V sum = gradient + V::set(lambda) * moved * gradient * gradient;
    lanes.store(out + i, max(-V::set(__FLT_MAX__), min(V::set(__FLT_MAX__), sum)));
    return true;
  });
}

inline std::uint64_t hash(const void* data, std::size_t n, std::uint64_t seed) noexcept {
  return seed == 0 ? XXH3_64bits(data, n) : XXH3_64bits_withSeed(data, n, seed);
}

inline void hash_more(void* state, const void* data, std::size_t n) noexcept {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, n);
}

// Entries of the tables below, one for each optimizer.
#define MPIPS_UPDATE(kind, Rule, ...) update<V, rules::Rule>,
#define MPIPS_UPDATE_LOGGED(kind, Rule, ...) update_logged<V, rules::Rule>,
#define MPIPS_UPDATE_ROWS(kind, Rule, ...) update_rows<V, rules::Rule>,
#define MPIPS_UPDATE_ROWS_LOGGED(kind, Rule, ...) update_rows_logged<V, rules::Rule>,

template <class V>
constexpr KernelTable table_of(const char* name) {
  return {name,
          {MPIPS_OPTIMIZERS(MPIPS_UPDATE)},
          {MPIPS_OPTIMIZERS(MPIPS_UPDATE_LOGGED)},
          {MPIPS_OPTIMIZERS(MPIPS_UPDATE_ROWS)},
          {MPIPS_OPTIMIZERS(MPIPS_UPDATE_ROWS_LOGGED)},
          mean_square,
          add<V>,
          scale<V>,
          all_finite<V>,
          all_within<V>,
          centred_sums<V>,
          copy_finite<V>,
          stream_finite<V>,
          compensate<V>,
          max_abs,
          encode_bf16,
          decode_bf16,
          round_bf16,
          encode_fp16,
          decode_fp16,
          encode_int8,
          round_int8,
          decode_int8,
          encode_shared,
          add_count,
          list_above,
          list_random,
          add_fold,
          encode_signs,
          decode_signs,
          train_examples<V>,
          hash,
          hash_more};
}

#undef MPIPS_UPDATE
#undef MPIPS_UPDATE_LOGGED
#undef MPIPS_UPDATE_ROWS
#undef MPIPS_UPDATE_ROWS_LOGGED

}  // namespace
}  // namespace mpips
