#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "journal/journal.hpp"
#include "ring/layout.hpp"
#include "shm/shared_memory.hpp"

namespace mpips {

// Where the buffers of a table's shard lie, and the journal that makes their changes atomic.
struct Durable {
  Journal* journal = nullptr;       // null: nothing survives the end of the process
  SharedMemory* buffers = nullptr;  // sparse file for the arrays below; only with a journal
  std::size_t table = 0;
  bool fresh = true;  // false: take over what an earlier process left

  // Ids of the mappings in the journal: the region, then two per table.
  static constexpr std::size_t region = 0;
  std::size_t buffer_segment() const noexcept { return 1 + 2 * table; }
  std::size_t row_segment() const noexcept { return 2 + 2 * table; }
};

// A buffer that only grows: private memory, or a range of a sparse shared-memory file whose pages
// are reserved as they are needed. In a file it never moves, and its contents do not begin as
// zeros.
template <class T>
class Array {
 public:
  void place(SharedMemory* file, std::size_t offset, std::size_t most_bytes) {
    file_ = file;
    offset_ = offset;
    most_ = most_bytes / sizeof(T);
    data_ = reinterpret_cast<T*>(file->data() + offset);
  }

  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  T& operator[](std::size_t i) noexcept { return data_[i]; }
  const T& operator[](std::size_t i) const noexcept { return data_[i]; }

  // Declare that an earlier process has reserved the pages of n elements.
  void taken(std::size_t n) noexcept { size_ = std::max(size_, n); }

  // Make room for n elements; existing elements stay.
  void need(std::size_t n) {
    if (n > size_) grow(n);
  }

 private:
  void grow(std::size_t n) {
    const std::size_t wanted = std::max(n, size_ + size_ / 2);
    if (file_ == nullptr) {
      own_.resize(wanted);
      data_ = own_.data();
      size_ = wanted;
      return;
    }
    if (n > most_)
      throw SharedMemoryError("a buffer of pushes needs " + std::to_string(n) +
                              " elements, but its address space has room for " +
                              std::to_string(most_));
    const std::size_t room = std::min(wanted, most_);
    file_->commit(offset_ + size_ * sizeof(T), (room - size_) * sizeof(T));
    size_ = room;
  }

  std::vector<T> own_;
  T* data_ = nullptr;
  SharedMemory* file_ = nullptr;
  std::size_t offset_ = 0, most_ = 0, size_ = 0;
};

// Divides the sparse file of a table into ranges of equal length.
class Stretches {
 public:
  Stretches(const Durable& durable, std::size_t n_arrays) : file_(durable.buffers) {
    if (file_ != nullptr)
      each_ = file_->size() / std::max<std::size_t>(n_arrays, 1) / page_bytes * page_bytes;
  }
  template <class T>
  void place(Array<T>* array) {
    if (file_ == nullptr) return;
    array->place(file_, at_, each_);
    at_ += each_;
  }

 private:
  SharedMemory* file_;
  std::size_t each_ = 0, at_ = 0;
};

}  // namespace mpips
