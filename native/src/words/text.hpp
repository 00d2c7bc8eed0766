#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// Words of UTF-8 text. Any white space of Unicode separates words, as in Python's str.split; a line
// feed also ends a sentence. A text is passed block by block: a block ends at white space, or at
// the end of the text.
namespace mpips::words {

// An error of the text.
class TextError : public std::runtime_error {
 public:
  TextError(const std::string& what, std::size_t place) : runtime_error(what), at(place) {}
  std::size_t at;  // byte in the block
};

constexpr std::size_t longest_word = 10000;  // bytes

// A map from words to numbers in order of appearance. Open addressing over hashes; the bytes of all
// words lie in one array, separated by line feeds.
class WordMap {
 public:
  static constexpr std::uint32_t none = 0xffffffffU;

  WordMap();
  // Return the number of a word, which gets the next one if it is new.
  std::uint32_t add(std::string_view word);
  // Return the number of a word, or `none`.
  std::uint32_t find(std::string_view word) const noexcept;
  std::size_t size() const noexcept { return starts_.size(); }
  std::string_view word(std::uint32_t number) const noexcept;

 private:
  struct Place {
    std::uint32_t hash;    // low half of the hash
    std::uint32_t number;  // `none`: the place is free
  };
  std::size_t search(std::string_view word, std::uint64_t hash) const noexcept;
  void grow();

  std::vector<Place> places_;  // a power of two, at most half full
  std::vector<std::uint64_t> starts_;
  std::string bytes_;
};

// Words, each followed by a line feed, and how often they occur.
struct CountedWords {
  std::string words;
  std::vector<std::int64_t> counts;
};

// Counts the words of a text.
class WordCounter {
 public:
  // Throws TextError for a word that is no text; counts may be incomplete then.
  void feed(std::string_view block);
  // Add counts of words, each of which is followed by a line feed.
  void add(std::string_view words, const std::int64_t* counts, std::size_t n);
  // Return the words of part `part` of `n_parts`, in which they are by their hash, with their
  // counts.
  CountedWords part(std::uint64_t part, std::uint64_t n_parts) const;
  std::size_t size() const noexcept { return counts_.size(); }

 private:
  WordMap words_;
  std::vector<std::int64_t> counts_;
};

// Turns a text into chunks of at most `chunk_words` words. A chunk holds whole sentences, except
// for a sentence of more words, which is cut. Words that are not in the vocabulary are left out
// after the cutting.
class WordEncoder {
 public:
  static constexpr std::int32_t sentence_end = -1;

  // `vocabulary`: words in the order of their numbers, each followed by a line feed.
  WordEncoder(std::string_view vocabulary, std::size_t chunk_words);
  // Throws TextError for a word that is no text.
  void feed(std::string_view block);
  void finish();  // ends the last sentence and chunk

  // Complete chunks, which the caller takes: numbers of words and sentence ends of all chunks, and
  // the length of each.
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> lengths;
  std::int64_t n_words = 0;  // words of the text so far, those outside the vocabulary included

 private:
  void add(std::string_view word);
  void end_line();
  void close(std::size_t n_tokens, std::size_t n_words);

  WordMap words_;
  std::size_t chunk_words_;
  std::vector<std::int32_t> chunk_;                       // of the open chunk
  std::size_t in_chunk_ = 0;                              // words of the open chunk
  std::size_t line_from_token_ = 0, line_from_word_ = 0;  // where its last line begins
};

}  // namespace mpips::words
