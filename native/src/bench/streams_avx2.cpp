#if MPIPS_X86

#include <immintrin.h>

#include "bench/stream_loops.hpp"

namespace mpips {
namespace {

// Eight floats.
struct Avx2 {
  using Vector [[gnu::vector_size(32)]] = float;
  static void store_past_cache(float* p, Vector v) noexcept { _mm256_stream_ps(p, (__m256)v); }
  static void store_past_cache(float* p, float v) noexcept { *p = v; }
  static void fence() noexcept { _mm_sfence(); }
};

}  // namespace

const StreamTable avx2_streams = stream_table_of<Avx2>("avx2", triad_past_cache<Avx2>);

}  // namespace mpips

#endif
