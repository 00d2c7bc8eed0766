#pragma once

#include <cstddef>
#include <cstring>

#include "ring/layout.hpp"
#include "shm/backoff.hpp"
#include "shm/copy.hpp"

// Dense values in blocks, each guarded by a version word (a seqlock). The server is the only
// writer: it makes the block's word odd, issues a release fence, changes the values, and makes the
// word even again (release store). A reader loads the word (acquire), copies, issues an acquire
// fence, and loads the word again: equal and even means that no store of the server fell between.
// After H.-J. Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012.
namespace mpips {

// Marks a block as being changed for as long as the object exists.
class BlockWriter {
 public:
  explicit BlockWriter(PairWord* word) noexcept
      : word_(word), version_(load_relaxed(&word->value)) {
    store_relaxed(&word_->value, version_ + 1);
    store_relaxed(&word_->complement, ~(version_ + 1));
    fence_release();
  }
  ~BlockWriter() { publish(word_, version_ + 2); }
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

 private:
  PairWord* word_;
  std::uint64_t version_;
};

// Copy values [start, stop) of a shard; return false if a block kept changing until `deadline`
// (seconds of `now_s`). `seen`: receives the number of changes of each block that is copied.
inline bool copy_dense(const PairWord* versions, const float* values, std::size_t start,
                       std::size_t stop, float* out, double deadline, bool oversubscribed,
                       std::uint64_t* seen = nullptr) noexcept {
  for (std::size_t from = start; from < stop;) {
    const std::size_t block = from / block_floats;
    const std::size_t end = (block + 1) * block_floats;
    const std::size_t to = end < stop ? end : stop;
    Backoff backoff(oversubscribed, 50);
    for (;;) {
      const std::uint64_t before = load_acquire(&versions[block].value);
      if ((before & 1) == 0) {
        copy_bytes(out + (from - start), values + from, (to - from) * sizeof(float));
        fence_acquire();
        if (load_relaxed(&versions[block].value) == before) {
          if (seen != nullptr) *seen++ = before >> 1;
          break;
        }
      }
      backoff.pause();
      if (!backoff.spinning() && now_s() > deadline) return false;
    }
    from = to;
  }
  return true;
}

// Decode the image of a whole shard, which the version words guard like the values. A block that
// changes meanwhile is decoded again.
inline bool copy_image(const PairWord* versions, const std::uint8_t* image,
                       const DenseExtent& extent, float* out, double deadline,
                       bool oversubscribed) noexcept {
  const std::size_t stride = extent.image_stride();
  for (std::size_t block = 0; block < Layout::n_blocks(extent.n); ++block) {
    const std::size_t from = block * block_floats;
    const std::size_t count = extent.n - from < block_floats ? extent.n - from : block_floats;
    Backoff backoff(oversubscribed, 50);
    for (;;) {
      const std::uint64_t before = load_acquire(&versions[block].value);
      if ((before & 1) == 0) {
        decode(extent.pull, image + block * stride, 0, count, out + from);
        fence_acquire();
        if (load_relaxed(&versions[block].value) == before) break;
      }
      backoff.pause();
      if (!backoff.spinning() && now_s() > deadline) return false;
    }
  }
  return true;
}

}  // namespace mpips
