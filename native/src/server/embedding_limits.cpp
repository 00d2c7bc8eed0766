#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "keys/mix.hpp"
#include "server/embedding_rows.hpp"
#include "server/shard_faults.hpp"
#include "shm/backoff.hpp"

// Admission and eviction of rows (see row_limits.hpp), and how they are made atomic.
//
// Applying. The sum of a clock is applied in four steps: keys are admitted, rows are made, the use
// of each row is noted, the optimizer's kernel changes the rows. With a journal all of them belong
// to the operation of the tick that closes the clock. The operation counts as begun before the
// first step, so a kill at any later instruction is followed by the same steps. Each of the first
// three may be done any number of times: a cell of the sketch and the use of a row change once in a
// clock, and a row that is made or reset before its use is noted is made or reset to the same
// bytes. The kernel's changes are those that journal.hpp describes.
//
// Eviction has two parts. Which rows have left the table is decided by the clock alone: an idle row
// counts as absent from the first clock on at which it is too old (pulls return its initial value,
// a push resets it), and an overfull set counts as reduced from the close of the clock on. Removing
// the rows comes later, between records and between operations of the journal, for a short time
// after each record and whenever there are none. What is not removed when the next clock closes is
// removed then, before that clock's rows are made; a pull first reduces the sets of its own keys,
// and a cut or a listing of all rows removes everything. So no result shows when a row was removed.
//
// Removing. The last row moves to the place of the removed one, so rows always lie without gaps.
// With a journal, the word `moving` names both places; then the row, its key and its use are
// copied; then the number of rows is reduced, and `moving` is cleared. After a kill the copy is
// repeated while `moving` is set: its source is still behind the new end. The removed row itself is
// of no use: it has left the table before.
namespace mpips {
namespace {

constexpr std::size_t rows_per_look = 64;  // rows visited between two reads of the time
constexpr std::size_t sets_per_look = 8;   // sets reduced between two reads of the time
constexpr std::size_t uses_ahead = 32;     // rows whose use is prefetched
constexpr std::size_t few_leaving = 8;     // rows of a set up to which a heap finds them fastest
// Idle rows that are visited for each row that is made: the share of removable rows in memory is
// then at most about the inverse. Some more are visited at each tick, so that a table to which
// nothing is added becomes empty as well: at least so many, and this share of the table.
constexpr std::size_t visits_per_row = 16, visits_per_tick = 256, share_per_tick = 1024;
// Unused memory that a table retains. A server expects at least its first memory when it takes over
// that of an earlier process (mpips/transport/region.py), and that is no more than this.
constexpr std::size_t spare_bytes = std::size_t{1} << 20;

}  // namespace

void EmbeddingShard::set_limits(const LimitsConfig& config, std::unique_ptr<SharedMemory> uses,
                                std::unique_ptr<SharedMemory> counts, TableStats* stats) {
  use_memory_ = std::move(uses);
  count_memory_ = std::move(counts);
  stats_ = stats;
  limits_ = std::make_unique<RowLimits>(config, use_memory_.get(), count_memory_.get());
}

void EmbeddingShard::apply_limited(const Update& update, const Weight& weight, std::uint64_t step) {
  if (Journal* journal = durable_.journal; journal != nullptr) {
    const std::uint64_t part = journal->enter_part();
    if (!journal->past(part)) {
      journal->begin();
      journal->done(part);
    }
  }
  const std::size_t before = map_.size();
  const Update taken = admitted(update);
  if (limits_->admits_all())
    find_rows(taken.keys, taken.count);
  else
    make_admitted(taken);
  note_pushed(taken, before);
  if (rule_.python && taken.count != 0)
    apply_python(taken, weight, step);
  else if (!limits_->runs().empty())
    apply_runs(update, taken, weight, step);
  else
    apply_rows(rows_.data(), taken, weight, step);
  if (notes_changes_) note_changes(taken);
}

// Return the part of an update whose keys have rows or get them. If only few keys are refused and
// there is no journal, its values are those of the whole update, and `runs` has its parts there.
// With admission `rows_` has the row of each key of the part, or npos.
Update EmbeddingShard::admitted(const Update& update) {
  limits_->runs().clear();
  if (limits_->admits_all()) return update;
  constexpr std::size_t n_ahead = 16, least_run = 64;
  rows_.resize(update.count);
  map_.find(update.keys, update.count, rows_.data());
  admitted_keys_.clear();
  std::vector<RowLimits::Run>& runs = limits_->runs();
  bool follows = false;  // the key before is admitted
  for (std::size_t i = 0; i < update.count; ++i) {
    if (i + n_ahead < update.count && rows_[i + n_ahead] == RowMap::npos)
      limits_->prefetch(update.keys[i + n_ahead]);
    const bool is_there = rows_[i] != RowMap::npos && !limits_->is_dead(rows_[i]);
    if (!is_there && !limits_->admit(update.keys[i])) {
      ++stats_->rows_refused;
      follows = false;
      continue;
    }
    rows_[admitted_keys_.size()] = rows_[i];
    admitted_keys_.push_back(update.keys[i]);
    if (follows)
      ++runs.back().n;
    else
      runs.push_back({i, 1});
    follows = true;
  }
  Update taken = update;
  taken.count = admitted_keys_.size();
  taken.keys = admitted_keys_.data();
  rows_.resize(taken.count);
  if (taken.count == update.count) {
    runs.clear();
  } else if (durable_.journal != nullptr || rule_.python ||
             update.count < least_run * runs.size()) {
    admitted_values_.resize(taken.count * dim_);
    float* out = admitted_values_.data();
    for (const RowLimits::Run& run : runs)
      out = std::copy_n(update.values + run.from * dim_, run.n * dim_, out);
    taken.values = admitted_values_.data();
    runs.clear();
  }
  return taken;
}

// Make the rows of the keys that have npos in `rows_`.
void EmbeddingShard::make_admitted(const Update& taken) {
  std::vector<std::int64_t> new_keys;
  for (std::size_t i = 0; i < taken.count; ++i)
    if (rows_[i] == RowMap::npos) new_keys.push_back(taken.keys[i]);
  if (new_keys.empty()) return;
  std::vector<std::uint32_t> made(new_keys.size());
  take_memory(new_keys.size());
  find_or_make(new_keys.data(), new_keys.size(), made.data());
  auto next = made.begin();
  for (std::uint32_t& r : rows_)
    if (r == RowMap::npos) r = *next++;
}

// Apply an admitted part whose values are still those of the whole update.
void EmbeddingShard::apply_runs(const Update& update, const Update& taken, const Weight& weight,
                                std::uint64_t step) {
  std::size_t done = 0;
  for (const RowLimits::Run& run : limits_->runs()) {
    Update part = update;
    part.count = run.n;
    part.keys = taken.keys + done;
    part.values = update.values + run.from * dim_;
    apply_rows(rows_.data() + done, part, weight, step);
    done += run.n;
  }
}

// Note the use of the rows of an update, which are in `rows_`; the rows from `n_before` on are new.
void EmbeddingShard::note_pushed(const Update& update, std::size_t n_before) {
  RowLimits& limits = *limits_;
  limits.applied_at = limits.now;
  stats_->rows_made += map_.size() - n_before;
  if (!limits.evicts()) return;
  for (std::size_t i = 0; i < update.count; ++i) {
    if (i + uses_ahead < update.count) limits.prefetch_use(rows_[i + uses_ahead]);
    const std::uint32_t r = rows_[i];
    if (r >= n_before) {
      stats_->rows_returned += limits.comes_back(update.keys[i]);
      continue;
    }
    const RowUse use = limits.use(r);
    if (limits.is_dead(use, limits.now)) {
      reset_row(r, update.keys[i]);
      fault::at(fault::Point::rows_made);
      limits.set_use(r, {as_use_clock(limits.now), 1});
      ++stats_->rows_evicted;
      ++stats_->rows_returned;
      ++stats_->rows_made;
    } else {
      limits.touch(r, use);
    }
  }
  if (limits.has_sets()) add_to_sets(n_before);
  if (limits.has_idle())
    limits.to_visit =
        std::min(map_.size(), limits.to_visit + visits_per_row * (map_.size() - n_before));
}

// Add the rows from `n_before` on to their sets.
void EmbeddingShard::add_to_sets(std::size_t n_before) {
  constexpr std::size_t n_ahead = 8;
  RowSets& sets = limits_->sets();
  const std::int64_t* stored = keys();
  for (std::size_t r = n_before; r < map_.size(); ++r) {
    if (r + n_ahead < map_.size()) sets.prefetch_place(sets.set_of(stored[r + n_ahead]));
    sets.add(sets.set_of(stored[r]), static_cast<std::uint32_t>(r));
  }
}

void EmbeddingShard::pull_limited(const std::int64_t* keys, std::size_t n, float* out) {
  make_room_in(keys, n);
  rows_.resize(n);
  map_.find(keys, n, rows_.data());
  for (std::size_t i = 0; i < std::min(ahead_, n); ++i)
    if (rows_[i] != RowMap::npos) prefetch<0>(rows_[i], value_lines_);
  for (std::size_t i = 0; i < n; ++i) {
    if (i + ahead_ < n && rows_[i + ahead_] != RowMap::npos)
      prefetch<0>(rows_[i + ahead_], value_lines_);
    if (limits_->has_idle() && i + ahead_ < n && rows_[i + ahead_] != RowMap::npos)
      limits_->prefetch_use(rows_[i + ahead_]);
    if (rows_[i] == RowMap::npos || limits_->is_dead(rows_[i]))
      make_initial(keys[i], out + i * dim_);
    else
      read(rows_[i], 0, dim_, out + i * dim_);
  }
}

// Reduce the overfull sets that these keys belong to.
void EmbeddingShard::make_room_in(const std::int64_t* keys, std::size_t n) {
  if (!limits_->has_sets() || limits_->sets().overfull() == 0) return;
  RowSets& sets = limits_->sets();
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t set = sets.set_of(keys[i]);
    if (sets.waits(set)) choose_leaving(set);
    if (!limits_->leaving().empty()) remove_leaving();
  }
}

// Return true if the value of a row, or of a key without one (npos), may have changed after version
// `since`. Versions and clocks of the run advance together: `limits_->now` belongs to `now`.
bool EmbeddingShard::is_changed(std::uint32_t r, std::uint64_t since,
                                std::uint64_t now) const noexcept {
  if (r == RowMap::npos) return limits_->removed_at > since;
  if (limits_->is_dead(r)) {
    const std::uint64_t dead_for =
        limits_->now - (limits_->use(r).last + limits_->config().idle + 1);
    return dead_for < now - std::min(since, now);
  }
  return changed_[r] > since;
}

// Add the keys of the rows of a set that were used least to `leaving`, so many that the rest is as
// large as the set may be.
void EmbeddingShard::choose_leaving(std::size_t set) {
  using Candidate = RowLimits::Candidate;
  RowSets& sets = limits_->sets();
  const std::vector<std::uint32_t>& members = sets.members(set);
  if (members.size() <= sets.most()) return;
  const bool by_count = limits_->config().eviction == Eviction::frequent;
  const std::uint32_t clock = as_use_clock(limits_->applied_at);
  std::vector<Candidate>& candidates = limits_->candidates();
  candidates.resize(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    // A frequent row stays before one of the clock at hand only if the rows of that clock are too
    // many for the set by themselves.
    const RowUse use = limits_->use(members[i]);
    const std::uint64_t is_new = use.last == clock ? 1 : 0;
    candidates[i] = {by_count ? is_new << 32 | use.count : 0, use.last, members[i]};
  }
  const auto is_used_less = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.last < b.last;
  };
  const std::size_t n_leaving = members.size() - sets.most();
  const auto first = candidates.begin(), end = candidates.end();
  const auto middle = first + static_cast<std::ptrdiff_t>(n_leaving);
  if (n_leaving <= few_leaving)
    std::partial_sort(first, middle, end, is_used_less);
  else
    std::nth_element(first, middle - 1, end, is_used_less);
  // Several rows may be used as little as the last one of these. The ones whose keys have the
  // lowest hashes leave. Different keys have different hashes.
  const std::int64_t* stored = keys();
  const Candidate bound = *(middle - 1);
  const auto equal =
      std::partition(first, end, [&](const Candidate& c) { return is_used_less(c, bound); });
  const auto behind =
      std::partition(equal, end, [&](const Candidate& c) { return !is_used_less(bound, c); });
  if (behind > middle) {
    for (auto c = equal; c != behind; ++c)
      c->rank = mix_splitmix(static_cast<std::uint64_t>(stored[c->row]));
    std::nth_element(equal, middle, behind,
                     [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; });
  }
  for (std::size_t i = 0; i < n_leaving; ++i) {
    prefetch<1>(candidates[i].row, row_lines_);
    limits_->leaving().push_back(stored[candidates[i].row]);
    map_.prefetch(limits_->leaving().back());
  }
}

void EmbeddingShard::remove_leaving() {
  for (const std::int64_t key : limits_->leaving()) remove_row(key);
  limits_->leaving().clear();
}

void EmbeddingShard::remove_row(std::int64_t key) {
  auto* stored = reinterpret_cast<std::int64_t*>(key_memory_.data());
  Journal* journal = durable_.journal;
  const std::size_t last = map_.size() - 1;
  // The last rows are those that move at the next calls.
  if (last >= 2) {
    map_.prefetch(stored[last - 1]);
    if (limits_->has_sets()) {
      limits_->sets().prefetch_members(limits_->sets().set_of(stored[last - 1]));
      limits_->sets().prefetch_place(limits_->sets().set_of(stored[last - 2]));
    }
  }
  const std::size_t r = map_.erase(key);
  if (journal != nullptr && r != last)
    journal->set(journal->of_table(durable_.table, Journal::moving), last << 32 | (r + 1));
  fault::at(fault::Point::row_moving);
  if (limits_->has_sets())
    limits_->sets().remove(limits_->sets().set_of(key), static_cast<std::uint32_t>(r));
  if (r != last) {
    stored[r] = stored[last];
    fault::at(fault::Point::row_moving);
    std::copy_n(row(last), stride_, row(r));
    limits_->move_use(last, r);
    map_.set_row(stored[r], static_cast<std::uint32_t>(r));
    if (limits_->has_sets())
      limits_->sets().rename(limits_->sets().set_of(stored[r]), static_cast<std::uint32_t>(last),
                             static_cast<std::uint32_t>(r));
  }
  if (changed_.size() > last) {
    changed_[r] = changed_[last];
    changed_.resize(last);
  }
  if (journal != nullptr) {
    journal->set(journal->of_table(durable_.table, Journal::n_rows), last);
    fault::at(fault::Point::row_moved);
    journal->set(journal->of_table(durable_.table, Journal::moving), 0);
  }
  limits_->note_removed(key);
  note_removal(key);
  limits_->removed_at = next_version_;
  ++stats_->rows_evicted;
}

bool EmbeddingShard::remove_rows(double max_s) {
  if (!has_uses()) return false;
  RowLimits& limits = *limits_;
  const double end = max_s > 0.0 ? now_s() + max_s : 0.0;
  if (end == 0.0 && limits.has_idle())
    limits.to_visit += std::max(visits_per_tick, map_.size() / share_per_tick);
  while (limits.has_sets() && limits.sets().overfull() != 0) {
    for (std::size_t i = 0; i < sets_per_look && limits.sets().overfull() != 0; ++i) {
      const std::size_t set = limits.sets().next_overfull();
      limits.sets().prefetch_overfull();
      if (limits.sets().overfull() != 0)
        for (const std::uint32_t r : limits.sets().members(limits.sets().coming_overfull()))
          limits.prefetch_use(r);
      choose_leaving(set);
    }
    remove_leaving();
    if (end != 0.0 && now_s() >= end) return limits.sets().overfull() != 0;
  }
  for (std::size_t i = 1; limits.to_visit != 0; ++i) {
    --limits.to_visit;
    if (limits.cursor >= map_.size()) limits.cursor = 0;
    if (map_.size() == 0) limits.to_visit = 0;
    if (map_.size() != 0 && limits.is_dead(limits.cursor))
      remove_row(keys()[limits.cursor]);
    else
      ++limits.cursor;
    if (end != 0.0 && i % rows_per_look == 0 && now_s() >= end) break;
  }
  if (limits.to_visit == 0) give_back();
  return limits.to_visit != 0;
}

void EmbeddingShard::settle() {
  if (!has_uses()) return;
  if (limits_->has_idle()) {
    limits_->cursor = 0;
    limits_->to_visit = map_.size();
  }
  remove_rows(0.0);
}

// Give memory back if the rows need less than half of it.
void EmbeddingShard::give_back() {
  const std::size_t n = map_.size() + map_.size() / 4;
  const std::size_t needed = n * stride_ * sizeof(float);
  if (row_memory_.size() < 2 * needed + spare_bytes) return;
  row_memory_.shrink(std::max(needed, spare_bytes));
  key_memory_.shrink(std::max(n * sizeof(std::int64_t), spare_bytes));
  limits_->shrink_uses(std::max(n, spare_bytes / sizeof(RowUse)));
  map_.shrink();
}

// Complete the move of a row that an earlier process had begun.
void EmbeddingShard::finish_move() {
  Journal& journal = *durable_.journal;
  const std::size_t word = journal.of_table(durable_.table, Journal::moving);
  const std::uint64_t moving = journal.word(word);
  if (moving == 0 || !has_uses()) return;
  const std::size_t from = moving >> 32, to = (moving & 0xffffffffU) - 1;
  if ((from + 1) * stride_ * sizeof(float) > row_memory_.size() || to >= from)
    throw RecoveryError("the journal names a row that is not there: " + std::to_string(from));
  auto* stored = reinterpret_cast<std::int64_t*>(key_memory_.data());
  stored[to] = stored[from];
  std::copy_n(row(from), stride_, row(to));
  limits_->move_use(from, to);
  fault::at(fault::Point::recovering);
  journal.set(journal.of_table(durable_.table, Journal::n_rows), from);
  fault::at(fault::Point::recovering);
  journal.set(word, 0);
}

// Find the sets of the rows of an earlier process. Only the newest clock has made sets overfull.
void EmbeddingShard::take_over_limits() {
  if (!has_uses()) return;
  limits_->to_visit = limits_->has_idle() ? map_.size() : 0;
  note_loaded(0);
}

// Add the rows from `n_before` on, which `load` or `set` has made, to their sets.
void EmbeddingShard::note_loaded(std::size_t n_before) {
  limits_->applied_at = limits_->now - std::min<std::uint64_t>(limits_->now, 1);
  if (limits_->has_sets()) add_to_sets(n_before);
}

void EmbeddingShard::set_uses(const std::int64_t* keys, std::size_t n, const std::uint32_t* last,
                              const std::uint32_t* count) {
  rows_.resize(n);
  map_.find(keys, n, rows_.data());
  for (std::size_t i = 0; i < n; ++i)
    if (rows_[i] != RowMap::npos) limits_->set_use(rows_[i], {last[i], std::max(count[i], 1U)});
}

}  // namespace mpips
