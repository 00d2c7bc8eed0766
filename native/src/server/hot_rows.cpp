#include "server/hot_rows.hpp"

#include <algorithm>
#include <cmath>

#include "keys/mix.hpp"

namespace mpips {

// Return a distance of 0 to 2 * (mean - 1), all with the same probability.
std::size_t RowCounter::next_distance() noexcept {
  if (mean_ == 1) return 0;
  random_ += splitmix_step;
  const std::uint64_t range = 2 * (mean_ - 1) + 1;
  return static_cast<std::size_t>(((mix_splitmix(random_) >> 32) * range) >> 32);
}

void RowCounter::sample(bool is_pull, const std::int64_t* keys, std::size_t n) noexcept {
  std::size_t at = distance_;
  for (; at < n; at += 1 + next_distance()) take(is_pull, keys[at]);
  distance_ = at - n;
}

void RowCounter::take(bool is_pull, std::int64_t key) noexcept {
  Place& place = places_[place_of(key)];
  const auto weight = static_cast<double>(mean_);
  place.total += weight;
  place.seen[is_pull] += weight;
  if (place.n_samples < least_samples) ++place.n_samples;
  if (++taken_ < most_taken_) return;
  taken_ = 0;
  if (mean_ < greatest_mean) mean_ *= 2;
}

// Return the place of a key; one without takes a free place, or that with the least count.
std::size_t RowCounter::place_of(std::int64_t key) noexcept {
  for (std::size_t i = 0; i < n_used_; ++i)
    if (keys_[i] == key) return i;
  if (n_used_ < places) {
    keys_[n_used_] = key;
    return n_used_++;
  }
  std::size_t least = 0;
  for (std::size_t i = 1; i < places; ++i)
    if (places_[i].total < places_[least].total) least = i;
  keys_[least] = key;
  places_[least].seen[0] = places_[least].seen[1] = 0.0;
  places_[least].n_samples = 0;
  return least;
}

HotRows RowCounter::read(double now_s, std::size_t most) {
  const double passed_s = std::max(now_s - begun_s_, 1e-9);
  begun_s_ = now_s;
  weight_s_ += passed_s;
  const auto fresh = static_cast<double>(seen_[0] + seen_[1]);
  for (std::size_t kind = 0; kind < 2; ++kind) {
    faded_[kind] += static_cast<double>(seen_[kind]);
    seen_[kind] = 0;
  }
  HotRows found{faded_[1] / weight_s_, faded_[0] / weight_s_, {}};
  const double least = least_share * (faded_[0] + faded_[1]);
  for (std::size_t i = 0; i < n_used_; ++i) {
    const Place& place = places_[i];
    if (place.n_samples < least_samples || place.seen[0] + place.seen[1] < least) continue;
    found.rows.push_back({keys_[i], place.seen[1] / weight_s_, place.seen[0] / weight_s_});
  }
  const auto hotter = [](const HotRow& a, const HotRow& b) {
    const double of_a = a.pulls_per_s + a.pushes_per_s, of_b = b.pulls_per_s + b.pushes_per_s;
    return of_a != of_b ? of_a > of_b : a.key < b.key;
  };
  const std::size_t n = std::min(most, found.rows.size());
  std::partial_sort(found.rows.begin(), found.rows.begin() + static_cast<std::ptrdiff_t>(n),
                    found.rows.end(), hotter);
  found.rows.resize(n);
  fade(std::exp(-passed_s / fading_s));
  // Two reads close to each other say little about the rate.
  if (passed_s > 0.1) {
    mean_ = static_cast<std::size_t>(
        std::clamp(fresh / passed_s / samples_per_s, 1.0, static_cast<double>(greatest_mean)));
    taken_ = 0;
    most_taken_ = static_cast<std::size_t>(2.0 * samples_per_s);
  }
  return found;
}

// Multiply all counts, and the time that they stand for, by `left`.
void RowCounter::fade(double left) noexcept {
  weight_s_ *= left;
  for (double& n : faded_) n *= left;
  for (Place& place : places_) {
    place.total *= left;
    for (double& n : place.seen) n *= left;
  }
}

}  // namespace mpips
