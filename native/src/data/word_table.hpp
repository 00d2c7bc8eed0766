#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mpips::data {

// The distinct texts of a column, numbered in the order of their first occurrence.
class WordTable {
 public:
  // Return the code of a word. `readable`: bytes from `text` on that may be read, `length` or more.
  std::int32_t find_or_add(const char* text, std::size_t length, std::size_t readable);
  std::size_t size() const noexcept { return offsets_.size() - 1; }
  std::string_view word(std::size_t code) const noexcept {
    return {arena_.data() + offsets_[code], offsets_[code + 1] - offsets_[code]};
  }
  void clear();
  // Forget all words but the first n.
  void truncate(std::size_t n);

 private:
  // Enough of a word to find it without a look elsewhere, if it is short.
  struct Slot {
    std::uint64_t prefix;  // the first eight bytes, with zeros behind a shorter word
    std::uint32_t length;
    std::int32_t code;  // -1: the slot is free
  };

  static std::uint64_t prefix_of(const char* text, std::size_t length,
                                 std::size_t readable) noexcept;
  static std::uint64_t hash_of(std::uint64_t prefix, const char* text, std::size_t length) noexcept;
  void make_slots(std::size_t n_slots);

  std::vector<Slot> slots_;                 // linear probing
  std::vector<std::size_t> offsets_ = {0};  // of each word in `arena_`, and the end
  std::string arena_;
};

}  // namespace mpips::data
