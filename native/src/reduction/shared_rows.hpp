#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "keys/mix.hpp"
#include "ring/layout.hpp"
#include "ring/worker_wait.hpp"

// Rows of embedding tables under BSP that lie on servers of other nodes. The workers of a group on
// one node share a hash table in memory: the first one that needs a row at a clock claims a slot
// for it, pulls the row and publishes it; the others copy it from there.
//
//   line[slot] ... | row[slot] ...
//
// Under BSP a row at clock c has the updates of all clocks before c, so every worker needs the
// same.
//
// Rule of use. A worker calls these functions at its clock c only when all workers of the group
// have ended all clocks before c or have finished, and it uses what they return only within its
// clock c (mpips/worker/groups/row_pulls.py). So at any time all workers that use the memory are at the
// same clock, and none reads or writes a slot that was claimed for an earlier one.
//
// Who writes what, and what orders it:
// - `claimed` is changed by compare-and-swap, from a clock before c to c, so that one worker wins
//   the slot until the next clock.
// - The winner writes `key` and `table`, and stores `keyed` with release. The others read `keyed`
//   with acquire, and then the key. One that does not find the key of a claimed slot soon leaves
//   it.
// - The winner writes the row, and stores `ready` with release. The others read `ready` with
//   acquire, and then the row. A winner whose pull ends with an error stores `given_up` there
//   instead: the others then pull the row by themselves. It may pull the row again, and publish it.
// - By the rule above the winner of clock c overwrites nothing that is read: every reader of an
//   earlier clock has ended it.
//
// A key may have several slots: one worker may have passed a slot whose key was not written yet. It
// does no harm, since both rows are the same. A key whose slots are all taken has none, and each
// worker pulls it by itself.
//
// A new launch makes new memory.
namespace mpips {

class SharedRows {
 public:
  static constexpr std::int64_t none = -1;

  // `bytes`: of the memory. `stride`: length of the longest row. `worker`: below `n_workers`.
  SharedRows(std::uint8_t* memory, std::size_t bytes, std::size_t stride, std::size_t worker,
             std::size_t n_workers, bool oversubscribed) noexcept
      : memory_(memory),
        n_slots_(bytes / (sizeof(Line) + stride * sizeof(float))),
        stride_(stride),
        worker_(worker),
        n_workers_(n_workers),
        oversubscribed_(oversubscribed) {}

  std::size_t n_slots() const noexcept { return n_slots_; }
  std::size_t stride() const noexcept { return stride_; }

  // Find or claim a slot for each key, or `none`. others[i] = 1: another worker pulls the row, or
  // it is there already; wait until it is ready. Otherwise this worker pulls the row and, if it has
  // a slot, publishes it.
  void claim(std::uint64_t table, std::uint64_t clock, const std::int64_t* keys, std::size_t n,
             std::int64_t* slots, std::uint8_t* others) noexcept {
    for (std::size_t i = 0; i < n; ++i) {
      if (i + ahead < n) __builtin_prefetch(line(home(table, keys[i + ahead])), 1);
      slots[i] = claim_one(table, clock, keys[i], &others[i]);
    }
  }
  // Write the rows of slots that this worker has claimed; `none` is left out.
  void publish(std::uint64_t clock, const std::int64_t* slots, std::size_t n, const float* rows,
               std::size_t dim) noexcept {
    for (std::size_t i = 0; i < n; ++i) {
      if (slots[i] == none) continue;
      const auto slot = static_cast<std::size_t>(slots[i]);
      std::memcpy(row(slot), rows + i * dim, dim * sizeof(float));
      store_release(&line(slot)->ready, clock + 1);
    }
  }
  // Let others pull the rows of slots that this worker has claimed; `none` is left out.
  void give_up(std::uint64_t clock, const std::int64_t* slots, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i)
      if (slots[i] != none)
        store_release(&line(static_cast<std::size_t>(slots[i]))->ready, (clock + 1) | given_up);
  }
  // Return the first of the slots from `from` on whose row is not ready or given up, or n.
  std::size_t first_missing(std::uint64_t clock, const std::int64_t* slots, std::size_t n,
                            std::size_t from) const noexcept {
    while (from < n && (ready(slots[from]) & ~given_up) == clock + 1) ++from;
    return from;
  }
  // Set left[i] = 1 where the row is given up; all are ready or given up.
  void find_left(const std::int64_t* slots, std::size_t n, std::uint8_t* left) const noexcept {
    for (std::size_t i = 0; i < n; ++i) left[i] = (ready(slots[i]) & given_up) != 0;
  }
  // Wait for `max_s` seconds at most until there is none; return as `first_missing`.
  std::size_t wait_ready(std::uint64_t clock, const std::int64_t* slots, std::size_t n,
                         std::size_t from, double max_s) const {
    wait_until(
        [&] {
          from = first_missing(clock, slots, n, from);
          return from == n;
        },
        max_s, oversubscribed_);
    return from;
  }
  // Copy rows that are ready.
  void copy(const std::int64_t* slots, std::size_t n, std::size_t dim, float* out) const noexcept {
    for (std::size_t i = 0; i < n; ++i)
      std::memcpy(out + i * dim, row(static_cast<std::size_t>(slots[i])), dim * sizeof(float));
  }
  // Return the worker that has claimed a slot.
  std::size_t claimant(std::size_t slot) const noexcept {
    return load_acquire(&line(slot)->claimed) % n_workers_;
  }

 private:
  static constexpr std::size_t most_probes = 16;
  static constexpr std::size_t ahead = 8;
  static constexpr int most_looks = 1000;  // for the key of a slot that another worker has claimed
  static constexpr std::uint64_t given_up = std::uint64_t{1} << 63;

  struct Line {
    std::uint64_t claimed;  // (one more than the clock) * workers + the worker that pulls the row
    std::uint64_t keyed;    // one more than the clock of the key
    std::uint64_t ready;    // one more than the clock whose row is there, or given_up; 0: none
    std::int64_t key;
    std::uint64_t table;
    std::uint64_t pad[3];
  };
  static_assert(sizeof(Line) == line_bytes);

  Line* line(std::size_t slot) const noexcept { return reinterpret_cast<Line*>(memory_) + slot; }
  std::uint64_t ready(std::int64_t slot) const noexcept {
    return load_acquire(&line(static_cast<std::size_t>(slot))->ready);
  }
  float* row(std::size_t slot) const noexcept {
    return reinterpret_cast<float*>(memory_ + n_slots_ * sizeof(Line)) + slot * stride_;
  }
  std::size_t home(std::uint64_t table, std::int64_t key) const noexcept {
    const std::uint64_t mixed =
        mix_splitmix(static_cast<std::uint64_t>(key) + (table + 1) * splitmix_step);
    return static_cast<std::size_t>((mixed >> 32) * n_slots_ >> 32);
  }

  std::int64_t claim_one(std::uint64_t table, std::uint64_t clock, std::int64_t key,
                         std::uint8_t* other) noexcept {
    *other = 0;
    const std::uint64_t wanted = (clock + 1) * n_workers_ + worker_;
    std::size_t slot = home(table, key);
    for (std::size_t probe = 0; probe < most_probes && probe < n_slots_; ++probe) {
      Line* at = line(slot);
      std::uint64_t found = load_acquire(&at->claimed);
      while (found / n_workers_ < clock + 1)
        if (__atomic_compare_exchange_n(&at->claimed, &found, wanted, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
          store_relaxed(&at->key, key);
          store_relaxed(&at->table, table);
          store_release(&at->keyed, clock + 1);
          return static_cast<std::int64_t>(slot);
        }
      if (found / n_workers_ == clock + 1 && has_key(at, clock) && load_relaxed(&at->key) == key &&
          load_relaxed(&at->table) == table) {
        // A pull of this worker that ended with an error may have left its claim.
        *other = found != wanted || load_acquire(&at->ready) == clock + 1;
        return static_cast<std::int64_t>(slot);
      }
      slot = slot + 1 < n_slots_ ? slot + 1 : 0;
    }
    return none;
  }
  // Wait briefly for the key of a slot that is claimed for a clock.
  static bool has_key(const Line* at, std::uint64_t clock) noexcept {
    for (int look = 0; look < most_looks; ++look)
      if (load_acquire(&at->keyed) == clock + 1) return true;
    return false;
  }

  std::uint8_t* memory_;
  std::size_t n_slots_, stride_, worker_, n_workers_;
  bool oversubscribed_;
};

}  // namespace mpips
