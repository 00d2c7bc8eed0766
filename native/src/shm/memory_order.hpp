#pragma once

#include <cstdint>

// Loads and stores of words that several processes share. Every such word has exactly one writer,
// so acquire loads and release stores are sufficient, and no read-modify-write operation is needed.
// The exceptions are words of workers of one node (reduction/shared_pulls.hpp, node_rows.hpp).
namespace mpips {

template <class T>
inline T load_acquire(const T* word) noexcept {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

template <class T>
inline T load_relaxed(const T* word) noexcept {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}

template <class T>
inline void store_release(T* word, T value) noexcept {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

template <class T>
inline void store_relaxed(T* word, T value) noexcept {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

inline void fence_acquire() noexcept { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
inline void fence_release() noexcept { __atomic_thread_fence(__ATOMIC_RELEASE); }

// A word and its complement. A remote reader may see bytes of two different stores. It accepts the
// value only if both halves agree, which a mixture of two stores does not do by accident. The
// writer stores the complement last; a reader that finds the halves different reads again.
struct PairWord {
  std::uint64_t value;
  std::uint64_t complement;
};

inline void publish(PairWord* word, std::uint64_t value) noexcept {
  store_release(&word->value, value);
  store_release(&word->complement, ~value);
}

// Set `*value` and return true if both halves of the pair agree; else return false.
inline bool read_pair(const PairWord* word, std::uint64_t* value) noexcept {
  const std::uint64_t complement = load_acquire(&word->complement);
  const std::uint64_t first = load_acquire(&word->value);
  if (first != ~complement) return false;
  *value = first;
  return true;
}

// Return the value of a pair whose writer is running: read until the halves agree, at most 64
// times, else return `last_good`.
inline std::uint64_t read_pair_spin(const PairWord* word, std::uint64_t last_good) noexcept {
  std::uint64_t value = last_good;
  for (int i = 0; i < 64; ++i) {
    if (read_pair(word, &value)) return value;
  }
  return last_good;
}

}  // namespace mpips
