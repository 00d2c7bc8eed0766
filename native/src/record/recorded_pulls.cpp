#include "record/recorded_pulls.hpp"

#include <algorithm>
#include <cstring>

#include "shm/backoff.hpp"

namespace mpips {

std::uint64_t PullOfBlocks::updates_of(std::size_t block) const {
  std::size_t end = 0;
  for (const auto& [n, updates] : runs) {
    end += n;
    if (block < end) return updates;
  }
  return version;
}

std::uint64_t PullOfBlocks::highest() const noexcept {
  std::uint64_t found = runs.empty() ? version : 0;
  for (const auto& run : runs) found = std::max(found, run.second);
  return found;
}

std::vector<PullStep> read_pull_log(const std::vector<std::uint8_t>& bytes, std::size_t n_servers,
                                    std::size_t n_tables, std::uint64_t stop) {
  VarintReader reader(bytes.data(), bytes.size());
  std::vector<std::uint64_t> versions(n_servers * n_tables, 0), own(n_servers, 0);
  std::uint64_t clock = 0;
  std::vector<PullStep> steps;
  while (!reader.done() && clock < stop) {
    PullStep step;
    step.kind = static_cast<PullEntry>(reader.take_byte());
    if (step.kind == PullEntry::tick || step.kind == PullEntry::end) {
      step.clock = reader.take_difference(clock);
      clock = step.clock + 1;
      for (std::uint64_t& of_server : own) of_server += reader.take();
      step.own = own;
      steps.push_back(std::move(step));
      continue;
    }
    if (step.kind != PullEntry::whole && step.kind != PullEntry::mixed &&
        step.kind != PullEntry::rows)
      throw RecordDifference("a worker's file of the record has an entry of the unknown kind " +
                             std::to_string(static_cast<int>(step.kind)));
    PullOfBlocks& pull = step.pull;
    pull.table = reader.take_index(n_tables, "table");
    pull.server = reader.take_index(n_servers, "server");
    // Records of the worker, or the place of the pull's own.
    const std::uint64_t records = reader.take();
    std::uint64_t& before = versions[pull.server * n_tables + pull.table];
    before = pull.version = reader.take_difference(before);
    if (step.kind == PullEntry::rows) continue;
    pull.own = own[pull.server] += records;
    pull.clock = clock;
    for (std::uint64_t n = step.kind == PullEntry::mixed ? reader.take() : 0; n > 0; --n) {
      const std::uint64_t blocks = reader.take();
      pull.runs.emplace_back(blocks, reader.take_difference(pull.version));
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

PullGate::PullGate(PullWords words, std::size_t n_tables, std::size_t n_workers, std::size_t server,
                   double timeout_s)
    : words_(words), server_(server), timeout_s_(timeout_s), tables_(n_tables) {
  for (GatedTable& t : tables_) t.readers.resize(n_workers);
}

void PullGate::add_table(std::size_t table, const PairWord* versions, std::size_t n_blocks,
                         std::string name) {
  GatedTable& t = tables_.at(table);
  t.versions = versions;
  t.n_blocks = n_blocks;
  t.name = std::move(name);
  for (Reader& reader : t.readers) reader.by_block.assign(n_blocks, 0);
}

void PullGate::add_pulls(std::size_t worker, const std::vector<PullStep>& steps,
                         const std::vector<std::uint64_t>& cuts) {
  for (const PullStep& step : steps) {
    const bool is_pull = step.kind == PullEntry::whole || step.kind == PullEntry::mixed;
    if (!is_pull || step.pull.server != server_) continue;
    GatedTable& t = tables_.at(step.pull.table);
    std::size_t n = 0;
    for (const auto& run : step.pull.runs) n += run.first;
    if (t.versions == nullptr || (!step.pull.runs.empty() && n != t.n_blocks))
      throw RecordDifference("the record has a pull of worker " + std::to_string(worker) +
                             " from server " + std::to_string(server_) +
                             " that does not fit its shard");
    std::vector<PullOfBlocks>& pulls = t.readers.at(worker).pulls;
    pulls.push_back(step.pull);
    pulls.back().own = place_without_cuts(cuts, step.pull.own);
  }
}

void PullGate::require(std::size_t worker, std::uint64_t place, const std::string& record) {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    GatedTable& t = tables_[i];
    if (t.versions == nullptr) continue;
    Reader& reader = t.readers[worker];
    std::size_t& n = reader.required;
    while (n < reader.pulls.size() && reader.pulls[n].own <= place) ++n;
    const std::uint64_t read = load_acquire(words_.of(i, worker)) / t.n_blocks;
    if (read < n)
      throw RecordDifference(
          "worker " + std::to_string(worker) + " sends " + record +
          " without a pull before it that the recorded run has: that of table '" + t.name +
          "' from server " + std::to_string(server_) + " at clock " +
          std::to_string(reader.pulls[read].clock));
  }
}

bool PullGate::may_write(std::size_t table) {
  GatedTable& t = tables_[table];
  if (t.versions == nullptr) return true;
  const std::uint64_t updates = load_relaxed(&t.versions[0].value) >> 1;
  for (std::size_t w = 0; w < t.readers.size(); ++w) {
    Reader& reader = t.readers[w];
    while (reader.passed < reader.pulls.size() && reader.pulls[reader.passed].highest() <= updates)
      ++reader.passed;
    if (load_acquire(words_.of(table, w)) < reader.passed * t.n_blocks) return false;
  }
  return true;
}

void PullGate::wait(std::size_t table, std::size_t block) {
  GatedTable& t = tables_[table];
  if (t.versions == nullptr) return;
  const std::uint64_t updates = load_relaxed(&t.versions[block].value) >> 1;
  for (std::size_t w = 0; w < t.readers.size(); ++w) {
    Reader& reader = t.readers[w];
    std::size_t& n = reader.by_block[block];
    while (n < reader.pulls.size() && reader.pulls[n].updates_of(block) <= updates) ++n;
    if (n == 0) continue;
    const std::uint64_t needed = (n - 1) * t.n_blocks + block + 1;
    const double end = now_s() + timeout_s_;
    Backoff backoff(true, 200);
    while (load_acquire(words_.of(table, w)) < needed) {
      if (now_s() > end)
        throw RecordDifference("worker " + std::to_string(w) + " has not pulled table '" + t.name +
                               "' as in the recorded run: pull " + std::to_string(n) +
                               " of it from this server is missing (waited " +
                               std::to_string(static_cast<int>(timeout_s_)) + " s)");
      backoff.pause();
    }
  }
}

RecordedPulls::RecordedPulls(std::vector<PullStep> steps, std::size_t worker,
                             std::vector<std::string> names, std::vector<WorkerOrder> records,
                             bool ends_early)
    : steps_(std::move(steps)),
      worker_(worker),
      names_(std::move(names)),
      records_(std::move(records)),
      ends_early_(ends_early),
      read_(records_.size() * names_.size(), 0) {}

std::string RecordedPulls::described() const {
  if (next_ == steps_.size()) return "nothing more";
  const PullStep& step = steps_[next_];
  if (step.kind == PullEntry::tick) return "the end of clock " + std::to_string(step.clock);
  if (step.kind == PullEntry::end) return "its end at clock " + std::to_string(step.clock);
  return "a pull of table '" + names_[step.pull.table] + "' from server " +
         std::to_string(step.pull.server) + " at clock " + std::to_string(step.pull.clock);
}

void RecordedPulls::differ(const std::string& found) const {
  throw RecordDifference("worker " + std::to_string(worker_) + " has " + found +
                         " where the recorded run has " + described());
}

void RecordedPulls::require_written(
    std::size_t server, std::uint64_t own, std::uint64_t written,
    const std::function<std::vector<WrittenRecord>()>& recent) const {
  if (next_ == steps_.size()) return;
  const PullStep& step = steps_[next_];
  const bool is_pull = step.kind == PullEntry::whole || step.kind == PullEntry::mixed;
  if (is_pull && step.pull.server != server) return;
  const WorkerOrder& of = records_.at(server);
  const std::uint64_t expected =
      place_without_cuts(of.cuts, is_pull ? step.pull.own : step.own.at(server));
  if (own == expected) return;

  // Find the first record that differs, as far back as the ring has them.
  const std::vector<WrittenRecord> newest = recent();
  std::uint64_t place = written - std::min<std::uint64_t>(written, newest.size());
  const auto differs = [&](const WrittenRecord& r) {
    if (place == of.entries.size()) return true;
    const OrderEntry& e = of.entries[place];
    return r.kind != e.kind || r.clock != e.clock || (has_table(e.kind) && r.table != e.table);
  };
  const auto first = std::find_if(newest.begin(), newest.end(), [&](const WrittenRecord& r) {
    const bool found = differs(r);
    place += found ? 0 : 1;
    return found;
  });
  const std::string missing =
      place < of.entries.size() ? mpips::described(names_, of.entries[place].kind,
                                                   of.entries[place].table, of.entries[place].clock)
                                : "nothing more";
  const std::string who = "worker " + std::to_string(worker_);
  const std::string where = " to server " + std::to_string(server);
  if (first != newest.end())
    throw RecordDifference(who + " has sent " +
                           mpips::described(names_, first->kind, first->table, first->clock) +
                           where + " where the recorded run has " + missing);
  throw RecordDifference(who + " comes to " + described() + " without " + missing + where +
                         ", which the recorded run has before it");
}

bool RecordedPulls::read(std::size_t server, std::size_t table, std::uint64_t clock,
                         const PairWord* versions, const float* values, std::size_t n, float* out,
                         const PullWords& words, double max_s, bool oversubscribed) {
  const double end = now_s() + max_s;
  if (ends_early_ && next_ == steps_.size()) {
    Backoff backoff(true, 200);
    while (now_s() < end) backoff.pause();
    return false;
  }
  const std::string what = "a pull of table '" + names_.at(table) + "' from server " +
                           std::to_string(server) + " at clock " + std::to_string(clock);
  const PullStep* step = next_ < steps_.size() ? &steps_[next_] : nullptr;
  const bool is_pull =
      step != nullptr && (step->kind == PullEntry::whole || step->kind == PullEntry::mixed);
  if (!is_pull || step->pull.server != server || step->pull.table != table) differ(what);
  std::uint64_t& n_read = read_.at(server * names_.size() + table);
  for (; block_ < Layout::n_blocks(n); ++block_) {
    const std::uint64_t word = 2 * step->pull.updates_of(block_);
    Backoff backoff(oversubscribed, 200);
    std::uint64_t found = 0;
    while ((found = load_acquire(&versions[block_].value)) < word) {
      if (now_s() > end) return false;
      backoff.pause();
    }
    if (found != word)
      throw RecordDifference("worker " + std::to_string(worker_) + " at clock " +
                             std::to_string(clock) + ": table '" + names_[table] +
                             "' is beyond the version that the recorded pull has seen");
    const std::size_t from = block_ * block_floats, to = std::min(n, from + block_floats);
    std::memcpy(out + from, values + from, (to - from) * sizeof(float));
    store_release(words.of(table, worker_), ++n_read);
  }
  block_ = 0;
  version_ = step->pull.version;
  ++next_;
  return true;
}

void RecordedPulls::tick(std::uint64_t clock, bool is_end) {
  if (ends_early_ && next_ == steps_.size()) return;
  const PullEntry kind = is_end ? PullEntry::end : PullEntry::tick;
  const std::string what =
      (is_end ? "its end at clock " : "the end of clock ") + std::to_string(clock);
  if (next_ == steps_.size() || steps_[next_].kind != kind || steps_[next_].clock != clock)
    differ(what);
  ++next_;
}

}  // namespace mpips
