#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace mpips {

// Values of the last records by sequence. Memory is taken as records are written, because a
// worker has a writer for every server of the job.
class RecordHistory {
 public:
  static constexpr std::size_t size = 4096;

  // Return the value of a record, or `none` if there is none or a later record has replaced it.
  std::uint64_t find(std::uint64_t sequence, std::uint64_t none) const noexcept {
    const Entry* part = parts_[sequence % size / part_size].get();
    if (part == nullptr) return none;
    const Entry& entry = part[sequence % part_size];
    return entry.sequence == sequence ? entry.value : none;
  }
  void put(std::uint64_t sequence, std::uint64_t value) {
    auto& part = parts_[sequence % size / part_size];
    if (!part) part = std::make_unique<Entry[]>(part_size);
    part[sequence % part_size] = {sequence, value};
  }

 private:
  static constexpr std::size_t part_size = 128;
  struct Entry {
    std::uint64_t sequence = ~std::uint64_t{0};
    std::uint64_t value = 0;
  };
  std::array<std::unique_ptr<Entry[]>, size / part_size> parts_;
};

}  // namespace mpips
