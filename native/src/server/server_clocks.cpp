#include <algorithm>
#include <cstdint>
#include <vector>

#include "server/embedding_shard.hpp"
#include "server/server_core.hpp"

// The clocks of the workers: their ticks, the sums that are applied when a BSP clock closes, and
// the clocks and versions that the server publishes.
namespace mpips {

ServerCore::Verdict ServerCore::handle_tick(std::size_t worker, const RecordHeader& h) {
  check_nothing_open(worker);
  if (static_cast<RecordKind>(h.kind) == RecordKind::finish) {
    if (!limited_.empty()) remove_rows(0.0);
    clocks_.finish(worker);
    if (backup_times_) backup_times_->finish(worker);
    discard_clock(worker);
    if (any_bsp_ && clocks_.complete()) close_clock();
    publish_clock(worker);
    publish_clocks();
    return {true, Outcome::answered, 0};
  }
  Verdict verdict{true, Outcome::answered, 0};
  if (!any_bsp_) {
    clocks_.tick(worker, h.clock);
  } else if (h.clock < clocks_.current()) {
    // The clock closed without this worker: drop the pushes that it had sent for the clock.
    verdict = {true, Outcome::late, discard_clock(worker)};
    if (backup_times_) backup_times_->tick(worker, now_s());
    clocks_.tick(worker, h.clock);
  } else if (h.clock > clocks_.current() || !clocks_.may_tick(worker)) {
    return {false, Outcome::none, 0};
  } else {
    // The clock may close. No operation has begun, unless one is done again: it began with all rows
    // removed.
    if (!limited_.empty()) remove_rows(0.0);
    if (backup_times_) backup_times_->tick(worker, now_s());
    // Before the close, and before the tick is committed: the tick may be the one that names it.
    if (finds_switch_ && switch_at_ == 0 && h.base_version != 0) learn_switch(h.base_version);
    if (evenness_ && switch_at_ == 0) evenness_->note(worker, h.count);
    clocks_.tick(worker, h.clock);
    if (clocks_.complete()) close_clock();
  }
  if (intervals_) {
    const double now = now_s();
    intervals_->tick(worker, h.clock, any_bsp_, now);
    intervals_->reach(clocks_.min_clock(), now);
  }
  publish_clock(worker);
  publish_clocks();
  return verdict;
}

// Drop the pushes of a clock that this worker did not complete. Without backup workers a worker
// ticks in its place in the order, so there are none unless it finishes in the middle of a clock.
std::uint64_t ServerCore::discard_clock(std::size_t worker) {
  std::uint64_t dropped = 0;
  if (clocks_.ticked(worker)) return 0;
  for (Table& t : tables_) {
    if (t.shard == nullptr || t.consistency.model != Model::bsp) continue;
    if (!clocks_.uses_backup()) {
      if (t.pending[worker] != 0) violation(worker, "its finish in the middle of a clock");
      continue;
    }
    t.shard->discard(worker);  // also the first segments of a push that was not complete in time
    t.stats.late += t.pending[worker];
    dropped += t.pending[worker];
    t.pending[worker] = 0;
  }
  return dropped;
}

void ServerCore::close_clock() {
  const std::vector<std::size_t> workers = clocks_.contributors();
  const std::vector<std::size_t> buffers =
      clocks_.uses_backup() ? workers : std::vector<std::size_t>{0};
  for (Table& t : tables_) {
    if (t.consistency.model != Model::bsp) continue;
    std::size_t n = workers.size();
    if (!t.members.all())
      n = std::count_if(workers.begin(), workers.end(), [&](auto w) { return t.members.has(w); });
    if (!t.early) apply_sum(&t, buffers, n);
    for (const std::size_t w : workers) {
      t.stats.applied += t.pending[w];
      t.stats.staleness[0] += t.pending[w];
      t.pending[w] = 0;
    }
    t.open_again();
  }
  clocks_.next_clock();
  if (backup_times_) backup_times_->close(workers, now_s());
  ++counters_.clocks;
  if (switch_at_ == 0) find_switch(workers);
  switch_if_due();
}

// Apply the sum of a table's pushes of the open clock, and publish the table's new version.
// `n_workers`: number of workers in the sum; 0: all members have finished, and there is no push.
void ServerCore::apply_sum(Table* t, const std::vector<std::size_t>& buffers,
                           std::size_t n_workers) {
  Weight weight;
  if (t->consistency.mean && n_workers != 0)
    weight.factors.gradient = 1.0F / static_cast<float>(n_workers);
  if (t->embedding != nullptr) t->embedding->set_next_version(t->version + 1);
  if (t->embedding != nullptr && t->embedding->has_limits()) {
    if (!journal_) t->embedding->remove_rows(0.0);
    t->embedding->set_clock(clocks_before_ + clocks_.current());
  }
  if (plateau_ && switch_at_ == 0) note_sum(*t);
  if (t->shard != nullptr && t->shard->apply_accumulated(buffers, weight, t->next_step())) {
    ++t->stats.updates;
    publish_updates(*t);
  }
  ++t->version;
  publish(&t->head->version, t->version);
}

void ServerCore::set_limits(std::uint16_t table, const LimitsConfig& config,
                            std::unique_ptr<SharedMemory> uses,
                            std::unique_ptr<SharedMemory> counts) {
  Table& t = tables_.at(table);
  t.embedding->set_limits(config, std::move(uses), std::move(counts), &t.stats);
  t.embedding->set_clock(clocks_before_);
  limited_.push_back(t.embedding);
}

// Remove rows that have left their tables, for about `max_s` seconds, 0: all. Return true if there
// are more. Rows move, so nothing is removed while an interrupted operation is done again.
bool ServerCore::remove_rows(double max_s) {
  if (journal_ && journal_->resuming()) return false;
  bool more = false;
  for (EmbeddingShard* shard : limited_) more = shard->remove_rows(max_s) || more;
  return more;
}

void ServerCore::settle_rows() {
  for (EmbeddingShard* shard : limited_) {
    shard->set_clock(clocks_before_ + clocks_.current());
    shard->settle();
  }
}

void ServerCore::publish_updates(const Table& table) noexcept {
  if (table.head != nullptr)
    publish(&table.head->updates, table.steps_before + table.stats.updates);
}

void ServerCore::publish_clocks() {
  for (Table& t : tables_) publish(&t.head->min_clock, clocks_.min_clock(t.members));
  publish(&reinterpret_cast<AwaitedLine*>(region_ + layout_.awaited())->worker, clocks_.awaited());
}

void ServerCore::publish_clock(std::size_t worker) {
  auto* lines = reinterpret_cast<ClockLine*>(region_ + layout_.clocks());
  const std::uint64_t clock = clocks_.finished(worker) ? finished_clock : clocks_.clock(worker);
  publish(&lines[worker].clock, clock);
}

}  // namespace mpips
