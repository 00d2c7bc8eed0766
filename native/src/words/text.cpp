#include "words/text.hpp"

#include <xxhash.h>

#include <array>
#include <cstring>

namespace mpips::words {
namespace {

enum ByteClass : std::uint8_t { kPlain, kSpace, kLineFeed, kNul, kHigh };

std::array<ByteClass, 256> make_classes() {
  std::array<ByteClass, 256> classes{};
  for (std::size_t i = 128; i < 256; ++i) classes[i] = kHigh;
  for (const unsigned char c : {'\t', '\v', '\f', '\r', ' ', '\x1c', '\x1d', '\x1e', '\x1f'})
    classes[c] = kSpace;
  classes['\n'] = kLineFeed;
  classes['\0'] = kNul;
  return classes;
}

const std::array<ByteClass, 256> classes = make_classes();

// Return the length of the character at `at`, which is not ASCII; 0: it is no UTF-8. Sets its code.
std::size_t decode(const unsigned char* at, const unsigned char* end,
                   std::uint32_t* code) noexcept {
  const std::size_t n = *at < 0xc2 ? 0 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : *at < 0xf5 ? 4 : 0;
  if (n == 0 || static_cast<std::size_t>(end - at) < n) return 0;
  std::uint32_t c = *at & (0xffU >> (n + 1));
  for (std::size_t i = 1; i < n; ++i) {
    if ((at[i] & 0xc0U) != 0x80U) return 0;
    c = c << 6 | (at[i] & 0x3fU);
  }
  // Refuse longer forms than needed, surrogates, and codes beyond Unicode.
  if ((n == 3 && c < 0x800) || (n == 4 && (c < 0x10000 || c > 0x10ffff))) return 0;
  if (c >= 0xd800 && c < 0xe000) return 0;
  *code = c;
  return n;
}

bool is_wide_space(std::uint32_t c) noexcept {
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

// Call on_word(word) and on_line_end() for each in a block.
template <class OnWord, class OnLineEnd>
void split(std::string_view block, OnWord on_word, OnLineEnd on_line_end) {
  const auto* const begin = reinterpret_cast<const unsigned char*>(block.data());
  const auto* const end = begin + block.size();
  const unsigned char* from = begin;
  const auto word_ends = [&](const unsigned char* at) {
    if (at == from) return;
    const auto length = static_cast<std::size_t>(at - from);
    if (length > longest_word)
      throw TextError("a word has " + std::to_string(length) + " bytes, at most " +
                          std::to_string(longest_word) + " are accepted",
                      static_cast<std::size_t>(from - begin));
    on_word(std::string_view(reinterpret_cast<const char*>(from), length));
  };
  for (const unsigned char* at = begin; at != end;) {
    const ByteClass kind = classes[*at];
    if (kind == kPlain) {
      ++at;
      continue;
    }
    std::size_t length = 1;
    if (kind == kNul) throw TextError("contains a NUL byte", static_cast<std::size_t>(at - begin));
    if (kind == kHigh) {
      std::uint32_t code = 0;
      length = decode(at, end, &code);
      if (length == 0) throw TextError("is not UTF-8", static_cast<std::size_t>(at - begin));
      if (!is_wide_space(code)) {
        at += length;
        continue;
      }
    }
    word_ends(at);
    at += length;
    from = at;
    if (kind == kLineFeed) on_line_end();
  }
  word_ends(end);
}

}  // namespace

WordMap::WordMap() : places_(1024, Place{0, none}) {}

std::string_view WordMap::word(std::uint32_t number) const noexcept {
  const std::size_t end = number + 1 < size() ? starts_[number + 1] : bytes_.size();
  return {bytes_.data() + starts_[number], end - starts_[number] - 1};
}

std::size_t WordMap::search(std::string_view word_, std::uint64_t hash) const noexcept {
  const std::size_t mask = places_.size() - 1;
  std::size_t at = (hash >> 32) & mask;
  while (places_[at].number != none && (places_[at].hash != static_cast<std::uint32_t>(hash) ||
                                        word(places_[at].number) != word_))
    at = (at + 1) & mask;
  return at;
}

std::uint32_t WordMap::find(std::string_view word_) const noexcept {
  return places_[search(word_, XXH3_64bits(word_.data(), word_.size()))].number;
}

std::uint32_t WordMap::add(std::string_view word_) {
  const std::uint64_t hash = XXH3_64bits(word_.data(), word_.size());
  std::size_t at = search(word_, hash);
  if (places_[at].number != none) return places_[at].number;
  if (size() + 1 == none) throw std::length_error("more than 4,294,967,294 different words");
  if (2 * (size() + 1) > places_.size()) {
    grow();
    at = search(word_, hash);
  }
  const auto number = static_cast<std::uint32_t>(size());
  starts_.push_back(bytes_.size());
  bytes_.append(word_);
  bytes_.push_back('\n');
  places_[at] = {static_cast<std::uint32_t>(hash), number};
  return number;
}

void WordMap::grow() {
  places_.assign(2 * places_.size(), Place{0, none});
  const std::size_t mask = places_.size() - 1;
  for (std::uint32_t i = 0; i < size(); ++i) {
    const std::string_view w = word(i);
    const std::uint64_t hash = XXH3_64bits(w.data(), w.size());
    std::size_t at = (hash >> 32) & mask;
    while (places_[at].number != none) at = (at + 1) & mask;
    places_[at] = {static_cast<std::uint32_t>(hash), i};
  }
}

void WordCounter::feed(std::string_view block) {
  split(
      block,
      [this](std::string_view word) {
        const std::uint32_t number = words_.add(word);
        if (number == counts_.size()) counts_.push_back(0);
        ++counts_[number];
      },
      [] {});
}

void WordCounter::add(std::string_view words, const std::int64_t* counts, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t end = words.find('\n');
    const std::uint32_t number = words_.add(words.substr(0, end));
    if (number == counts_.size()) counts_.push_back(0);
    counts_[number] += counts[i];
    words.remove_prefix(end == std::string_view::npos ? words.size() : end + 1);
  }
}

CountedWords WordCounter::part(std::uint64_t part, std::uint64_t n_parts) const {
  CountedWords found;
  for (std::uint32_t i = 0; i < size(); ++i) {
    const std::string_view word = words_.word(i);
    if (XXH3_64bits(word.data(), word.size()) % n_parts != part) continue;
    found.words.append(word);
    found.words.push_back('\n');
    found.counts.push_back(counts_[i]);
  }
  return found;
}

WordEncoder::WordEncoder(std::string_view vocabulary, std::size_t chunk_words)
    : chunk_words_(chunk_words) {
  while (!vocabulary.empty()) {
    const std::size_t end = vocabulary.find('\n');
    words_.add(vocabulary.substr(0, end));
    vocabulary.remove_prefix(end == std::string_view::npos ? vocabulary.size() : end + 1);
  }
}

void WordEncoder::feed(std::string_view block) {
  split(block, [this](std::string_view word) { add(word); }, [this] { end_line(); });
}

void WordEncoder::finish() {
  end_line();
  if (in_chunk_ != 0) close(chunk_.size(), in_chunk_);
}

void WordEncoder::add(std::string_view word) {
  if (in_chunk_ == chunk_words_) {
    if (line_from_word_ != 0) {
      // Move the line that has begun to the next chunk.
      close(line_from_token_, line_from_word_);
    } else {
      chunk_.push_back(sentence_end);
      close(chunk_.size(), in_chunk_);
    }
  }
  ++n_words;
  ++in_chunk_;
  const std::uint32_t number = words_.find(word);
  if (number != WordMap::none) chunk_.push_back(static_cast<std::int32_t>(number));
}

void WordEncoder::end_line() {
  if (chunk_.size() > line_from_token_) chunk_.push_back(sentence_end);
  line_from_token_ = chunk_.size();
  line_from_word_ = in_chunk_;
}

void WordEncoder::close(std::size_t n_tokens, std::size_t n_closed) {
  tokens.insert(tokens.end(), chunk_.begin(),
                chunk_.begin() + static_cast<std::ptrdiff_t>(n_tokens));
  lengths.push_back(static_cast<std::int64_t>(n_tokens));
  chunk_.erase(chunk_.begin(), chunk_.begin() + static_cast<std::ptrdiff_t>(n_tokens));
  in_chunk_ -= n_closed;
  line_from_token_ = line_from_word_ = 0;
}

}  // namespace mpips::words
