#pragma once

#include <cstddef>
#include <cstdint>

// Codecs: how the values of a push or a pull travel in fewer bytes. A worker encodes the values of
// a push while it writes a record, and the server decodes a record into memory of its own before
// anything else, so all that follows sees float32 values. For pulls the server has, beside the
// values of a dense shard, an image of them in the codec, which workers read and decode; replies to
// pulls of rows are encoded.
//
//   codec   payload of `count` values             rounding
//   bf16    2 bytes a value                       to nearest, ties to even
//   fp16    a float for each block, 2 bytes       to nearest; a block is scaled by a power of two
//   int8    a float for each block, 1 byte        stochastic; the greatest of a block becomes 127
//   sparse  number of values, floats, distances   none: some values are sent, the others are zero
//   onebit  a float and 64 bytes for each block   the mean magnitude of the block, with the signs
//   shared  two bytes for each block, 1 byte      stochastic; the scale was chosen a clock before
//
// The last three are biased: what they do not send is added to the next push (ring/feedback.hpp).
// In a sparse record the distance of each value from the one before it, less 1, has 7 bits in a
// byte, low bits first, and the top bit of a byte says that another one follows. Blocks of onebit
// are counted from the beginning of a server's part, and a record has whole blocks.
//
// Pulls use bf16 and int8, and round to nearest; or sparse and onebit, with which they read the
// difference to a copy that all workers share (ring/common_view.hpp).
//
// Blocks. Values are numbered within the whole tensor, and a block is a range of `block` numbers
// that begins at a multiple of `block`. The scale of a block is that of all its values, also where
// a record or a server's shard has only a part of them. So the values that arrive do not depend on
// where a tensor is cut. Each row of an embedding table is a block.
//
// Stochastic rounding takes its random numbers from (key, block, place in the block), and nothing
// is kept between two pushes. So a push that is repeated after a restart has the same bits.
namespace mpips {

enum class CodecKind : std::uint8_t { none, bf16, fp16, int8, sparse, onebit, shared };
constexpr const char* codec_names[] = {"none",   "bf16",   "fp16",       "int8",
                                       "sparse", "onebit", "shared_int8"};

struct Codec {
  CodecKind kind = CodecKind::none;
  std::uint32_t block = 0;  // values; at most 4096
  double share = 0.0;       // sparse: share of the values that a difference for pulls has

  bool operator==(const Codec& other) const noexcept {
    return kind == other.kind && block == other.block;
  }
};

constexpr std::uint32_t most_block = 4096;
// Most values that a record of a biased codec covers: the server decodes them into memory.
constexpr std::size_t most_covered = std::size_t{1} << 18;
// Return true for codecs whose records have a length of their own; see decode_biased.
constexpr bool is_biased(CodecKind kind) noexcept {
  return kind == CodecKind::sparse || kind == CodecKind::onebit;
}

// Return the most bytes that the difference of n values takes in a biased codec, with the lengths
// of its parts.
std::size_t most_difference_bytes(Codec codec, std::size_t n) noexcept;

// Return the bytes of one encoded value, without the scales.
constexpr std::size_t unit_of(CodecKind kind) noexcept {
  return kind == CodecKind::int8 || kind == CodecKind::shared ? 1 : 2;
}
constexpr bool has_scales(CodecKind kind) noexcept {
  return kind == CodecKind::fp16 || kind == CodecKind::int8 || kind == CodecKind::shared;
}
// Return the bytes of a block's scale in a record.
constexpr std::size_t scale_bytes_of(CodecKind kind) noexcept {
  return kind == CodecKind::shared ? 2 : sizeof(float);
}

// Shared scales (server/scale_shard.hpp). A record of codec `shared` has, for each of its blocks,
// the exponent of the scale that its codes have, then for each block the exponent that its values
// ask for, then the codes. Exponent e is the scale 2^(e - 127), so decoded values are integers
// times a power of two, and float32 adds them without rounding. Exponent 0 is the scale 0.
constexpr std::uint8_t most_exponent = 248;  // 127 of its scale are finite
float shared_scale(std::uint8_t exponent) noexcept;
// Return the exponent that values of this greatest magnitude ask for: that of the least power of
// two of which the magnitude has 96 at most. So values may grow by a third before they saturate.
std::uint8_t exponent_for(float most) noexcept;
// Return true if no exponent of a record is too great.
bool valid_exponents(Codec codec, const std::uint8_t* from, std::size_t skew,
                     std::size_t count) noexcept;

// Return the key of a block's random numbers in a push.
std::uint64_t block_key(std::uint64_t key, std::uint64_t block) noexcept;

// Return the bytes of `count` encoded values; `skew`: place of the first one in its block.
std::size_t encoded_bytes(Codec codec, std::size_t skew, std::size_t count) noexcept;

// Return how many values fit into a number of bytes, at least 1; where possible whole blocks.
std::size_t encoded_capacity(Codec codec, std::size_t skew, std::size_t bytes) noexcept;

// Encode values [begin, begin + count) of a tensor of n finite values.
void encode(Codec codec, const float* tensor, std::size_t n, std::size_t begin, std::size_t count,
            std::uint64_t key, std::uint8_t* to) noexcept;

// Encode n rows of `codec.block` finite values, each a block whose number is the row's key.
void encode_rows(Codec codec, const float* rows, const std::int64_t* keys, std::size_t n,
                 std::uint64_t key, std::uint8_t* to) noexcept;

// Encode n values, the first of which begins a block, without random numbers. Infinity and NaN stay
// what they are in bf16; in other codecs they make their whole block NaN.
void encode_nearest(Codec codec, const float* values, std::size_t n, std::uint8_t* to) noexcept;

// Decode `count` values.
void decode(Codec codec, const std::uint8_t* from, std::size_t skew, std::size_t count,
            float* to) noexcept;

// Decode a record of a biased codec that covers `count` values. Return false if its payload is not
// one of `count` values: then `to` has no meaning.
bool decode_biased(CodecKind kind, const std::uint8_t* from, std::size_t bytes, std::size_t count,
                   float* to) noexcept;

// Return the bytes of one row in a reply to a pull; without a codec rows are float32.
inline std::size_t reply_row_bytes(Codec codec, std::size_t dim) noexcept {
  return codec.kind == CodecKind::none ? dim * sizeof(float) : encoded_bytes(codec, 0, dim);
}

// The word of a record's header that names its codec: kind, and the place of its first value in its
// block.
constexpr std::uint16_t codec_word(CodecKind kind, std::size_t skew) noexcept {
  return static_cast<std::uint16_t>(static_cast<std::size_t>(kind) | (skew << 4));
}
constexpr std::uint16_t kind_bits_of(std::uint16_t word) noexcept { return word & 0xf; }
constexpr std::size_t skew_of(std::uint16_t word) noexcept { return word >> 4; }

}  // namespace mpips
