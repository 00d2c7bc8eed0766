#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "ring/checksum.hpp"
#include "shm/backoff.hpp"
#include "shm/memory_order.hpp"

// Look-ups of rows by processes that are not part of the job, such as `mpips serve`. They ask a
// server of their node in a shared-memory file of its own:
//
//   head | bell | text | (slot, keys, has, rows) ...
//
// The text describes the tables (mpips/server/look_ups.py). Everything else of the server is closed
// to them. The server answers between two records, so a row is never torn, whatever moves or
// removes rows; a look-up changes nothing of the server's state.
//
// Who writes what, and what orders it:
// - `state` of a slot is the ticket of a request, a random number, and the request's phase. It is
//   changed by compare-and-swap (acquire and release) alone: free -> claimed -> asked and answered
//   -> free by a client, asked -> answered by the server. Tickets do not come twice, so whoever
//   finds another state than its own has lost the slot, and writes nothing more there.
// - A client writes the request and its keys while the state is claimed, and the swap to asked
//   publishes them. The server reads them behind its load (acquire) of that state.
// - The server alone writes answer, `has` and rows, in one thread and for one request at a time,
//   while the state is asked; the swap to answered publishes them. If a client withdraws its
//   request meanwhile (asked -> free) and the slot gets another request, the server first ends the
//   old answer, whose swap then fails, and then answers the new request from the beginning. So the
//   content of an answered slot is that of its ticket.
// - A client copies the rows before it frees the slot. The swap to free succeeds only if the state
//   was answered all the time, because no ticket comes twice; else the copy is dropped.
// - `bell` is set by clients after the swap to asked, and taken by the server, both by an exchange
//   (acquire and release). All of them are in one order. The server sees each request whose
//   exchange came before its own; one that comes later leaves the bell set for the next look.
//
// Clients that end or stop. The server never waits for a client. A slot whose claim is older than
// `stale_ns` is taken over by another client: a client that runs frees its slot long before. If the
// first client goes on after that, it may still store the request and keys that it had begun, and
// nothing else. The checksum, whose seed is the ticket, makes the server refuse such a mixture as
// garbled, and the second client asks again. Its answer is not touched by these stores.
//
// A server that ends or stops. `is_open` becomes 0 when it ends. If it is killed, or hangs, clients
// withdraw their requests at a deadline, and find out by the lock on the file whether it runs
// (mpips/inference/live.py). Only this header decides what they read: an answer is complete at the
// swap to answered, so nothing of a server that was killed during an answer is read.
//
// The server uses its own copies of all sizes, and copies a request before it checks it, so no
// store of a client does more to it than to refuse or to change a look-up.
namespace mpips {

constexpr std::uint64_t look_up_magic = 0x314b4f4f4c504d31ULL;
constexpr std::uint32_t look_up_format = 1;
enum LookUpPhase : std::uint64_t { look_up_free, look_up_claimed, look_up_asked, look_up_answered };
enum class LookUpStatus : std::uint32_t { answered, garbled, refused, late, closed };

struct LookUpHead {
  std::uint64_t magic;  // written last
  std::uint32_t format, n_slots;
  std::uint32_t n_keys;      // of one request, at most
  std::uint32_t rows_bytes;  // of one answer, at most
  std::uint64_t text_bytes;
  std::uint64_t is_open;  // 1 while the server answers
  std::uint64_t pad[3];
};
static_assert(sizeof(LookUpHead) == line_bytes);

struct LookUpBell {
  std::uint64_t asked;
  std::uint64_t pad[7];
};
static_assert(sizeof(LookUpBell) == line_bytes);

struct LookUpSlot {
  std::uint64_t state;     // ticket << 2 | phase
  std::uint64_t since_ns;  // CLOCK_MONOTONIC when the slot was claimed
  std::uint32_t table, count;
  std::uint64_t checksum;  // of the request
  std::uint64_t version;   // of the table
  std::uint64_t clock;     // of the run: the lowest of all workers that have not finished
  std::uint32_t status;
  std::uint32_t pad[3];
};
static_assert(sizeof(LookUpSlot) == line_bytes);

// Places of all parts; arithmetic.
struct LookUpSizes {
  std::size_t n_slots, n_keys, rows_bytes, text_bytes;

  std::size_t text() const noexcept { return sizeof(LookUpHead) + sizeof(LookUpBell); }
  std::size_t keys() const noexcept { return sizeof(LookUpSlot); }
  std::size_t has() const noexcept { return keys() + n_keys * sizeof(std::int64_t); }
  std::size_t rows() const noexcept { return round_up(has() + n_keys, line_bytes); }
  std::size_t stride() const noexcept { return rows() + round_up(rows_bytes, line_bytes); }
  std::size_t slot(std::size_t i) const noexcept {
    return round_up(text() + text_bytes, line_bytes) + i * stride();
  }
  std::size_t total() const noexcept { return slot(n_slots); }
};

inline std::uint64_t look_up_checksum(std::uint64_t state, std::uint32_t table, std::uint32_t count,
                                      const std::int64_t* keys) noexcept {
  const std::uint64_t words[2] = {state >> 2, std::uint64_t{table} << 32 | count};
  return hash(keys, count * sizeof(std::int64_t), hash(words, sizeof words));
}

// The answer to one request, beside its rows.
struct LookUpAnswer {
  LookUpStatus status = LookUpStatus::answered;
  std::uint64_t version = 0, clock = 0;
};

// The server's end. One thread, the server's, calls all methods.
class LookUpPort {
 public:
  // Make the memory, of `sizes.total()` zeroed bytes, a port.
  LookUpPort(std::uint8_t* memory, const LookUpSizes& sizes, const std::string& text)
      : memory_(memory), sizes_(sizes), keys_(sizes.n_keys) {
    LookUpHead* head = reinterpret_cast<LookUpHead*>(memory_);
    head->format = look_up_format;
    head->n_slots = static_cast<std::uint32_t>(sizes.n_slots);
    head->n_keys = static_cast<std::uint32_t>(sizes.n_keys);
    head->rows_bytes = static_cast<std::uint32_t>(sizes.rows_bytes);
    head->text_bytes = sizes.text_bytes;
    std::memcpy(memory_ + sizes.text(), text.data(), text.size());
    store_relaxed(&head->is_open, std::uint64_t{1});
    store_release(&head->magic, look_up_magic);
  }
  ~LookUpPort() { close(); }
  LookUpPort(const LookUpPort&) = delete;
  LookUpPort& operator=(const LookUpPort&) = delete;

  // Tell clients that nothing is answered any more.
  void close() noexcept {
    store_release(&reinterpret_cast<LookUpHead*>(memory_)->is_open, std::uint64_t{0});
  }

  // True if a client has asked since the last call of `answer`. The server calls it at every visit
  // of its rings, so it is one load of a line that only clients change.
  bool is_asked() const noexcept { return load_relaxed(bell()) != 0; }

  // Answer one request, if there is any; return true if there was. `look_up(table, keys, n, rows,
  // rows_bytes, has)` returns a LookUpAnswer.
  template <class Function>
  bool answer(Function look_up) {
    if (!is_asked()) return false;
    __atomic_exchange_n(bell(), std::uint64_t{0}, __ATOMIC_ACQ_REL);
    LookUpSlot* first = nullptr;
    std::uint64_t state = 0;
    for (std::size_t k = 0, from = next_; k < sizes_.n_slots; ++k) {
      const std::size_t i = (from + k) % sizes_.n_slots;
      auto* slot = reinterpret_cast<LookUpSlot*>(memory_ + sizes_.slot(i));
      const std::uint64_t found = load_acquire(&slot->state);
      if ((found & 3) != look_up_asked) continue;
      if (first != nullptr) {
        // Records come before the other requests.
        __atomic_exchange_n(bell(), std::uint64_t{1}, __ATOMIC_ACQ_REL);
        break;
      }
      first = slot;
      state = found;
      next_ = i + 1;
    }
    if (first != nullptr) answer_slot(first, state, look_up);
    return first != nullptr;
  }

 private:
  std::uint64_t* bell() const noexcept {
    return &reinterpret_cast<LookUpBell*>(memory_ + sizeof(LookUpHead))->asked;
  }

  template <class Function>
  void answer_slot(LookUpSlot* slot, std::uint64_t state, Function& look_up) {
    auto* at = reinterpret_cast<std::uint8_t*>(slot);
    const std::uint32_t table = load_relaxed(&slot->table), count = load_relaxed(&slot->count);
    LookUpAnswer found;
    if (count > sizes_.n_keys) {
      found.status = LookUpStatus::refused;
    } else {
      std::memcpy(keys_.data(), at + sizes_.keys(), count * sizeof(std::int64_t));
      if (load_relaxed(&slot->checksum) != look_up_checksum(state, table, count, keys_.data()))
        found.status = LookUpStatus::garbled;
      else
        found = look_up(table, keys_.data(), std::size_t{count},
                        reinterpret_cast<float*>(at + sizes_.rows()), sizes_.rows_bytes,
                        at + sizes_.has());
    }
    slot->version = found.version;
    slot->clock = found.clock;
    slot->status = static_cast<std::uint32_t>(found.status);
    std::uint64_t expected = state;
    __atomic_compare_exchange_n(&slot->state, &expected, state - look_up_asked + look_up_answered,
                                false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  }

  std::uint8_t* memory_;
  LookUpSizes sizes_;
  std::vector<std::int64_t> keys_;  // of the request that is answered
  std::size_t next_ = 0;            // the slot that is looked at first
};

// A client's end; thread-safe. Several clients, of several processes, may use one port.
class LookUpClient {
 public:
  static constexpr std::uint64_t stale_ns = 10'000'000'000;

  // Throw std::invalid_argument if these bytes are no port of this format.
  LookUpClient(std::uint8_t* memory, std::size_t bytes, std::uint64_t seed)
      : memory_(memory), seed_(seed) {
    const auto* head = reinterpret_cast<const LookUpHead*>(memory);
    if (bytes < sizeof(LookUpHead) || load_acquire(&head->magic) != look_up_magic)
      throw std::invalid_argument("no look-ups are answered here yet");
    if (head->format != look_up_format)
      throw std::invalid_argument("look-ups have format " + std::to_string(head->format) +
                                  ", this mpips has format " + std::to_string(look_up_format));
    sizes_ = {head->n_slots, head->n_keys, head->rows_bytes, head->text_bytes};
    constexpr std::size_t most = std::size_t{1} << 32;
    if (sizes_.n_slots == 0 || sizes_.n_slots > 1024 || sizes_.n_keys == 0 ||
        sizes_.text_bytes > most || sizes_.total() > bytes)
      throw std::invalid_argument("the sizes of the memory of look-ups do not agree");
  }

  const LookUpSizes& sizes() const noexcept { return sizes_; }
  std::string text() const {
    return {reinterpret_cast<const char*>(memory_ + sizes_.text()), sizes_.text_bytes};
  }
  bool is_open() const noexcept {
    return load_acquire(&reinterpret_cast<const LookUpHead*>(memory_)->is_open) == 1;
  }

  // Look n keys up, at most `n_keys` of them and with at most `rows_bytes` of rows. Blocks until
  // the answer is there, or for `max_s` seconds.
  LookUpAnswer ask(std::uint32_t table, const std::int64_t* keys, std::size_t n, std::size_t dim,
                   float* out, std::uint8_t* has, double max_s) noexcept {
    const double deadline = now_s() + max_s;
    for (;;) {
      const LookUpAnswer found = ask_once(table, keys, n, dim, out, has, deadline);
      if (found.status != LookUpStatus::garbled) return found;
      if (now_s() > deadline) return {LookUpStatus::late, 0, 0};
    }
  }

 private:
  LookUpSlot* slot(std::size_t i) const noexcept {
    return reinterpret_cast<LookUpSlot*>(memory_ + sizes_.slot(i));
  }
  static bool swap(LookUpSlot* at, std::uint64_t from, std::uint64_t to) noexcept {
    return __atomic_compare_exchange_n(&at->state, &from, to, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
  }
  static std::uint64_t now_ns() noexcept { return static_cast<std::uint64_t>(now_s() * 1e9); }

  // Return the ticket of a request, 62 bits, shifted.
  std::uint64_t new_ticket() noexcept {
    const std::uint64_t n = __atomic_add_fetch(&n_tickets_, std::uint64_t{1}, __ATOMIC_RELAXED);
    const std::uint64_t mixed = hash(&n, sizeof n, seed_) << 2;
    return mixed != 0 ? mixed : 4;
  }

  // Claim a slot; null: none was free in time.
  LookUpSlot* claim(std::uint64_t ticket, double deadline) noexcept {
    Backoff backoff(true, 200);
    for (;;) {
      for (std::size_t k = 0; k < sizes_.n_slots; ++k) {
        LookUpSlot* at = slot(((ticket >> 2) + k) % sizes_.n_slots);
        const std::uint64_t found = load_acquire(&at->state), now = now_ns();
        const std::uint64_t since = load_relaxed(&at->since_ns);
        if (found != 0 && (since > now || now - since < stale_ns)) continue;
        store_relaxed(&at->since_ns, now);
        if (swap(at, found, ticket | look_up_claimed)) return at;
      }
      if (!is_open() || now_s() > deadline) return nullptr;
      backoff.pause();
    }
  }

  // Garbled: the slot was lost, or the request damaged; ask again.
  LookUpAnswer ask_once(std::uint32_t table, const std::int64_t* keys, std::size_t n,
                        std::size_t dim, float* out, std::uint8_t* has, double deadline) noexcept {
    const LookUpAnswer lost{LookUpStatus::garbled, 0, 0};
    const std::uint64_t ticket = new_ticket(), asked = ticket | look_up_asked;
    LookUpSlot* at = claim(ticket, deadline);
    if (at == nullptr) return {is_open() ? LookUpStatus::late : LookUpStatus::closed, 0, 0};
    auto* bytes = reinterpret_cast<std::uint8_t*>(at);
    store_relaxed(&at->table, table);
    store_relaxed(&at->count, static_cast<std::uint32_t>(n));
    store_relaxed(&at->checksum,
                  look_up_checksum(ticket, table, static_cast<std::uint32_t>(n), keys));
    std::memcpy(bytes + sizes_.keys(), keys, n * sizeof(std::int64_t));
    if (!swap(at, ticket | look_up_claimed, asked)) return lost;
    __atomic_exchange_n(&reinterpret_cast<LookUpBell*>(memory_ + sizeof(LookUpHead))->asked,
                        std::uint64_t{1}, __ATOMIC_ACQ_REL);

    Backoff backoff(true, 200);
    for (;;) {
      const std::uint64_t state = load_acquire(&at->state);
      if (state == (ticket | look_up_answered)) break;
      if (state != asked) return lost;
      const bool open = is_open();
      // If the answer comes at this moment, the slot is not freed, and is read.
      if ((!open || now_s() > deadline) && swap(at, asked, 0))
        return {open ? LookUpStatus::late : LookUpStatus::closed, 0, 0};
      backoff.pause();
    }
    LookUpAnswer found{static_cast<LookUpStatus>(at->status), at->version, at->clock};
    if (found.status == LookUpStatus::answered) {
      std::memcpy(out, bytes + sizes_.rows(), n * dim * sizeof(float));
      std::memcpy(has, bytes + sizes_.has(), n);
    }
    return swap(at, ticket | look_up_answered, 0) ? found : lost;
  }

  std::uint8_t* memory_;
  std::uint64_t seed_, n_tickets_ = 0;
  LookUpSizes sizes_{};
};

}  // namespace mpips
