#include <algorithm>
#include <stdexcept>
#include <string>

#include "server/server_core.hpp"

// The number of backup workers of BSP(backup="auto").
//
// Each server decides for itself. Nothing has to be agreed on: with backup workers each server
// closes a clock by the ticks that it has, so which workers are in a sum differs between servers
// anyway, and a worker goes on to the clock that all servers have opened, whatever their numbers
// are. A cut needs no agreement either: all rings are held at one clock, which no server can close
// then.
//
// A decision is one word, the `decision` of the head of the first table. It is taken between two
// records and names the clock behind the open one, from which it is in force. The next decision is
// taken when that clock is open. So the number of the open clock is computed from the word and the
// number of closed clocks alone, and does not change while the clock is open.
//
// Restart. The number of closed clocks is in the journal, committed together with the close, and
// the word was written before the close began. So a server that finishes an interrupted close has
// the number with which it was begun. From a checkpoint, a launch begins with the number that was
// decided on last.
namespace mpips {

void ServerCore::decide_backups(std::uint16_t table, std::uint64_t most, std::uint64_t backup) {
  if (most > NumberDecision::most_number || backup > most)
    throw std::invalid_argument("backup = " + std::to_string(backup) + " of at most " +
                                std::to_string(most) + ": at most 255 are accepted");
  begin_backups(table, most, {0, backup, backup});
}

void ServerCore::begin_backups(std::uint16_t table, std::uint64_t most,
                               const NumberDecision& decision) {
  backup_table_ = table;
  most_backup_ = most;
  backup_times_ = std::make_unique<BackupTimes>(rings_.size());
  for (std::size_t w = 0; w < rings_.size(); ++w)
    if (clocks_.finished(w)) backup_times_->finish(w);
  publish_backup(decision);
}

std::uint64_t ServerCore::resume_backups(std::uint16_t table, std::uint64_t most) {
  // A process that was killed between the stores of the word and of its complement has written it.
  const NumberDecision found =
      NumberDecision::of_word(load_acquire(&tables_.at(table).head->decision.value));
  if (found.number > most || found.before > most)
    throw RecoveryError("the memory has " + std::to_string(std::max(found.number, found.before)) +
                        " backup workers, of at most " + std::to_string(most));
  begin_backups(table, most, found);
  return found.number;
}

std::uint64_t ServerCore::set_backup(std::uint64_t backup) {
  if (!backup_times_ || backup > most_backup_)
    throw std::invalid_argument("backup = " + std::to_string(backup) + ": at most " +
                                std::to_string(backup_times_ ? most_backup_ : 0) + " is accepted");
  const NumberDecision& before = clocks_.backup();
  const std::uint64_t current = clocks_.current();
  if (current < before.from || current >= NumberDecision::most_clock) return 0;
  publish_backup({current + 1, backup, before.number});
  return current + 1;
}

void ServerCore::publish_backup(const NumberDecision& decision) {
  clocks_.set_backup(decision);
  publish(&tables_[backup_table_].head->decision, decision.word());
}

}  // namespace mpips
