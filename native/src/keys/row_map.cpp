#include "keys/row_map.hpp"

#include <sys/mman.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "keys/mix.hpp"

namespace mpips {

namespace {

constexpr std::size_t min_buckets = 64;  // one page of memory
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

// Prefetch the home buckets of keys this many keys ahead, which covers the latency of memory. This
// many keys ahead (their home buckets are then in the cache), prefetch the bucket after a full one;
// else the search for an absent key would wait for it.
constexpr std::size_t n_ahead = 64;
constexpr std::size_t n_ahead_overflow = 16;
static_assert((n_ahead & (n_ahead - 1)) == 0 && n_ahead_overflow < n_ahead);

// Set bit 2s where slot s of `keys` equals `key`, without branches, because none could be
// predicted. Both versions give the same result. SSE2 has no comparison of 64 bits, so its version
// compares the halves.
unsigned equal_slots(const std::int64_t (&keys)[5], std::int64_t key) noexcept {
#if defined(__SSE2__)
  const __m128i wanted = _mm_set1_epi64x(key);
  const auto* pairs = reinterpret_cast<const __m128i*>(keys);
  const __m128i first = _mm_cmpeq_epi32(_mm_load_si128(pairs), wanted);
  const __m128i second = _mm_cmpeq_epi32(_mm_load_si128(pairs + 1), wanted);
  const __m128i third = _mm_cmpeq_epi32(_mm_loadl_epi64(pairs + 2), wanted);
  const __m128i bytes =
      _mm_packs_epi16(_mm_packs_epi32(first, second), _mm_packs_epi32(third, third));
  const auto halves = static_cast<unsigned>(_mm_movemask_epi8(bytes));
  return halves & (halves >> 1) & 0x155u;
#else
  unsigned mask = 0;
  for (unsigned s = 0; s < 5; ++s) mask |= static_cast<unsigned>(keys[s] == key) << (2 * s);
  return mask;
#endif
}

}  // namespace

RowMap::RowMap(std::size_t capacity_hint)
    : buckets_(map_buckets(buckets_for(capacity_hint))),
      n_buckets_(buckets_for(capacity_hint)),
      shift_(shift_for(n_buckets_)) {}

void RowMap::Unmap::operator()(Bucket* buckets) const noexcept { munmap(buckets, n_bytes); }

RowMap::Buckets RowMap::map_buckets(std::size_t n_buckets) {
  const std::size_t n_bytes = n_buckets * sizeof(Bucket);
  void* pages = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();

  // Ask for huge pages: random look-ups in a large map miss the TLB on 4 KiB pages. A refusal costs
  // only speed.
  if (n_bytes >= huge_page_bytes) madvise(pages, n_bytes, MADV_HUGEPAGE);
  return Buckets(static_cast<Bucket*>(pages), Unmap{n_bytes});
}

std::size_t RowMap::buckets_for(std::size_t n) {
  if (n > npos)
    throw std::length_error(std::to_string(n) + " keys: a row map can have at most 4294967295");
  std::size_t n_buckets = min_buckets;
  while (capacity_of(n_buckets) < n) n_buckets *= 2;
  return n_buckets;
}

unsigned RowMap::shift_for(std::size_t n_buckets) noexcept {
  return 64u - static_cast<unsigned>(__builtin_ctzll(n_buckets));
}

inline std::size_t RowMap::home(std::int64_t key) const noexcept { return hash_(key) >> shift_; }

inline unsigned RowMap::live(const Bucket& bucket) const noexcept {
  const std::uint32_t count = bucket.stamp ^ generation_;
  return count <= bucket_slots ? count : 0;
}

inline void RowMap::prefetch_overflow(std::size_t b) const noexcept {
  __builtin_prefetch(&buckets_[b] + (live(buckets_[b]) == bucket_slots));
}

inline std::uint32_t RowMap::find_one(std::int64_t key, std::size_t b) const noexcept {
  for (;; b = (b + 1) & (n_buckets_ - 1)) {
    const Bucket& bucket = buckets_[b];
    const unsigned n_live = live(bucket);
    const unsigned hits = equal_slots(bucket.keys, key) & ((1u << 2 * n_live) - 1);
    if (hits != 0) return bucket.rows[__builtin_ctz(hits) / 2];
    if (n_live < bucket_slots) return npos;
  }
}

inline std::uint32_t RowMap::find_or_insert_one(std::int64_t key, std::size_t b) noexcept {
  for (;; b = (b + 1) & (n_buckets_ - 1)) {
    Bucket& bucket = buckets_[b];
    const unsigned n_live = live(bucket);
    const unsigned hits = equal_slots(bucket.keys, key) & ((1u << 2 * n_live) - 1);
    if (hits != 0) return bucket.rows[__builtin_ctz(hits) / 2];
    if (n_live == bucket_slots) continue;

    bucket.keys[n_live] = key;
    bucket.rows[n_live] = static_cast<std::uint32_t>(size_);
    bucket.stamp = generation_ | (n_live + 1);
    return static_cast<std::uint32_t>(size_++);
  }
}

// Set rows[i] = look_up(keys[i], its home), and prefetch the memory of the next keys. A home is
// computed once and stored until it is used.
template <class LookUp>
void RowMap::look_up_all(const std::int64_t* keys, std::size_t n, std::uint32_t* rows,
                         LookUp look_up) const noexcept {
  std::uint32_t homes[n_ahead];  // of key i at i % n_ahead; there are at most 2^31 buckets
  const auto ask = [&](std::size_t i) {
    const std::size_t b = home(keys[i]);
    homes[i % n_ahead] = static_cast<std::uint32_t>(b);
    __builtin_prefetch(&buckets_[b]);
  };
  for (std::size_t i = 0; i < std::min(n, n_ahead); ++i) ask(i);

  const std::size_t n_asking = n - std::min(n, n_ahead);
  for (std::size_t i = 0; i < n_asking; ++i) {
    const std::uint32_t b = homes[i % n_ahead];
    ask(i + n_ahead);
    prefetch_overflow(homes[(i + n_ahead_overflow) % n_ahead]);
    rows[i] = look_up(keys[i], b);
  }
  for (std::size_t i = n_asking; i < n; ++i) rows[i] = look_up(keys[i], homes[i % n_ahead]);
}

void RowMap::find(const std::int64_t* keys, std::size_t n, std::uint32_t* rows) const noexcept {
  look_up_all(keys, n, rows, [this](std::int64_t key, std::size_t b) { return find_one(key, b); });
}

std::size_t RowMap::find_or_insert(const std::int64_t* keys, std::size_t n, std::uint32_t* rows) {
  if (n > capacity() - size_) make_room(keys, n, rows);

  const std::size_t before = size_;
  look_up_all(keys, n, rows,
              [this](std::int64_t key, std::size_t b) { return find_or_insert_one(key, b); });
  return size_ - before;
}

// Grow before the first insertion, so that a failed allocation leaves nothing to undo.
void RowMap::make_room(const std::int64_t* keys, std::size_t n, std::uint32_t* rows) {
  find(keys, n, rows);
  reserve(size_ + static_cast<std::size_t>(std::count(rows, rows + n, npos)));
}

void RowMap::reserve(std::size_t n) {
  if (buckets_for(n) > n_buckets_) rebuild(n);
}

void RowMap::shrink() {
  if (n_buckets_ > min_buckets && size_ < capacity() / 8) rebuild(2 * size_);
}

// Move all keys to new memory with room for n.
void RowMap::rebuild(std::size_t n) {
  RowMap grown(n);
  grown.hash_ = hash_;
  for (std::size_t b = 0; b < n_buckets_; ++b) {
    const Bucket& bucket = buckets_[b];
    for (unsigned s = 0; s < live(bucket); ++s) {
      grown.size_ = bucket.rows[s];  // the row that the next insertion gives
      grown.find_or_insert_one(bucket.keys[s], grown.home(bucket.keys[s]));
    }
  }
  grown.size_ = size_;
  *this = std::move(grown);
}

void RowMap::prefetch(std::int64_t key) const noexcept {
  __builtin_prefetch(&buckets_[home(key)], 1);
}

void RowMap::set_row(std::int64_t key, std::uint32_t row) noexcept {
  for (std::size_t b = home(key);; b = (b + 1) & (n_buckets_ - 1)) {
    Bucket& bucket = buckets_[b];
    const unsigned n_live = live(bucket);
    const unsigned hits = equal_slots(bucket.keys, key) & ((1u << 2 * n_live) - 1);
    if (hits != 0) bucket.rows[__builtin_ctz(hits) / 2] = row;
    if (hits != 0 || n_live < bucket_slots) return;
  }
}

std::uint32_t RowMap::erase(std::int64_t key) noexcept {
  for (std::size_t b = home(key);; b = (b + 1) & (n_buckets_ - 1)) {
    Bucket& bucket = buckets_[b];
    const unsigned n_live = live(bucket);
    const unsigned hits = equal_slots(bucket.keys, key) & ((1u << 2 * n_live) - 1);
    if (hits == 0 && n_live < bucket_slots) return npos;
    if (hits == 0) continue;

    const unsigned slot = static_cast<unsigned>(__builtin_ctz(hits)) / 2;
    const std::uint32_t row = bucket.rows[slot];
    take_slot(b, slot);
    --size_;
    // Only a full bucket may have been passed over by keys of later buckets. A bucket that gives a
    // key away is then the one with a free slot, and was full before if the search goes on.
    std::size_t free = b;
    bool was_full = n_live == bucket_slots;
    for (std::size_t from = (b + 1) & (n_buckets_ - 1); was_full;
         from = (from + 1) & (n_buckets_ - 1)) {
      was_full = live(buckets_[from]) == bucket_slots;
      if (fill_from(from, free)) free = from;
    }
    return row;
  }
}

// Free a slot of a bucket: its last key moves there.
void RowMap::take_slot(std::size_t b, unsigned slot) noexcept {
  Bucket& bucket = buckets_[b];
  const unsigned last = live(bucket) - 1;
  bucket.keys[slot] = bucket.keys[last];
  bucket.rows[slot] = bucket.rows[last];
  bucket.stamp = generation_ | last;
}

// Move a key of bucket `from` whose home is bucket `to` or before it into `to`, which has a free
// slot; return false if there is none.
bool RowMap::fill_from(std::size_t from, std::size_t to) noexcept {
  const Bucket& source = buckets_[from];
  const std::size_t mask = n_buckets_ - 1, distance = (from - to) & mask;
  for (unsigned s = 0; s < live(source); ++s) {
    if (((from - home(source.keys[s])) & mask) < distance) continue;
    Bucket& target = buckets_[to];
    const unsigned n_live = live(target);
    target.keys[n_live] = source.keys[s];
    target.rows[n_live] = source.rows[s];
    target.stamp = generation_ | (n_live + 1);
    take_slot(from, s);
    return true;
  }
  return false;
}

void RowMap::clear() noexcept {
  size_ = 0;
  generation_ += count_bits + 1;
  if (generation_ != 0) return;

  // All generations are used up: without this, old stamps would count again.
  for (std::size_t b = 0; b < n_buckets_; ++b) buckets_[b].stamp = 0;
}

std::size_t RowMap::longest_probe() const noexcept {
  std::size_t longest = 0;
  for (std::size_t b = 0; b < n_buckets_; ++b) {
    for (unsigned s = 0; s < live(buckets_[b]); ++s) {
      const std::size_t distance = (b - home(buckets_[b].keys[s])) & (n_buckets_ - 1);
      longest = std::max(longest, distance + 1);
    }
  }
  return longest;
}

}  // namespace mpips
