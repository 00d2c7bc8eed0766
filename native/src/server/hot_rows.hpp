#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

// The rows of one embedding table that are pushed and pulled most on one server, found in a sample
// of the keys that the server reads.
//
// The sample. The distance between two sampled keys is random: a fixed one would meet the same
// places of records of equal length again and again, and a record's keys are sorted. Its mean is
// chosen at each `read`, so that about `samples_per_s` keys are taken in a second however many the
// server reads. If more come, it is doubled in between; so it also finds its first value from 1 on.
// Thus the cost is bounded, and keys of a slow job are all counted. A sampled key stands for as
// many as the mean distance at its time.
//
// The counts are those of the Space-Saving algorithm (Metwally, Agrawal and El Abbadi, "Efficient
// computation of frequent and top-k elements in data streams", ICDT 2005): a key without a place
// takes the place with the least count, and goes on counting from there. A key with more than
// 1 / places of all rows always has a place. Counts fade with a time constant of `fading_s`, so
// they are about the last minute, and a key that is hot no longer gives up its place.
//
// One thread, the server's, calls all methods.
namespace mpips {

struct HotRow {
  std::int64_t key;
  double pulls_per_s, pushes_per_s;  // records that pull or push the row, per second
};

// What `read` returns.
struct HotRows {
  double pulls_per_s, pushes_per_s;  // rows of the table that this server has served, per second
  std::vector<HotRow> rows;          // the hottest first
};

class RowCounter {
 public:
  // Begin at `now_s`, seconds of any clock. Throw std::bad_alloc.
  explicit RowCounter(double now_s) : begun_s_(now_s) {}

  // Count the keys of one record. Costs a subtraction for most records.
  void count(bool is_pull, const std::int64_t* keys, std::size_t n) noexcept {
    seen_[is_pull] += n;
    if (distance_ >= n)
      distance_ -= n;
    else
      sample(is_pull, keys, n);
  }

  // Return the rates of at most `most` rows as of now, and let older counts fade.
  HotRows read(double now_s, std::size_t most);

 private:
  static constexpr std::size_t places = 256;
  static constexpr double samples_per_s = 4096.0;
  static constexpr std::size_t greatest_mean = std::size_t{1} << 20;
  static constexpr double fading_s = 60.0;
  // A row is returned once it has been sampled so often, and with this share of all rows.
  static constexpr std::uint32_t least_samples = 4;
  static constexpr double least_share = 0.001;

  struct Place {
    double total = 0.0;           // count of Space-Saving: never less than the true one
    double seen[2] = {};          // pushes and pulls since the key has the place
    std::uint32_t n_samples = 0;  // 0: the place is free
  };

  void sample(bool is_pull, const std::int64_t* keys, std::size_t n) noexcept;
  void take(bool is_pull, std::int64_t key) noexcept;
  std::size_t place_of(std::int64_t key) noexcept;
  std::size_t next_distance() noexcept;
  void fade(double left) noexcept;

  std::array<std::int64_t, places> keys_{};  // beside each other: all are compared with one
  std::array<Place, places> places_{};
  std::size_t n_used_ = 0;
  std::uint64_t seen_[2] = {};     // rows pushed and pulled since the last read
  double faded_[2] = {};           // the same of all time, faded
  double weight_s_ = 0.0;          // seconds that the faded counts stand for
  double begun_s_;                 // time of the last read
  std::size_t mean_ = 1;           // of the distance
  std::size_t taken_ = 0;          // samples with this mean since the last read
  std::size_t most_taken_ = 1024;  // of them, before the mean is doubled
  std::size_t distance_ = 0;       // keys that are passed over before the next sample
  std::uint64_t random_ = 0x9e3779b97f4a7c15ULL;
};

}  // namespace mpips
