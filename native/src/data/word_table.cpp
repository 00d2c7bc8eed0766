#include "data/word_table.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

namespace mpips::data {
namespace {

constexpr std::size_t kFirstSlots = 64;
constexpr std::size_t kPrefix = 8;  // bytes

}  // namespace

std::uint64_t WordTable::prefix_of(const char* text, std::size_t length,
                                   std::size_t readable) noexcept {
  std::uint64_t prefix = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  if (readable >= kPrefix && length > 0) {
    // Lengths are as random as words, so distinguish them without branches.
    std::memcpy(&prefix, text, kPrefix);
    return prefix & (~0ULL >> (8 * (kPrefix - std::min(length, kPrefix))));
  }
#endif
  std::memcpy(&prefix, text, std::min(length, kPrefix));
  return prefix;
}

std::uint64_t WordTable::hash_of(std::uint64_t prefix, const char* text,
                                 std::size_t length) noexcept {
  if (length > kPrefix) return XXH3_64bits(text, length);
  // Each bit of the folded product depends on all bytes of the word.
  const unsigned __int128 product =
      static_cast<unsigned __int128>(prefix ^ (length * 0x9E3779B97F4A7C15)) * 0xA0761D6478BD642F;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::int32_t WordTable::find_or_add(const char* text, std::size_t length, std::size_t readable) {
  if (2 * size() >= slots_.size()) make_slots(std::max(kFirstSlots, 2 * slots_.size()));
  const std::uint64_t prefix = prefix_of(text, length, readable);
  const std::size_t mask = slots_.size() - 1;
  std::size_t place = hash_of(prefix, text, length) & mask;
  for (; slots_[place].code >= 0; place = (place + 1) & mask) {
    const Slot& slot = slots_[place];
    if (slot.prefix != prefix || slot.length != length) continue;
    const auto code = static_cast<std::size_t>(slot.code);
    if (length <= kPrefix || std::memcmp(arena_.data() + offsets_[code], text, length) == 0)
      return slot.code;
  }
  if (size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw std::length_error("a column of CSV has too many distinct texts");
  const auto code = static_cast<std::int32_t>(size());
  arena_.append(text, length);
  offsets_.push_back(arena_.size());
  slots_[place] = {prefix, static_cast<std::uint32_t>(length), code};
  return code;
}

void WordTable::clear() { *this = WordTable(); }

void WordTable::truncate(std::size_t n) {
  if (n >= size()) return;
  offsets_.resize(n + 1);
  arena_.resize(offsets_.back());
  make_slots(slots_.size());
}

// Move the slots of the words that are there to an array of another length.
void WordTable::make_slots(std::size_t n_slots) {
  std::vector<Slot> slots(n_slots, Slot{0, 0, -1});
  const std::size_t mask = slots.size() - 1;
  for (const Slot& slot : slots_) {
    if (slot.code < 0 || static_cast<std::size_t>(slot.code) >= size()) continue;
    const std::string_view text = word(static_cast<std::size_t>(slot.code));
    std::size_t place = hash_of(slot.prefix, text.data(), text.size()) & mask;
    while (slots[place].code >= 0) place = (place + 1) & mask;
    slots[place] = slot;
  }
  slots_ = std::move(slots);
}

}  // namespace mpips::data
