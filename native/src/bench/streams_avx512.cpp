#if MPIPS_X86

#include <immintrin.h>

#include "bench/stream_loops.hpp"

namespace mpips {
namespace {

// Sixteen floats.
struct Avx512 {
  using Vector [[gnu::vector_size(64)]] = float;
  static void store_past_cache(float* p, Vector v) noexcept { _mm512_stream_ps(p, (__m512)v); }
  static void store_past_cache(float* p, float v) noexcept { *p = v; }
  static void fence() noexcept { _mm_sfence(); }
};

}  // namespace

const StreamTable avx512_streams = stream_table_of<Avx512>("avx512", triad_past_cache<Avx512>);

}  // namespace mpips

#endif
