#include "server/plateau.hpp"

#include <array>

namespace mpips {
namespace {

// Return the inner product of two arrays. Eight partial sums let the compiler use vectors; their
// order is fixed, so the bits are the same everywhere.
double inner_product(const float* a, const float* b, std::size_t n) noexcept {
  std::array<double, 8> lanes{};
  std::size_t i = 0;
  for (; i + lanes.size() <= n; i += lanes.size())
    for (std::size_t k = 0; k < lanes.size(); ++k)
      lanes[k] += static_cast<double>(a[i + k]) * static_cast<double>(b[i + k]);
  double total = 0.0;
  for (; i < n; ++i) total += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace

void Plateau::note(std::size_t table, std::uint64_t clock, const OpenSum& sum) {
  const std::uint64_t place = clock % every_;
  const std::size_t n = sum.n * sum.dim;
  if (n == 0 || place > 1 || (place == 1 && !has_first_)) return;
  squares_ += inner_product(sum.values, sum.values, n) / 2;
  First& first = first_[table];
  if (place == 0) {
    first.values.assign(sum.values, sum.values + n);
    if (sum.keys != nullptr)
      for (std::size_t i = 0; i < sum.n; ++i) first.rows[sum.keys[i]] = i;
    return;
  }
  if (sum.keys == nullptr) {
    if (first.values.size() == n) inner_ += inner_product(first.values.data(), sum.values, n);
    return;
  }
  for (std::size_t i = 0; i < sum.n; ++i) {
    const auto row = first.rows.find(sum.keys[i]);
    if (row != first.rows.end())
      inner_ += inner_product(first.values.data() + row->second * sum.dim, sum.values + i * sum.dim,
                              sum.dim);
  }
}

bool Plateau::close(std::uint64_t clock) {
  const std::uint64_t place = clock % every_;
  if (place == 0) has_first_ = true;
  if (place != 1) return false;
  // Leave out a pair without a push.
  if (has_first_ && squares_ > 0.0) {
    all_inner_ += inner_;
    all_squares_ += squares_;
    ++n_pairs_;
  }
  has_first_ = false;
  inner_ = squares_ = 0.0;
  for (First& first : first_) first = {};
  if (n_pairs_ < pairs_) return false;
  signal_ = all_inner_ / static_cast<double>(pairs_);
  noise_ = (all_squares_ - all_inner_) / static_cast<double>(pairs_);
  n_pairs_ = 0;
  all_inner_ = all_squares_ = 0.0;
  return noise_ >= ratio_ * signal_;
}

}  // namespace mpips
