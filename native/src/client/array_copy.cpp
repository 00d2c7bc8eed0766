#include "client/array_copy.hpp"

#include <array>
#include <cstring>

#include "client/mpips.h"
#include "kernels/kernel_table.hpp"
#include "shm/store_choice.hpp"

namespace mpips {
namespace {

bool finite(double value) noexcept {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits & 0x7ff0000000000000ULL) != 0x7ff0000000000000ULL;
}

bool finite(float value) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits & 0x7f800000U) != 0x7f800000U;
}

template <class T>
bool finite(T) noexcept {
  return true;
}

// Copy values of From, with a stride, as values of To.
template <class To, class From>
bool copy_run(std::uint8_t* to, const std::uint8_t* from, std::uint64_t n,
              std::int64_t stride) noexcept {
  bool all = true;
  const auto one = [&](std::uint64_t i, const std::uint8_t* at) {
    From value;
    std::memcpy(&value, at, sizeof value);
    const To converted = static_cast<To>(value);
    all &= finite(converted);
    std::memcpy(to + i * sizeof converted, &converted, sizeof converted);
  };
  // With a stride that the compiler sees, it makes vector instructions.
  if (stride == sizeof(From))
    for (std::uint64_t i = 0; i < n; ++i) one(i, from + i * sizeof(From));
  else
    for (std::uint64_t i = 0; i < n; ++i) one(i, from + static_cast<std::int64_t>(i) * stride);
  return all;
}

bool copy_floats(std::uint8_t* to, const std::uint8_t* from, std::uint64_t n,
                 std::int64_t stride) noexcept {
  // A vector kernel loads from addresses that are multiples of 4, as floats of an application are.
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(from) % alignof(float) == 0;
  if (stride != sizeof(float) || !is_aligned) return copy_run<float, float>(to, from, n, stride);
  // The program that reads samples is on another core.
  static thread_local StoreChoice stores(now_s, Stores::measured);
  auto* out = reinterpret_cast<float*>(to);
  const auto* in = reinterpret_cast<const float*>(from);
  bool all = true;
  stores.write(out, n, StoreChoice::line_floats,
               [&](std::size_t first, std::size_t count, bool past) {
                 all &= past ? kernels().stream_finite(out + first, in + first, count)
                             : kernels().copy_finite(out + first, in + first, count);
               });
  return all;
}

}  // namespace

ArrayCopy::ArrayCopy(const QueueField& field, std::uint32_t type, const std::int64_t* strides) {
  const auto bytes = static_cast<std::int64_t>(value_bytes[type]);
  // Join dimensions that are contiguous with each other, the last one first.
  std::int64_t contiguous = 1;
  for (std::size_t i = field.n_dims; i-- > 0;) {
    const std::int64_t stride = strides != nullptr ? strides[i] : contiguous;
    contiguous *= static_cast<std::int64_t>(field.shape[i]);
    if (field.shape[i] == 1) continue;
    if (!outer_.empty()) {
      Dim& inner = outer_.front();
      if (stride * bytes == static_cast<std::int64_t>(inner.n) * inner.stride) {
        inner.n *= field.shape[i];
        continue;
      }
    }
    outer_.insert(outer_.begin(), {field.shape[i], stride * bytes});
  }
  n_ = 1;
  stride_ = bytes;
  if (!outer_.empty()) {
    n_ = outer_.back().n;
    stride_ = outer_.back().stride;
    outer_.pop_back();
  }
  run_bytes_ = n_ * value_bytes[field.type];
  switch (type) {
    case MPIPS_FLOAT32:
      run_ = copy_floats;
      break;
    case MPIPS_FLOAT64:
      run_ = field.type == MPIPS_FLOAT32 ? copy_run<float, double> : copy_run<double, double>;
      break;
    default:
      switch (bytes) {
        case 1:
          run_ = copy_run<std::uint8_t, std::uint8_t>;
          break;
        case 2:
          run_ = copy_run<std::uint16_t, std::uint16_t>;
          break;
        case 4:
          run_ = copy_run<std::uint32_t, std::uint32_t>;
          break;
        default:
          run_ = copy_run<std::uint64_t, std::uint64_t>;
          break;
      }
  }
}

bool ArrayCopy::to(std::uint8_t* to, const void* from) const noexcept {
  const auto* at = static_cast<const std::uint8_t*>(from);
  std::array<std::uint64_t, most_dims> index{};
  bool all = true;
  while (true) {
    all &= run_(to, at, n_, stride_);
    to += run_bytes_;
    // Advance to the next run, the last of the outer indices fastest.
    std::size_t d = outer_.size();
    for (; d > 0; --d) {
      at += outer_[d - 1].stride;
      if (++index[d - 1] < outer_[d - 1].n) break;
      at -= static_cast<std::int64_t>(outer_[d - 1].n) * outer_[d - 1].stride;
      index[d - 1] = 0;
    }
    if (d == 0) return all;
  }
}

}  // namespace mpips
