#include "server/scale_shard.hpp"

#include <algorithm>

namespace mpips {

bool ScaleShard::agrees(const Update& part) const noexcept {
  const float* here = values() + part.offset / block_;
  for (std::size_t i = 0; i < n_blocks(part); ++i)
    if ((part.exponents != nullptr ? static_cast<float>(part.exponents[i]) : 0.0F) != here[i])
      return false;
  return true;
}

void ScaleShard::widen(const Update& part) {
  const std::size_t n = n_blocks(part);
  float* most = opened_sum() + part.offset / block_;
  if (part.exponents != nullptr) {
    for (std::size_t i = 0; i < n; ++i)
      most[i] = std::max(most[i], static_cast<float>(part.exponents[n + i]));
    return;
  }
  std::size_t from = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t stop = std::min((i + 1) * block_ - part.offset % block_, part.count);
    const float greatest = kernels().max_abs(part.values + from, stop - from);
    most[i] = std::max(most[i], static_cast<float>(exponent_for(greatest)));
    from = stop;
  }
}

bool ScaleShard::apply_accumulated(const std::vector<std::size_t>&, const Weight& weight,
                                   std::uint64_t step) {
  const float* most = sum();
  if (most == nullptr) return false;
  change_.resize(size());
  for (std::size_t i = 0; i < size(); ++i)
    change_[i] = values()[i] - std::max(most[i], values()[i] - 1.0F);
  Update update;
  update.count = size();
  update.values = change_.data();
  apply(update, weight, step);
  discard(0);
  return true;
}

}  // namespace mpips
