#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "keys/mix.hpp"

namespace mpips {

// Map from any int64 key to a row; rows are numbered 0, 1, 2, ... in order of insertion.
//
// It is an open-addressing table of buckets. A bucket is one cache line: five keys, their rows and
// a stamp. A key is stored in its home bucket or, if that is full, in the first bucket after it
// with a free slot. All buckets between a key's home and its bucket are full, so a search ends at
// the first bucket with a free slot. `erase` keeps that true: it fills the free slot of a bucket
// that was full with a later key that had passed over this bucket.
// The home bucket is given by the leading bits of the hash, so growing moves keys from old to new
// memory in order, as a stream.
//
// The stamp has the number of keys in its low three bits and the map's generation above them. A
// bucket of another generation counts as empty. So `clear` is one addition, and fresh zeroed pages
// need no initialisation.
//
// Not thread-safe, except that any number of threads may call const members at the same time. A
// moved-from map may only be destroyed or assigned to.
class RowMap {
 public:
  static constexpr std::uint32_t npos = 0xFFFFFFFFu;

  // Make room for `capacity_hint` keys. Throws std::bad_alloc, or std::length_error above npos.
  explicit RowMap(std::size_t capacity_hint = 0);

  std::size_t size() const noexcept { return size_; }
  // Number of keys that fit without growing.
  std::size_t capacity() const noexcept { return capacity_of(n_buckets_); }
  std::size_t memory_bytes() const { return n_buckets_ * sizeof(Bucket) + sizeof(RowMap); }

  // Return what memory_bytes() will be with room for n keys; throws std::length_error above npos.
  static std::size_t bytes_for(std::size_t n) {
    return buckets_for(n) * sizeof(Bucket) + sizeof(RowMap);
  }

  // Set rows[i] = row of keys[i], or npos.
  void find(const std::int64_t* keys, std::size_t n, std::uint32_t* rows) const noexcept;

  // Like `find`, but give unknown keys the next rows in order of their first occurrence; return the
  // number of new keys. Keys may repeat. Throws like `reserve`; the map is then unchanged and
  // `rows` unspecified. If the map grows, it makes room for all unknown keys as though each were
  // unique.
  std::size_t find_or_insert(const std::int64_t* keys, std::size_t n, std::uint32_t* rows);

  // Remove all keys and keep the memory.
  void clear() noexcept;

  // Remove a key and return its row, or npos if it has none. The other keys keep their rows, so the
  // caller must give the row with the number size() (the last one before the call) to another key
  // with `set_row`, unless it is the removed one: the next insertion uses that number again.
  std::uint32_t erase(std::int64_t key) noexcept;
  // Prefetch where a key is, or would be.
  void prefetch(std::int64_t key) const noexcept;
  // Set the row of a key that is present.
  void set_row(std::int64_t key, std::uint32_t row) noexcept;
  // Give memory back if less than an eighth of it is in use. Throws std::bad_alloc and then changes
  // nothing.
  void shrink();

  // Make room for n keys in all. Throws std::bad_alloc or std::length_error and then changes
  // nothing.
  void reserve(std::size_t n);

  // Return the largest number of buckets that a search for a present key visits, a measure of the
  // hash.
  std::size_t longest_probe() const noexcept;

 private:
  static constexpr unsigned bucket_slots = 5;
  static constexpr std::uint32_t count_bits = 7;

  struct alignas(64) Bucket {
    std::int64_t keys[bucket_slots];
    std::uint32_t rows[bucket_slots];
    std::uint32_t stamp;
  };

  struct Unmap {
    std::size_t n_bytes = 0;
    void operator()(Bucket* buckets) const noexcept;
  };
  using Buckets = std::unique_ptr<Bucket[], Unmap>;

  // At most 3.5 keys per bucket: above that, searches for absent keys become long.
  static constexpr std::size_t capacity_of(std::size_t n_buckets) noexcept {
    return n_buckets * 7 / 2 < npos ? n_buckets * 7 / 2 : npos;
  }
  static Buckets map_buckets(std::size_t n_buckets);
  static std::size_t buckets_for(std::size_t n);
  static unsigned shift_for(std::size_t n_buckets) noexcept;

  std::size_t home(std::int64_t key) const noexcept;
  unsigned live(const Bucket& bucket) const noexcept;
  void prefetch_overflow(std::size_t b) const noexcept;
  std::uint32_t find_one(std::int64_t key, std::size_t b) const noexcept;
  std::uint32_t find_or_insert_one(std::int64_t key, std::size_t b) noexcept;
  template <class LookUp>
  void look_up_all(const std::int64_t* keys, std::size_t n, std::uint32_t* rows,
                   LookUp look_up) const noexcept;
  void make_room(const std::int64_t* keys, std::size_t n, std::uint32_t* rows);
  void rebuild(std::size_t n);
  void take_slot(std::size_t b, unsigned slot) noexcept;
  bool fill_from(std::size_t from, std::size_t to) noexcept;

  SecretHash hash_;
  Buckets buckets_;
  std::size_t n_buckets_ = 0;     // a power of two
  unsigned shift_ = 0;            // 64 - log2(n_buckets_)
  std::uint32_t generation_ = 0;  // a multiple of count_bits + 1
  std::size_t size_ = 0;
};

}  // namespace mpips
