#include "keys/mix.hpp"

#include <atomic>
#include <random>

namespace mpips {
namespace {

std::uint64_t random_word() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

}  // namespace

// The process's secret comes from the system. Each hash derives its words from it and a running
// number.
SecretHash::SecretHash() {
  static const std::uint64_t secret[2] = {random_word(), random_word()};
  static std::atomic<std::uint64_t> number{0};
  const std::uint64_t step = ++number * splitmix_step;
  salt_ = mix_splitmix(secret[0] + step);
  factor_ = mix_splitmix(secret[1] + step) | 1;
}

}  // namespace mpips
