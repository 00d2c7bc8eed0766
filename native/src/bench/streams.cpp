#include "bench/stream_loops.hpp"

#if MPIPS_X86
#include <emmintrin.h>
#endif

namespace mpips {
namespace {

// Four floats, a vector that every x86-64 and 64-bit ARM has.
struct Plain {
  using Vector [[gnu::vector_size(16)]] = float;
#if MPIPS_X86
  static void store_past_cache(float* p, Vector v) noexcept { _mm_stream_ps(p, (__m128)v); }
  static void store_past_cache(float* p, float v) noexcept { *p = v; }
  static void fence() noexcept { _mm_sfence(); }
#endif
};

#if MPIPS_X86
constexpr auto past_cache = triad_past_cache<Plain>;
#else
constexpr decltype(StreamTable::triad_past_cache) past_cache = nullptr;
#endif

}  // namespace

const StreamTable plain_streams = stream_table_of<Plain>("plain", past_cache);

}  // namespace mpips
