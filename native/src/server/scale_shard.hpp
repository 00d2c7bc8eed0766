#pragma once

#include "ring/codec.hpp"
#include "server/dense_shard.hpp"

// Shared scales: one scale for each block of a table, which all workers use in a clock. So the
// codes of a clock are integers times the same power of two, and float32 adds them without rounding
// while their magnitudes stay below 2^24 scales: the sum has the same bits in any order of arrival.
// This is the idea of THC (M. Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor
// Homomorphic Compression", NSDI 2024), which has one range for all values and rotates them, too.
//
// The scales are the values of a dense table beside the first one, which only this class changes.
// Its values are exponents (ring/codec.hpp), as floats. So the region, reads of workers, journal,
// replicas and checkpoints treat them as any table's values. Its shards are those of the table that
// it is for, divided by the block, so a server has the scales of exactly the blocks that it has.
//
// A clock. Workers read the scales at the beginning of clock c. Each push of c brings, for each of
// its blocks, the exponent that residual and update ask for, before anything saturates. The server
// keeps the greatest of them in the buffer in which other tables have their sum. When it closes c,
// the exponent of a block becomes the greatest one, or one less than it was if that is more: a
// block that is zero in some clocks keeps its precision, and one that was large once does not lose
// it for ever. A clock without a push changes nothing. While all scales are 0 workers push float32
// values (the first clock of a job), and the server computes the exponents.
//
// Recovery. Taking the greatest exponent again changes nothing, so it needs no undo: a record that
// is consumed twice, or a push that is dropped when half of it is consumed and then repeated, gives
// the same exponents. The buffer's words are committed with the record. The close is an update of
// the values with SGD(1), by differences of small integers, which are exact; the journal repeats it
// element by element, and the difference of an element depends on that element alone. A worker
// repeats a clock with the scales of that clock: they change when the clock closes, which is after
// all its pushes are in the memory of every server.
namespace mpips {

class ScaleShard final : public DenseShard {
 public:
  // `block`: values of the other table that share a scale. The rule is SGD(1).
  ScaleShard(std::uint8_t* region, const DenseExtent& extent, Rule rule, std::size_t n_workers,
             Progress progress, const Durable& durable, std::uint32_t block)
      : DenseShard(region, extent, std::move(rule), n_workers, std::move(progress), durable),
        block_(block) {}

  // Return true if a part of a push has the scales of the open clock; float32 values: they are 0.
  bool agrees(const Update& part) const noexcept;
  // Take in the exponents that a part of a push asks for.
  void widen(const Update& part);
  bool apply_accumulated(const std::vector<std::size_t>& buffers, const Weight& weight,
                         std::uint64_t step) override;

 private:
  std::size_t n_blocks(const Update& part) const noexcept {
    return part.count == 0 ? 0 : (part.offset % block_ + part.count - 1) / block_ + 1;
  }

  std::uint32_t block_;
  std::vector<float> change_;
};

}  // namespace mpips
