#pragma once

#include <cstddef>

// The speed of memory: loops that kernels are compared with. They do as little arithmetic as
// possible, so their time is that of the memory that they touch. There is one table per instruction
// set, as for kernels, because none is the fastest everywhere.
namespace mpips {

struct StreamTable {
  const char* name;
  // x *= a
  void (*in_place)(float* x, float a, std::size_t n) noexcept;
  // dst += src
  void (*sum)(float* dst, const float* src, std::size_t n) noexcept;
  // a = b + s * c
  void (*triad)(float* a, const float* b, const float* c, float s, std::size_t n) noexcept;
  // a = b + s * c with stores that bypass the caches; `a` begins on a 64-byte line. Null where
  // there is no such store.
  void (*triad_past_cache)(float* a, const float* b, const float* c, float s,
                           std::size_t n) noexcept;
  // The memory traffic of an update with 0, 1 or 2 states, with one addition for each array: w +=
  // g, s0 += g, s1 += g.
  void (*touch[3])(float* w, float* s0, float* s1, const float* g, std::size_t n) noexcept;
};

extern const StreamTable plain_streams;
#if MPIPS_X86
extern const StreamTable avx2_streams;
extern const StreamTable avx512_streams;
#endif

}  // namespace mpips
