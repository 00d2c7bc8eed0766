#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace mpips::data {

// The places in text at which a cell may end: delimiters, line ends, quotes and NUL. 64 bytes are
// examined at a time, and each of their stops is a bit.
class Stops {
 public:
  Stops(const char* text, std::size_t length, char delimiter) noexcept
      : text_(text), end_(text + length), delimiter_(delimiter) {
    go_to(text);
  }

  const char* begin() const noexcept { return text_; }
  const char* end() const noexcept { return end_; }
  // All bytes that were examined are ASCII.
  bool are_ascii() const noexcept { return ascii_; }

  // Return the next stop, or the end of the text.
  const char* next() noexcept {
    while (bits_ == 0) {
      if (end_ - block_ <= kBlock) return end_;
      block_ += kBlock;
      bits_ = examine(block_);
    }
    const char* const stop = block_ + __builtin_ctzll(bits_);
    bits_ &= bits_ - 1;
    return stop;
  }

  // Continue with the first stop at or after `at`.
  void go_to(const char* at) noexcept {
    block_ = text_ + (at - text_) / kBlock * kBlock;
    bits_ = at == end_ ? 0 : examine(block_) & (~0ULL << (at - block_));
    if (at == end_) block_ = end_;
  }

 private:
  static constexpr std::ptrdiff_t kBlock = 64;

  std::uint64_t examine(const char* block) noexcept {
#if defined(__SSE2__)
    // Each processor of x86-64 has SSE2.
    if (end_ - block >= kBlock) {
      const __m128i delimiter = _mm_set1_epi8(delimiter_), newline = _mm_set1_epi8('\n'),
                    carriage_return = _mm_set1_epi8('\r'), quote = _mm_set1_epi8('"'),
                    nul = _mm_setzero_si128();
      std::uint64_t bits = 0;
      int high = 0;
      for (int part = 0; part < 4; ++part) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 16 * part));
        high |= _mm_movemask_epi8(bytes);
        const __m128i found = _mm_or_si128(
            _mm_or_si128(_mm_cmpeq_epi8(bytes, delimiter), _mm_cmpeq_epi8(bytes, newline)),
            _mm_or_si128(
                _mm_or_si128(_mm_cmpeq_epi8(bytes, carriage_return), _mm_cmpeq_epi8(bytes, quote)),
                _mm_cmpeq_epi8(bytes, nul)));
        bits |= static_cast<std::uint64_t>(_mm_movemask_epi8(found)) << (16 * part);
      }
      ascii_ = ascii_ && high == 0;
      return bits;
    }
#endif
    std::uint64_t bits = 0;
    const auto n = std::min(end_ - block, kBlock);
    for (std::ptrdiff_t i = 0; i < n; ++i) {
      const char c = block[i];
      const bool stop = c == delimiter_ || c == '\n' || c == '\r' || c == '"' || c == '\0';
      bits |= static_cast<std::uint64_t>(stop) << i;
      ascii_ = ascii_ && static_cast<unsigned char>(c) < 0x80;
    }
    return bits;
  }

  const char* text_;
  const char* end_;
  const char* block_;
  std::uint64_t bits_ = 0;  // the stops of the block that are still to be returned
  char delimiter_;
  bool ascii_ = true;
};

}  // namespace mpips::data
