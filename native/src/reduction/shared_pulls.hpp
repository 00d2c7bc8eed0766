#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ring/layout.hpp"
#include "ring/worker_wait.hpp"

// Values of dense tables under BSP that lie on servers of other nodes. The first worker of a node
// that needs a part at a clock pulls it into memory that the workers of the node share; the others
// copy it from there. So the values cross the network once for each node.
//
//   line[part] | values[part] ...
//
// Under BSP the values of a table at clock c are those after all clocks before c, so every worker
// of the node needs the same.
//
// Who writes what, and what orders it:
// - `claimed` is changed by compare-and-swap, from a clock before c to c, so that one worker wins.
//   Such a word has several writers, all of one node; node_rows.hpp has the only others.
// - A worker that claims c waits for the server to close all clocks before c, and thus for slower
//   workers of the node. So these never wait for it: one that finds a later clock than its own
//   claimed, and its own not ready, pulls by itself and leaves the memory alone (`is_passed`).
// - The winner writes values and `version`, and stores `ready` with release. The others read
//   `ready` with acquire, and then the values.
// - The values of clock c are overwritten by those of a later clock d only when no worker reads
//   them any more. The winner of d has seen that the server has closed all clocks before d. A
//   server closes a clock when every worker has ended it or has closed the table in it. A worker
//   pulls a table at clock c before it ends c or closes the table in c, and when a pull returns it
//   has copied the values. After a restart a worker may repeat a clock that a server has closed; it
//   uses this memory only when it repeats no more (mpips/worker/groups/node_pulls.py).
//
// A new launch makes new memory.
namespace mpips {

class SharedPulls {
 public:
  // `sizes`: elements of each part. `worker`: index of this worker, below `n_workers`.
  SharedPulls(std::uint8_t* memory, const std::vector<std::size_t>& sizes, std::size_t worker,
              std::size_t n_workers, bool oversubscribed)
      : memory_(memory), worker_(worker), n_workers_(n_workers), oversubscribed_(oversubscribed) {
    std::size_t at = sizes.size() * sizeof(Line);
    for (const std::size_t n : sizes) {
      parts_.push_back({at, n});
      at += round_up(n * sizeof(float), page_bytes);
    }
  }

  static std::size_t bytes_for(const std::vector<std::size_t>& sizes) noexcept {
    std::size_t bytes = sizes.size() * sizeof(Line);
    for (const std::size_t n : sizes) bytes += round_up(n * sizeof(float), page_bytes);
    return round_up(bytes, page_bytes);
  }

  std::size_t n_parts() const noexcept { return parts_.size(); }
  std::size_t n(std::size_t part) const { return parts_.at(part).n; }
  float* values(std::size_t part) const {
    return reinterpret_cast<float*>(memory_ + parts_.at(part).offset);
  }

  // Return true if the values of a clock are there.
  bool is_ready(std::size_t part, std::uint64_t clock) const noexcept {
    return load_acquire(&line(part)->ready) == clock + 1;
  }
  bool wait_ready(std::size_t part, std::uint64_t clock, double max_s) const {
    return wait_until([&] { return is_ready(part, clock); }, max_s, oversubscribed_);
  }

  // Return true if this worker is the one that pulls the values of a clock; it then calls
  // `publish`. It remains that one until then, also if its pull ends with an error.
  bool claim(std::size_t part, std::uint64_t clock) noexcept {
    std::uint64_t* word = &line(part)->claimed;
    std::uint64_t found = load_acquire(word);
    const std::uint64_t wanted = (clock + 1) * n_workers_ + worker_;
    while (found / n_workers_ < clock + 1)
      if (__atomic_compare_exchange_n(word, &found, wanted, false, __ATOMIC_ACQ_REL,
                                      __ATOMIC_ACQUIRE))
        return true;
    return found == wanted && !is_ready(part, clock);
  }
  // Return true if a worker has claimed a later clock, and the values of this one are not there.
  bool is_passed(std::size_t part, std::uint64_t clock) const noexcept {
    return load_acquire(&line(part)->claimed) / n_workers_ > clock + 1 && !is_ready(part, clock);
  }
  // Return the worker that has pulled, or pulls, the newest values.
  std::size_t claimant(std::size_t part) const noexcept {
    return load_acquire(&line(part)->claimed) % n_workers_;
  }
  void publish(std::size_t part, std::uint64_t clock, std::uint64_t version) noexcept {
    store_relaxed(&line(part)->version, version);
    store_release(&line(part)->ready, clock + 1);
  }
  // Return the version of the values of a clock that is ready.
  std::uint64_t version(std::size_t part) const noexcept {
    return load_relaxed(&line(part)->version);
  }

 private:
  struct Line {
    std::uint64_t claimed;  // (one more than the newest clock) * workers + the worker that pulls it
    std::uint64_t ready;    // one more than the clock whose values are there; 0: none
    std::uint64_t version;  // of these values at the server
    std::uint64_t pad[5];
  };
  static_assert(sizeof(Line) == line_bytes);
  struct Part {
    std::size_t offset, n;
  };

  Line* line(std::size_t part) const noexcept { return reinterpret_cast<Line*>(memory_) + part; }

  std::uint8_t* memory_;
  std::size_t worker_, n_workers_;
  bool oversubscribed_;
  std::vector<Part> parts_;
};

}  // namespace mpips
