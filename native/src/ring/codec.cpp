#include "ring/codec.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/kernel_table.hpp"
#include "keys/mix.hpp"

namespace mpips {
namespace {

// The scale of a block: `factor` is applied before values are rounded, `scale` after they are
// decoded.
struct Scale {
  float factor = 0.0F, scale = 0.0F;
};

// Return powers of two that bring the greatest magnitude to between 2^14 and 2^15. So no value is
// beyond the range of half precision, and only values below 2^-28 of the greatest lose bits.
Scale scale_fp16(float most) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &most, sizeof bits);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const int shift = std::min(14 - exponent, 126);  // of smaller blocks the scale would be denormal
  const auto power = [](int k) {
    const auto word = static_cast<std::uint32_t>(127 + k) << 23;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  };
  return {power(shift), power(-shift)};
}

// A block whose greatest magnitude is so small that the factor is infinite becomes zeros.
Scale scale_int8(float most) noexcept {
  const float factor = 127.0F / most;
  if (!(factor <= __FLT_MAX__)) return {};
  float scale = most / 127.0F;
  // Rounded up, the scale of the greatest numbers would decode 127 as infinity.
  if (!(scale * 127.0F <= __FLT_MAX__)) {
    std::uint32_t bits;
    std::memcpy(&bits, &scale, sizeof bits);
    --bits;
    std::memcpy(&scale, &bits, sizeof scale);
  }
  return {factor, scale};
}

// A block with infinity or NaN becomes NaN as a whole.
Scale scale_of(CodecKind kind, const float* values, std::size_t n) noexcept {
  const float most = kernels().max_abs(values, n);
  if (!(most <= __FLT_MAX__)) return {0.0F, __builtin_nanf("")};
  return kind == CodecKind::fp16 ? scale_fp16(most) : scale_int8(most);
}

// Encode values of one block; `place`: that of the first one in the block.
void encode_part(CodecKind kind, const Scale& scale, const float* from, std::size_t n,
                 std::uint64_t block_key, std::size_t place, std::uint8_t* to) noexcept {
  const KernelTable& k = kernels();
  if (scale.scale != scale.scale) {
    std::memset(to, 0, n * unit_of(kind));
    return;
  }
  if (kind == CodecKind::fp16)
    return k.encode_fp16(reinterpret_cast<std::uint16_t*>(to), from, n, scale.factor);
  k.encode_int8(reinterpret_cast<std::int8_t*>(to), from, n, scale.factor,
                static_cast<std::uint32_t>(block_key), static_cast<std::uint32_t>(block_key >> 32),
                static_cast<std::uint32_t>(place));
}

// Encode infinity and NaN, which encode_bf16 does not know.
void mark_special_bf16(const float* values, std::size_t n, std::uint8_t* to) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    if (values[i] - values[i] == 0.0F) continue;
    std::uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    // The bits of a NaN may all lie in the half that is cut off.
    const auto code =
        static_cast<std::uint16_t>((bits >> 16) | (values[i] != values[i] ? 0x40U : 0U));
    std::memcpy(to + i * sizeof code, &code, sizeof code);
  }
}

std::size_t n_blocks(Codec codec, std::size_t skew, std::size_t count) noexcept {
  return count == 0 ? 0 : (skew + count - 1) / codec.block + 1;
}

}  // namespace

std::uint64_t block_key(std::uint64_t key, std::uint64_t block) noexcept {
  return mix_splitmix(key + (block + 1) * splitmix_step);
}

float shared_scale(std::uint8_t exponent) noexcept {
  const std::uint32_t bits = std::uint32_t{exponent} << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return scale;
}

std::uint8_t exponent_for(float most) noexcept {
  constexpr std::uint32_t half_of_mantissa = 0x3fffff, bits_of_codes = 6;
  std::uint32_t bits;
  std::memcpy(&bits, &most, sizeof bits);
  const std::uint32_t exponent = (bits + half_of_mantissa) >> 23;  // one more if above 1.5
  if (exponent <= bits_of_codes) return 0;
  return static_cast<std::uint8_t>(
      std::min<std::uint32_t>(exponent - bits_of_codes, most_exponent));
}

bool valid_exponents(Codec codec, const std::uint8_t* from, std::size_t skew,
                     std::size_t count) noexcept {
  const std::size_t n = 2 * n_blocks(codec, skew, count);
  return std::all_of(from, from + n, [](std::uint8_t e) { return e <= most_exponent; });
}

std::size_t encoded_bytes(Codec codec, std::size_t skew, std::size_t count) noexcept {
  const std::size_t scales = has_scales(codec.kind) ? n_blocks(codec, skew, count) : 0;
  return scales * scale_bytes_of(codec.kind) + count * unit_of(codec.kind);
}

std::size_t encoded_capacity(Codec codec, std::size_t skew, std::size_t bytes) noexcept {
  const std::size_t unit = unit_of(codec.kind);
  if (!has_scales(codec.kind)) return bytes / unit;
  const std::size_t scale = scale_bytes_of(codec.kind);
  const std::size_t whole = bytes / (scale + codec.block * unit);
  if (whole > 0) return whole * codec.block - skew;
  return std::min<std::size_t>(codec.block - skew, (bytes - scale) / unit);
}

void encode(Codec codec, const float* tensor, std::size_t n, std::size_t begin, std::size_t count,
            std::uint64_t key, std::uint8_t* to) noexcept {
  if (!has_scales(codec.kind))
    return kernels().encode_bf16(reinterpret_cast<std::uint16_t*>(to), tensor + begin, count);
  const std::size_t unit = unit_of(codec.kind), end = begin + count;
  std::uint8_t* scales = to;
  std::uint8_t* codes = to + n_blocks(codec, begin % codec.block, count) * sizeof(float);
  for (std::size_t at = begin; at < end; scales += sizeof(float)) {
    const std::size_t number = at / codec.block, start = number * codec.block;
    const std::size_t stop = std::min(start + codec.block, n);
    const Scale scale = scale_of(codec.kind, tensor + start, stop - start);
    const std::size_t here = std::min(stop, end) - at;
    std::memcpy(scales, &scale.scale, sizeof scale.scale);
    encode_part(codec.kind, scale, tensor + at, here, block_key(key, number), at - start, codes);
    codes += here * unit;
    at += here;
  }
}

void encode_rows(Codec codec, const float* rows, const std::int64_t* keys, std::size_t n,
                 std::uint64_t key, std::uint8_t* to) noexcept {
  const std::size_t dim = codec.block, unit = unit_of(codec.kind);
  if (!has_scales(codec.kind))
    return kernels().encode_bf16(reinterpret_cast<std::uint16_t*>(to), rows, n * dim);
  std::uint8_t* codes = to + n * sizeof(float);
  for (std::size_t i = 0; i < n; ++i) {
    const Scale scale = scale_of(codec.kind, rows + i * dim, dim);
    std::memcpy(to + i * sizeof(float), &scale.scale, sizeof scale.scale);
    encode_part(codec.kind, scale, rows + i * dim, dim,
                block_key(key, static_cast<std::uint64_t>(keys[i])), 0, codes + i * dim * unit);
  }
}

void encode_nearest(Codec codec, const float* values, std::size_t n, std::uint8_t* to) noexcept {
  const KernelTable& k = kernels();
  if (!has_scales(codec.kind)) {
    k.encode_bf16(reinterpret_cast<std::uint16_t*>(to), values, n);
    if (!k.all_finite(values, n)) mark_special_bf16(values, n, to);
    return;
  }
  const std::size_t unit = unit_of(codec.kind);
  std::uint8_t* codes = to + n_blocks(codec, 0, n) * sizeof(float);
  for (std::size_t at = 0; at < n; at += codec.block, to += sizeof(float)) {
    const std::size_t here = std::min<std::size_t>(codec.block, n - at);
    const Scale scale = scale_of(codec.kind, values + at, here);
    std::memcpy(to, &scale.scale, sizeof scale.scale);
    if (scale.scale != scale.scale)
      std::memset(codes, 0, here * unit);
    else if (codec.kind == CodecKind::fp16)
      k.encode_fp16(reinterpret_cast<std::uint16_t*>(codes), values + at, here, scale.factor);
    else
      k.round_int8(reinterpret_cast<std::int8_t*>(codes), values + at, here, scale.factor);
    codes += here * unit;
  }
}

void decode(Codec codec, const std::uint8_t* from, std::size_t skew, std::size_t count,
            float* to) noexcept {
  const KernelTable& k = kernels();
  if (!has_scales(codec.kind))
    return k.decode_bf16(to, reinterpret_cast<const std::uint16_t*>(from), count);
  const std::size_t unit = unit_of(codec.kind);
  const bool shared = codec.kind == CodecKind::shared;
  const std::uint8_t* codes = from + n_blocks(codec, skew, count) * scale_bytes_of(codec.kind);
  for (std::size_t at = 0; at < count; from += shared ? 1 : sizeof(float)) {
    const std::size_t here = std::min<std::size_t>(codec.block - (at == 0 ? skew : 0), count - at);
    float scale;
    if (shared)
      scale = shared_scale(*from);
    else
      std::memcpy(&scale, from, sizeof scale);
    if (codec.kind == CodecKind::fp16)
      k.decode_fp16(to + at, reinterpret_cast<const std::uint16_t*>(codes), here, scale);
    else
      k.decode_int8(to + at, reinterpret_cast<const std::int8_t*>(codes), here, scale);
    codes += here * unit;
    at += here;
  }
}

}  // namespace mpips
