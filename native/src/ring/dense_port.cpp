#include "ring/dense_port.hpp"

namespace mpips {
namespace {

constexpr double short_wait_s = 100e-6;
constexpr std::size_t large_bytes = 16 << 20;  // larger updates do not stay in a cache anyway

}  // namespace

bool DensePort::staged(const float* update) const noexcept {
  const auto* at = reinterpret_cast<const std::uint8_t*>(update);
  return staging_ != nullptr && at >= staging_ && at < staging_ + staging_bytes_ &&
         n_ * sizeof(float) <= static_cast<std::size_t>(staging_ + staging_bytes_ - at);
}

bool DensePort::fits_records() const noexcept {
  for (const Part& part : parts_)
    if ((part.stop - part.start) * sizeof(float) > part.writer->geometry().payload_capacity())
      return false;
  return true;
}

bool DensePort::replays() const noexcept {
  for (const Part& part : parts_)
    if (part.writer->replays()) return true;
  return false;
}

bool DensePort::has_credits() const noexcept {
  for (const Part& part : parts_)
    if (part.writer->credits() == 0) return false;
  return true;
}

bool DensePort::is_free(const Bounce& bounce) noexcept {
  for (const PushEnd& end : bounce.ends)
    if (end.writer->applied() <= end.sequence) return false;
  return true;
}

Sent DensePort::push(const float* update, std::vector<PushEnd>* ends) {
  // A push that a server has already needs no credit, and must have been checked before it counts.
  if (is_closed() || replays()) return Sent::other_way;
  const bool in_place = staged(update);
  if (!in_place && !fits_records()) return push_by_bounce(update, ends);
  if (!has_credits()) return Sent::no_room;
  if (!in_place) return push_records(update, ends);
  if (check_finite_ && !kernels().all_finite(update, n_)) return Sent::other_way;
  push_in_place(update, ends);
  return Sent::yes;
}

// Check for NaN and infinity while copying if there is one server. If there are several, check the
// whole update before any record is written.
Sent DensePort::push_records(const float* update, std::vector<PushEnd>* ends) {
  const bool fused = check_finite_ && parts_.size() == 1;
  if (check_finite_ && !fused && !kernels().all_finite(update, n_)) return Sent::other_way;
  for (const Part& part : parts_) {
    if (part.writer->push_whole(table_, clock_->now, update + part.start, part.stop - part.start,
                                fused) != Written::yes)
      return Sent::other_way;
    ends->push_back({part.writer, part.writer->next_sequence() - 1});
    part.writer->warm_next_slot(4 << 10);
  }
  clock_->pushed_at = clock_->now;
  return Sent::yes;
}

Sent DensePort::push_by_bounce(const float* update, std::vector<PushEnd>* ends) {
  if (bounces_.empty()) return Sent::other_way;
  Bounce& bounce = bounces_[next_bounce_];
  if (!has_credits() || !is_free(bounce)) return Sent::no_room;
  auto* to = reinterpret_cast<float*>(staging_ + bounce.offset);
  bool finite = true;
  const auto copy = [&](std::size_t first, std::size_t count, bool past) {
    finite &= past ? kernels().stream_finite(to + first, update + first, count)
                   : kernels().copy_finite(to + first, update + first, count);
  };
  if (n_ * sizeof(float) >= large_bytes) {
    copy(0, n_, true);
  } else {
    stores_.set_far(parts_.front().writer->is_far());
    stores_.write(to, n_, line_floats, copy);
  }
  if (check_finite_ && !finite) return Sent::other_way;
  push_in_place(to, ends);
  bounce.ends = *ends;
  next_bounce_ = (next_bounce_ + 1) % bounces_.size();
  return Sent::yes;
}

void DensePort::push_in_place(const float* update, std::vector<PushEnd>* ends) {
  for (const Part& part : parts_) {
    const auto* from = reinterpret_cast<const std::uint8_t*>(update + part.start);
    const auto offset = static_cast<std::uint64_t>(from - staging_);
    part.writer->push_staged(table_, clock_->now, {offset, ~std::uint64_t{0}},
                             part.stop - part.start);
    ends->push_back({part.writer, part.writer->next_sequence() - 1});
  }
  clock_->pushed_at = clock_->now;
}

std::size_t DensePort::waits_for() const noexcept {
  if (bounces_.empty()) return 0;
  const std::vector<PushEnd>& ends = bounces_[next_bounce_].ends;
  for (std::size_t i = 0; i < ends.size(); ++i)
    if (ends[i].writer->applied() <= ends[i].sequence) return i;
  return 0;
}

bool DensePort::wait_room(double max_s) {
  const auto found = [&] {
    // Replies of pulls of rows under way take slots until they are collected.
    for (const Part& part : parts_) part.writer->collect();
    return has_credits() && (bounces_.empty() || is_free(bounces_[next_bounce_]));
  };
  return wait_until(found, max_s, oversubscribed_);
}

template <class Done>
bool DensePort::wait_short(Done done) noexcept {
  return wait_until(done, short_wait_s, oversubscribed_, &clock_->wait_s);
}

// Condition of a pull. BSP: the values have all workers' previous clocks, those before its end.
// SSP: no worker is more clocks behind than the bound. SSP and ASP: this worker's own pushes are
// applied.
bool DensePort::settled() noexcept {
  const bool bsp = clock_->now < bsp_until_;
  const std::uint64_t version = bsp ? clock_->now : bsp_until_;
  const std::int64_t behind = static_cast<std::int64_t>(clock_->now) - bound_;
  const std::uint64_t least = bound_ >= 0 && behind > 0 ? static_cast<std::uint64_t>(behind) : 0;
  for (const Part& part : parts_) {
    const std::uint64_t pushed = part.writer->pushed_before(table_);
    if (!bsp && pushed > 0 && !wait_short([&] { return part.writer->applied() >= pushed; }))
      return false;
    if (version == 0 && least == 0) continue;
    const auto* head = reinterpret_cast<const TableHead*>(part.region + part.head);
    if (!wait_short([&] { return head_reached(head, version, least); })) return false;
  }
  return true;
}

bool DensePort::pull(float* out) {
  if (!pulls_ || is_closed() || !settled()) return false;
  if (log_ != nullptr) log_->drop();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const std::size_t n = part.stop - part.start;
    const auto* head = reinterpret_cast<const TableHead*>(part.region + part.head);
    const auto* versions = reinterpret_cast<const PairWord*>(part.region + part.versions);
    const auto* values = reinterpret_cast<const float*>(part.region + part.values);
    std::uint64_t version = 0;
    if (!read_pair(&head->version, &version)) return false;
    std::uint64_t* seen = log_ != nullptr ? log_->seen(Layout::n_blocks(n)) : nullptr;
    if (!copy_dense(versions, values, 0, n, out + part.start, now_s() + short_wait_s,
                    oversubscribed_, seen))
      return false;
    part.writer->set_base_version(table_, version);
    part.writer->count_pulled(n * sizeof(float));
    if (log_ != nullptr) log_->add_part(servers_[i], table_, part.writer->next_sequence(), version);
  }
  if (log_ != nullptr) log_->keep();
  return true;
}

}  // namespace mpips
