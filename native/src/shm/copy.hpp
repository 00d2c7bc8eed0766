#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace mpips {

// Copy `n` bytes between places that do not overlap, as memcpy does, in no more time for any
// places.
//
// glibc before 2.39 copies more than some KiB by `rep movsb`. On processors of AMD that takes ten
// times as long if the destination is up to 31 bytes behind the source, modulo the size of a page
// (glibc bug 30994): 2 in place of 23 GB/s. NumPy's large arrays begin 16 bytes behind the begin of
// a page and values in a region at the begin of one, so this is the rule for pulls. These places
// are copied from the last byte to the first: no load has the place in its page of a recent store.
inline void copy_bytes(void* to, const void* from, std::size_t n) noexcept {
#if defined(__x86_64__)
  constexpr std::size_t least = 2048, page = 4096, near = 32, step = 64;
  const std::size_t behind =
      (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % page;
  if (n >= least && behind != 0 && behind < near) {
    auto* out = static_cast<std::uint8_t*>(to);
    const auto* in = static_cast<const std::uint8_t*>(from);
    for (; n >= step; n -= step) {
      // Loads first: the compiler must not make a memcpy of the loop.
      const auto* last = reinterpret_cast<const __m128i*>(in + n - step);
      const __m128i a = _mm_loadu_si128(last), b = _mm_loadu_si128(last + 1),
                    c = _mm_loadu_si128(last + 2), d = _mm_loadu_si128(last + 3);
      auto* end = reinterpret_cast<__m128i*>(out + n - step);
      _mm_storeu_si128(end + 3, d);
      _mm_storeu_si128(end + 2, c);
      _mm_storeu_si128(end + 1, b);
      _mm_storeu_si128(end, a);
    }
  }
#endif
  std::memcpy(to, from, n);
}

// Copy `n` bytes by stores past the caches, if `to` is a multiple of 16 bytes. They are complete
// for other cores after complete_streams(), which orders them before all stores that follow.
inline void stream_bytes(void* to, const void* from, std::size_t n) noexcept {
#if defined(__x86_64__)
  constexpr std::size_t width = 16, step = 64;
  if (reinterpret_cast<std::uintptr_t>(to) % width == 0) {
    auto* out = static_cast<std::uint8_t*>(to);
    const auto* in = static_cast<const std::uint8_t*>(from);
    for (; n >= step; n -= step, in += step, out += step) {
      const auto* first = reinterpret_cast<const __m128i*>(in);
      const __m128i a = _mm_loadu_si128(first), b = _mm_loadu_si128(first + 1),
                    c = _mm_loadu_si128(first + 2), d = _mm_loadu_si128(first + 3);
      auto* at = reinterpret_cast<__m128i*>(out);
      _mm_stream_si128(at, a);
      _mm_stream_si128(at + 1, b);
      _mm_stream_si128(at + 2, c);
      _mm_stream_si128(at + 3, d);
    }
    to = out;
    from = in;
  }
#endif
  std::memcpy(to, from, n);
}

// Wait until all stores of this thread, of both kinds, are complete for other cores.
inline void complete_streams() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace mpips
