#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "shm/backoff.hpp"
#include "shm/copy.hpp"

namespace mpips {

// The way of writing memory that another core reads: the one that is measured to be faster, or
// always the same one.
enum class Stores : std::uint8_t { measured, cached, past };

// Return the way that the environment variable MPIPS_STORES names, for measurements and tests.
// Throws std::invalid_argument if it is another one.
Stores forced_stores();

// Measures how far the core is that writes what this one reads: the time of a load that finds a new
// value in a line which this core had read before, so that the line has to come from the other
// core. Some 50 ns where both cores share a cache, 250 ns where they do not (cores of other tiles
// or sockets, or of a virtual machine that moves them). A line that has left the other core's cache
// comes from memory, in a time between the two, which says nothing.
class CoreDistance {
 public:
  // True if the next load that finds a new value should be measured: one in `period`.
  bool is_due() const noexcept { return forced_ == Stores::measured && found_ % period == 0; }
  // Never find that the core is far, unless MPIPS_STORES says so.
  void stay_near() noexcept {
    if (forced_ == Stores::measured) forced_ = Stores::cached;
  }
  // Note a new value that was found, or the seconds in which it was found, with those of one read
  // of the clock.
  void found() noexcept { ++found_; }
  void found_in(double seconds, double clock_s) noexcept {
    ++found_;
    seconds -= clock_s;
    // A clock that is read by a system call would hide the time of a load.
    if (clock_s > most_clock_s) return;
    if (seconds > most_near_s && seconds < least_far_s) return found_between();
    between_ = 0;
    last_[at_] = seconds;
    at_ = (at_ + 1) % last_.size();
    // All of the last ones must agree: a load that is interrupted takes long, and one whose line
    // was fetched ahead is short.
    const auto is = [](bool far) { return [=](double s) { return (s >= least_far_s) == far; }; };
    if (std::all_of(last_.begin(), last_.end(), is(!far_))) far_ = !far_;
  }
  // True if writes for the other core had better go past the caches.
  bool is_far() const noexcept {
    return forced_ == Stores::measured ? far_ : forced_ == Stores::past;
  }

 private:
  // Where most loads take a time between the two, some are interrupted and look far: these alone
  // must not decide. If nothing is known for long, the writes themselves are compared.
  void found_between() noexcept {
    if (++between_ % forgets_after != 0) return;
    if (between_ >= unknown_after) far_ = false;
    last_.fill(far_ ? least_far_s : 0.0);
  }

  static constexpr std::uint64_t period = 16;
  static constexpr unsigned forgets_after = 4, unknown_after = 64;
  static constexpr double most_near_s = 85e-9, least_far_s = 175e-9, most_clock_s = 100e-9;

  Stores forced_ = forced_stores();
  std::uint64_t found_ = 0;
  std::array<double, 3> last_{};
  unsigned between_ = 0;  // loads of which the last ones say nothing
  std::size_t at_ = 0;
  bool far_ = false;
};

// Chooses how to write memory that another core has read since it was last written: by ordinary
// stores, or by stores past the caches.
//
// An ordinary store must first fetch its line and take it away from the other core. That takes
// about 4 ns a line where both cores share a cache and 25 ns where they do not, and the line
// travels back when the other core reads it. A store past the caches writes a whole line to memory
// without fetching it: 3 ns. The other core then reads memory, which takes 3 ns longer than a
// shared cache, and less time than a cache far away. So stores go past the caches where the other
// core is known to be far, or where they are found to be faster: now and then a write has two
// pieces of the same size, or is one of two short writes, of which one goes each way, each first in
// turn, since what else a piece costs depends on its place (what it reads may be prefetched). That
// costs writer and reader about 1 us each, so it becomes rarer while the choice stays the same.
//
// One thread uses an object.
class StoreChoice {
 public:
  using Clock = double (*)() noexcept;  // seconds

  // Tests have clocks of their own. The library for other programs does not read MPIPS_STORES.
  explicit StoreChoice(Clock clock = now_s, Stores forced = forced_stores())
      : clock_(clock), forced_(forced) {}

  // Shorter writes are not worth the fence that completes stores past the caches.
  static constexpr std::size_t least_floats = 512;
  static constexpr std::size_t alignment = 64;  // bytes
  static constexpr std::size_t line_floats = 16;

  // Write n floats to `to` by calls piece(first, count, past): floats [first, first + count), past
  // the caches or not. `first` is a multiple of `unit`, which is one of 16 and divides
  // `most_measured`. Floats that are written past the caches must be complete for all cores when
  // piece returns. What does not begin at a multiple of 64 bytes is written by ordinary stores.
  template <class Piece>
  void write(const void* to, std::size_t n, std::size_t unit, const Piece& piece) {
    if (n < least_floats || reinterpret_cast<std::uintptr_t>(to) % alignment != 0)
      return piece(std::size_t{0}, n, false);
    if (forced_ != Stores::measured) return piece(std::size_t{0}, n, forced_ == Stores::past);
    if (far_) return piece(std::size_t{0}, n, true);
    if (left_ > 0) {
      --left_;
      return piece(std::size_t{0}, n, past_);
    }
    const std::size_t part = std::min(std::max(most_measured, unit), n / 2) / unit * unit;
    if (part == 0) return piece(std::size_t{0}, n, past_);
    if (n < 2 * most_measured) return measure_whole(n, piece);
    const bool past_first = at_ % 2 != 0;
    const double start = clock_();
    piece(std::size_t{0}, part, past_first);
    complete_streams();
    const double between = clock_();
    piece(part, part, !past_first);
    complete_streams();
    const double end = clock_();
    note(past_first, between - start, part);
    note(!past_first, end - between, part);
    choose();
    if (2 * part < n) piece(2 * part, n - 2 * part, past_);
  }
  // Say whether the core that reads is known to be far (CoreDistance).
  void set_far(bool far) noexcept { far_ = far; }
  // Write by ordinary stores always, unless MPIPS_STORES says otherwise: for memory that no other
  // core reads, or that this one reads again.
  void stay_in_caches() noexcept {
    if (forced_ == Stores::measured) forced_ = Stores::cached;
  }
  // True if the next write is by ordinary stores alone.
  bool is_plain() const noexcept {
    if (forced_ != Stores::measured) return forced_ == Stores::cached;
    return !far_ && !past_ && left_ > 0;
  }
  // True if the next write, of n floats, is by ordinary stores alone. The caller then makes it in
  // its own way, without `write`.
  bool takes_plain(std::size_t n) noexcept {
    if (n < least_floats) return true;
    if (!is_plain()) return false;
    if (forced_ == Stores::measured) --left_;
    return true;
  }

 private:
  static constexpr unsigned least_between = 16, most_between = 256;
  static constexpr std::size_t most_measured = 1024;  // floats
  // A reader needs so much longer for a line from memory than from a shared cache, with a margin.
  static constexpr double least_saved_s = 6e-9;

  // Make the whole write in one way, the next measured one in the other.
  template <class Piece>
  void measure_whole(std::size_t n, const Piece& piece) {
    const bool past = at_ % 2 != 0;
    const double start = clock_();
    piece(std::size_t{0}, n, past);
    complete_streams();
    note(past, clock_() - start, n);
    choose();
  }
  void note(bool past, double seconds, std::size_t n) noexcept {
    times_[past][n_noted_[past]++ % 2] =
        seconds / (static_cast<double>(n) / static_cast<double>(line_floats));
  }
  void choose() noexcept {
    const bool before = past_;
    const auto least = [](const std::array<double, 2>& t) { return std::min(t[0], t[1]); };
    // A short write is measured in one way.
    const bool known = ++at_ >= 4;
    if (known) past_ = least(times_[0]) - least(times_[1]) > least_saved_s;
    between_ = known && past_ == before ? std::min(2 * between_, most_between) : least_between;
    // One less each time, so that not always the same one of a step's writes is measured.
    left_ = between_ - 1 - at_ % 4;
  }

  Clock clock_;
  Stores forced_;
  unsigned left_ = 0;  // writes until one is measured
  unsigned between_ = least_between;
  unsigned at_ = 0;  // measured writes
  bool past_ = false, far_ = false;
  // Seconds a line of the last two measured writes by ordinary stores, and of those past the caches
  std::array<std::array<double, 2>, 2> times_{};
  std::array<unsigned, 2> n_noted_{};
};

}  // namespace mpips
