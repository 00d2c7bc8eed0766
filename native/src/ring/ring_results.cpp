#include <algorithm>

#include "ring/record_parts.hpp"
#include "ring/ring_writer.hpp"

// What comes back from the server for each record: its result, and with it the counters.
namespace mpips {

// Read `applied`, and the results up to it. The server uses result slots again, but only after this
// worker has written the record behind them. That needs a credit, and a credit needs that the old
// result has been read here.
std::uint64_t RingWriter::applied() noexcept {
  read_applied();
  for (; retired_ < consumed_; ++retired_) {
    const std::uint64_t word = result_word(retired_);
    if (!result_is_of(word, retired_)) break;
    retire(retired_, word);
  }
  return retired_;
}

void RingWriter::read_applied() noexcept {
  const bool measures = distance_.is_due();
  const double start = measures ? now_s() : 0.0;
  const std::uint64_t found = read_pair_spin(&box_.ack->applied, consumed_);
  if (found == consumed_) return;
  consumed_ = found;
  if (!measures) return distance_.found();
  const double end = now_s();
  distance_.found_in(end - start, now_s() - end);
  stores_.set_far(is_far());
}

// Read a result from the acknowledgement line while it is there. The server may have written the
// result of a later record in its place; the sequence in the word shows that.
std::uint64_t RingWriter::result_word(std::uint64_t sequence) const noexcept {
  const std::uint64_t word = load_acquire(&box_.ack->recent[sequence % recent_results]);
  return result_is_of(word, sequence) ? word : load_acquire(box_.result(sequence));
}

void RingWriter::retire(std::uint64_t sequence, std::uint64_t result) noexcept {
  past_.put(sequence, result);
  const std::uint8_t role = role_[sequence % box_.geometry.n_slots];
  auto& outcomes = counters_.outcomes;
  if (role == role_push_end) {
    outcomes[std::min<std::size_t>(result & 0xff, outcomes.size() - 1)] += 1;
    counters_.max_staleness = std::max(counters_.max_staleness, staleness_of(result));
    counters_.staleness_sum += staleness_of(result);
    if (trace_ != nullptr) {
      const std::uint64_t now_is = TraceRing::now_ns();
      trace_->add(TraceKind::taken, now_is, now_is, sequence, 0, 0, server_);
    }
  } else if (role == role_tick && outcome_of(result) == Outcome::late) {
    // The clock closed without this worker: its pushes were accumulated first and then dropped.
    outcomes[static_cast<std::size_t>(Outcome::accumulated)] -= staleness_of(result);
    outcomes[static_cast<std::size_t>(Outcome::late)] += staleness_of(result);
  }
}

std::uint64_t RingWriter::result(std::uint64_t sequence) noexcept {
  applied();
  return past_.find(sequence, 0);
}

std::uint64_t RingWriter::pulled_version(std::uint64_t sequence) const noexcept {
  return pulled_.find(sequence, unnamed);
}

const PushCounters& RingWriter::counters() noexcept {
  applied();
  return counters_;
}

}  // namespace mpips
