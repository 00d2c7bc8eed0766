#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/kernel_table.hpp"
#include "ring/dense_view.hpp"
#include "ring/layout.hpp"
#include "shm/backoff.hpp"

// Pulls of a dense table as differences: the common copy, which server and workers share.
//
// A codec that sends a part of the values (ring/feedback.hpp) needs somebody who has the rest. For
// pulls this is the server's common copy C, float32, equal to what workers compute with. When a
// clock with a push has closed, the server encodes D = codec(values - C), publishes D in its
// region, and adds decode(D) to C. So values - C is the residual, and the next difference carries
// it. A worker has a C of its own. Server and workers decode the same bytes and add the same
// floats, one rounding each, so all have the same bits.
//
// Numbers. A difference has the number of its update, and they are contiguous. A worker whose C has
// number k does nothing if the head still has number k, adds the difference if the head has number
// k + 1, and otherwise reads C whole: at its first pull, after a restart, and if it did not pull
// after some update. All three ways lead to the same bits, those of C with the head's number.
//
// Order. The server's loop is the only writer. It makes the head's sequence odd, issues a release
// fence, writes number, length, difference and C, and makes the sequence even again (release
// store). One sequence guards all of it. A reader loads the sequence (acquire), copies, issues an
// acquire fence, and loads the sequence again: equal and even means that no store of the server
// fell between. What is copied is used only then. Under BSP without backup workers no clock closes
// while a worker of it reads, so a second attempt is rare. The server publishes the table's version
// after the sequence, so a worker that has waited for the version finds its difference.
//
// Infinity, NaN and magnitudes beyond a quarter of the greatest float have no difference, since its
// sum with C might not be finite. While values or C have any, C becomes the values, and workers
// read it whole.
//
// Format of a difference: for each part of `most_covered` values, a record's payload behind its
// length in bytes (32 bits).
namespace mpips {

struct CommonHead {
  PairWord sequence;  // odd while anything of the common copy changes
  std::uint64_t number;
  std::uint64_t bytes;  // of the difference; `no_difference`: the copy must be read whole
  std::uint64_t pad[4];
};
constexpr std::uint64_t no_difference = ~std::uint64_t{0};  // more than any difference has
static_assert(sizeof(CommonHead) == line_bytes);

// Decode a difference of n values part by part into `scratch`, and call add(first, values, count)
// for each. Return false if it is damaged; parts before the damage are added then.
template <class Add>
bool each_part(CodecKind kind, const std::uint8_t* from, std::size_t bytes, std::size_t n,
               std::vector<float>* scratch, const Add& add) {
  scratch->resize(n < most_covered ? n : most_covered);
  for (std::size_t at = 0; at < n; at += most_covered) {
    const std::size_t count = n - at < most_covered ? n - at : most_covered;
    std::uint32_t length;
    if (bytes < sizeof length) return false;
    std::memcpy(&length, from, sizeof length);
    from += sizeof length;
    bytes -= sizeof length;
    if (length > bytes || !decode_biased(kind, from, length, count, scratch->data())) return false;
    add(at, scratch->data(), count);
    from += length;
    bytes -= length;
  }
  return bytes == 0;
}

// Add a difference to a worker's copy. Return false if it is damaged: the copy has no meaning then.
inline bool add_difference(CodecKind kind, const std::uint8_t* from, std::size_t bytes,
                           std::size_t n, float* copy) {
  std::vector<float> scratch;
  return each_part(kind, from, bytes, n, &scratch,
                   [&](std::size_t first, const float* values, std::size_t count) {
                     kernels().add(copy + first, values, count);
                   });
}

// Result of reading the common copy: `no` if it kept changing, or if a difference is damaged.
struct CommonRead {
  bool done = false;
  std::uint64_t number = 0;
  std::size_t bytes = 0;  // read from the server's memory, without the head
};

// Bring a worker's copy to the newest number. `has`: it has number `number`. Where the result is
// not `done`, the copy may be half written, so the caller must forget its number.
inline CommonRead read_common(const std::uint8_t* region, const DenseExtent& d, bool has,
                              std::uint64_t number, float* copy, double deadline,
                              bool oversubscribed) {
  const auto* head = reinterpret_cast<const CommonHead*>(region + d.common_head);
  std::vector<std::uint8_t> difference;
  Backoff backoff(oversubscribed, 50);
  for (;;) {
    const std::uint64_t before = load_acquire(&head->sequence.value);
    if ((before & 1) == 0) {
      CommonRead found;
      found.number = load_relaxed(&head->number);
      const std::uint64_t length = load_relaxed(&head->bytes);
      const bool follows = has && found.number == number + 1 && length <= d.difference_bytes();
      if (follows) {
        difference.resize(length);
        std::memcpy(difference.data(), region + d.difference(), length);
        found.bytes = length;
      } else if (!has || found.number != number) {
        has = false;  // from here on the copy is overwritten
        std::memcpy(copy, region + d.common, d.n * sizeof(float));
        found.bytes = d.n * sizeof(float);
      }
      fence_acquire();
      if (load_relaxed(&head->sequence.value) == before) {
        found.done = !follows || add_difference(d.pull.kind, difference.data(), length, d.n, copy);
        return found;
      }
    }
    backoff.pause();
    if (!backoff.spinning() && now_s() > deadline) return {};
  }
}

}  // namespace mpips
