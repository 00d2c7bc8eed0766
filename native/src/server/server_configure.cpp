#include <cstring>
#include <stdexcept>

#include "server/server_core.hpp"

// Changes of hyperparameters while training goes on.
//
// A worker writes a configure record: the kind of the table's rule and all its hyperparameters. It
// has no effect on values and state, only on later updates. Every worker writes the same change at
// the same clock, before its pushes of that clock, into its ring at every server that has a part of
// the table. So every server has the change before the pushes that it is for, whichever worker is
// first, and no agreement between servers is needed. Servers without a part of the table get no
// record.
//
// Order of changes. A change is named by its clock and by its ordinal among the worker's changes of
// this table in that clock. The change with the greatest name is in force, in whatever order the
// records arrive: several workers bring each change, and a slow worker, or one that repeats a clock
// after a warm restart, brings old ones again.
//
// When it takes effect.
// - BSP: a record of a later clock than the open one stays in its ring, like a push. One of the
//   open clock takes effect at once, and the close of this clock uses it. It need not wait for its
//   worker's place in the order, because sums do not depend on hyperparameters, and the close comes
//   after the ticks of all workers that it takes in, so after their changes. The open push of
//   another worker is not affected, and this worker has none. One of a closed clock comes from a
//   late worker (with backup workers) and changes nothing.
// - SSP and ASP: at once, unless a later change is in force.
//
// Workers that bring different values under one name would make the values depend on who comes
// last, so under BSP they are refused. A worker may bring other values than it did itself before a
// restart. Under SSP and ASP the last one counts.
//
// Why no other order is disturbed. A record that waits here waits for ticks of clocks below its
// own, which no record behind it can delay, so rings cannot deadlock. Deferred segments never
// belong to the same push as what follows this record, and are copied first, as before any other
// record. At a cut, the record stands before or after the cut record, and a copy of the shards
// contains no hyperparameters: a job that starts from a checkpoint begins with those declared for
// the table. A replica consumes the same records and keeps the greatest change as well. A configure
// record is held at the replica's gate like a push; only ticks are not, and a tick that is taken
// ahead of the gate stands behind a record that is consumed.
//
// Recovery. The record is one operation without units: its words are the hyperparameters, the name
// of the change and the worker's count of records, so after a kill either all of them are new or
// none is. An operation that was interrupted is finished with the hyperparameters that it began
// with, because they change only between operations.
namespace mpips {

OptimizerConfig ServerCore::parse_configure(std::size_t worker, const RecordHeader& h,
                                            const std::uint8_t* payload) const {
  const std::string what = "new hyperparameters of table " + std::to_string(h.table);
  if (h.table >= tables_.size() || tables_[h.table].shard == nullptr)
    violation(worker, what + ", of which this server has no part");
  check_member(worker, h);
  const Rule& rule = tables_[h.table].shard->rule();
  if (rule.python) violation(worker, what + ", whose rule is a Python function");
  ConfigWords words;
  if (h.payload_bytes != sizeof words)
    violation(worker, what + " in " + std::to_string(h.payload_bytes) + " bytes, expected " +
                          std::to_string(sizeof words));
  std::memcpy(words.data(), payload, sizeof words);
  try {
    const OptimizerConfig config = config_of(words, rule.optimizer.kind);
    if (config.initial_accumulator == rule.optimizer.initial_accumulator) return config;
  } catch (const std::invalid_argument& error) {
    violation(worker, what + ": " + error.what());
  }
  violation(worker, what + ": another initial_accumulator, with which state has begun");
}

ServerCore::Verdict ServerCore::handle_configure(std::size_t worker, const RecordHeader& h,
                                                 const std::uint8_t* payload) {
  const OptimizerConfig config = parse_configure(worker, h, payload);
  check_nothing_open(worker);
  Table& t = tables_[h.table];
  const std::uint64_t current = clocks_.current();
  if (t.consistency.model == Model::bsp && h.clock > current) return {false, Outcome::none, 0};
  if (t.consistency.model == Model::bsp && h.clock < current) {
    if (!clocks_.uses_backup()) violation(worker, "new hyperparameters for a clock that is closed");
    return {true, Outcome::late, current - h.clock};
  }
  const Change change{h.clock + 1, h.offset};
  if (change < t.change)
    return {true, Outcome::late, t.change.configured_at - change.configured_at};
  if (t.consistency.model == Model::bsp && !(t.change < change) && t.changed_by &&
      t.changed_by != worker && words_of(config) != words_of(t.shard->rule().optimizer))
    throw RuleMismatch(*t.changed_by, worker, t.name, h.clock);
  t.change = change;
  t.changed_by = worker;
  t.shard->set_optimizer(config);
  return {true, Outcome::answered, 0};
}

void ServerCore::put_rule(std::size_t table) {
  const Table& t = tables_[table];
  journal_->put(journal_->of_rule(table, Journal::configured_at), t.change.configured_at);
  journal_->put(journal_->of_rule(table, Journal::ordinal), t.change.ordinal);
  if (t.change.configured_at == 0) return;
  const ConfigWords words = words_of(t.shard->rule().optimizer);
  for (std::size_t i = 0; i < words.size(); ++i)
    journal_->put(journal_->of_rule(table, Journal::config) + i, words[i]);
}

void ServerCore::take_rule(std::size_t table) {
  Table& t = tables_[table];
  t.change = {journal_->word(journal_->of_rule(table, Journal::configured_at)),
              journal_->word(journal_->of_rule(table, Journal::ordinal))};
  if (t.change.configured_at == 0) return;
  ConfigWords words;
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = journal_->word(journal_->of_rule(table, Journal::config) + i);
  try {
    t.shard->set_optimizer(config_of(words, t.shard->rule().optimizer.kind));
  } catch (const std::invalid_argument& error) {
    throw RecoveryError("the journal has hyperparameters that do not fit a table's rule: " +
                        std::string(error.what()));
  }
}

}  // namespace mpips
