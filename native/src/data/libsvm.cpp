// Grammar, one sample per line:
//   label [qid:ID] index:value index:value ... [# comment]
// With several labels of a sample, there is a list such as 1,3,7 in the place of the label, or
// nothing. Blank lines and lines with only a comment are no samples. A carriage return counts as a
// space.
#include "data/libsvm.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "data/number.hpp"

namespace mpips::data {
namespace {

constexpr std::size_t kShownLength = 40;
constexpr double kLabelLimit = 9007199254740992.0;  // 2^53: whole numbers below it are exact

struct Entry {
  std::int64_t index;
  float value;
  const char* at;
};

struct Token {
  const char* begin;
  const char* end;
};

bool contains(const Token& token, char c) noexcept {
  return std::find(token.begin, token.end, c) != token.end;
}

bool is_space(char c) noexcept { return c == ' ' || c == '\t' || c == '\r'; }

class Parser {
 public:
  Parser(const char* text, std::size_t length, const LibsvmOptions& options)
      : at_(text), end_(text + length), line_begin_(text), options_(options) {
    static const char kByteOrderMark[] = "\xef\xbb\xbf";
    if (length >= 3 && std::memcmp(text, kByteOrderMark, 3) == 0) at_ += 3;
  }

  LibsvmPart run() {
    reserve();
    while (at_ != end_) parse_line();
    part_.base = decide_base();
    if (part_.base != 0) subtract_base();
    return std::move(part_);
  }

 private:
  // Reserve memory by counting colons, one per feature; growing by doubling would copy the features
  // several times.
  void reserve() {
    const auto n_features = std::count(at_, end_, ':') / options_.stride;
    part_.indices.reserve(static_cast<std::size_t>(n_features));
    part_.values.reserve(static_cast<std::size_t>(n_features));
  }

  void parse_line() {
    ++line_;
    line_begin_ = at_;
    Token token;
    if (next_token(token)) {
      if (owner(options_.first + part_.n_samples++, options_) == options_.offset)
        keep_sample(token);
      else
        skip_sample(token);
    }
    const void* newline = std::memchr(at_, '\n', static_cast<std::size_t>(end_ - at_));
    at_ = newline == nullptr ? end_ : static_cast<const char*>(newline) + 1;
  }

  // Read the next run of non-space characters before the end of the line or a comment.
  bool next_token(Token& token) noexcept {
    while (at_ != end_ && is_space(*at_)) ++at_;
    token.begin = at_;
    while (at_ != end_ && !is_space(*at_) && *at_ != '\n' && *at_ != '#') ++at_;
    token.end = at_;
    return token.begin != token.end;
  }

  // Move from the first token of a line to its first feature, behind a query id; false: it has
  // none.
  bool begin_features(Token& token) noexcept {
    const bool has_label = !options_.several || !contains(token, ':');
    if (has_label && !next_token(token)) return false;
    const bool is_query = token.end - token.begin >= 4 && std::memcmp(token.begin, "qid:", 4) == 0;
    return is_query ? next_token(token) : true;
  }

  void keep_sample(Token token) {
    if (options_.several)
      parse_labels(token);
    else
      part_.labels.push_back(parse_label(token));
    row_.clear();
    bool sorted = true;
    for (bool more = begin_features(token); more; more = next_token(token)) {
      const Entry entry = parse_feature(token);
      sorted = sorted && (row_.empty() || row_.back().index < entry.index);
      row_.push_back(entry);
    }
    if (!sorted) sort_row("expected each index once per sample, this one is repeated");
    append_row(kFeatureField);
    part_.indptr.push_back(static_cast<std::int64_t>(part_.indices.size()));
  }

  double parse_label(const Token& token) const {
    double value;
    if (parse_double(token.begin, token.end, value)) return value;
    const bool is_list = contains(token, ',') || contains(token, ':');
    fail(token.begin, token,
         is_list
             ? "expected a label: one finite number such as 0, 1, -1 or 3.5; lines with several "
               "labels, or none, are for task 'mlp' with options.labels = 'several'"
             : "expected a label: one finite number such as 0, 1, -1 or 3.5");
  }

  // Append an entry for each label in a list; a line that begins with a feature has none.
  void parse_labels(const Token& list) {
    part_.labels.push_back(0);
    if (contains(list, ':')) return;
    row_.clear();
    for (const char* begin = list.begin;; ++begin) {
      const char* const end = std::find(begin, list.end, ',');
      double value;
      if (!parse_double(begin, end, value) || !(value >= 0 && value < kLabelLimit) ||
          value != std::floor(value))
        fail(
            begin, {begin, end},
            "expected several labels: whole numbers of 0 or more with commas between them, such as "
            "1,3,7");
      row_.push_back({static_cast<std::int64_t>(value), 1, begin});
      begin = end;
      if (end == list.end) break;
    }
    sort_row("expected each label once per sample, this one is repeated");
    append_row(kLabelField);
  }

  void append_row(std::int32_t field) {
    for (const Entry& entry : row_) {
      part_.indices.push_back(entry.index);
      part_.values.push_back(entry.value);
    }
    if (options_.several) part_.fields.resize(part_.indices.size(), field);
  }

  // Count features from 0. Labels stay as they are.
  void subtract_base() noexcept {
    for (std::size_t i = 0; i < part_.indices.size(); ++i)
      if (!options_.several || part_.fields[i] == kFeatureField) part_.indices[i] -= part_.base;
  }

  void skip_sample(Token token) {
    for (bool more = begin_features(token); more; more = next_token(token)) {
      const char* colon = token.begin;
      parse_index_of(token, colon);
    }
  }

  Entry parse_feature(const Token& token) {
    const char* colon = token.begin;
    const std::int64_t index = parse_index_of(token, colon);
    double value;
    if (!parse_double(colon + 1, token.end, value) || !std::isfinite(static_cast<float>(value)))
      fail(colon + 1, {colon + 1, token.end},
           "expected a finite number within the range of float32 after the colon");
    return {index, static_cast<float>(value), token.begin};
  }

  // Read the index; leave `colon` at the colon behind it.
  std::int64_t parse_index_of(const Token& token, const char*& colon) {
    std::int64_t index = 0;
    if (!parse_index(colon, token.end, index) || colon == token.end || *colon != ':')
      fail(token.begin, token, "expected index:value with an integer index, such as 7:0.5");
    if (options_.base == 1 && index == 0)
      fail(token.begin, token, "expected an index of at least 1, because features count from 1");
    if (part_.min_index < 0 || index < part_.min_index) part_.min_index = index;
    if (index > part_.max_index) part_.max_index = index;
    return index;
  }

  void sort_row(const char* twin_error) {
    std::stable_sort(row_.begin(), row_.end(),
                     [](const Entry& a, const Entry& b) { return a.index < b.index; });
    const auto twin =
        std::adjacent_find(row_.begin(), row_.end(),
                           [](const Entry& a, const Entry& b) { return a.index == b.index; });
    if (twin == row_.end()) return;
    const char* begin = (twin + 1)->at;
    const char* stop = begin;
    while (stop != end_ && *stop >= '0' && *stop <= '9') ++stop;
    fail(begin, {begin, stop}, twin_error);
  }

  int decide_base() const noexcept {
    if (options_.base != kAutoBase) return options_.base;
    return part_.min_index == 0 ? 0 : 1;
  }

  [[noreturn]] void fail(const char* where, const Token& found, const char* expected) const {
    std::string shown;
    for (const char* at = found.begin; at != found.end && shown.size() < kShownLength; ++at)
      shown += (*at >= ' ' && *at <= '~') ? *at : '?';
    throw LibsvmError(std::to_string(line_) + ":" + std::to_string(where - line_begin_ + 1) +
                      ": found '" + shown + "': " + expected);
  }

  const char* at_;
  const char* end_;
  const char* line_begin_;
  std::int64_t line_ = 0;
  LibsvmOptions options_;
  LibsvmPart part_;
  std::vector<Entry> row_;
};

}  // namespace

LibsvmPart parse_libsvm(const char* text, std::size_t length, const LibsvmOptions& options) {
  return Parser(text, length, options).run();
}

}  // namespace mpips::data
