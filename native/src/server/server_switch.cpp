#include <stdexcept>

#include "server/server_core.hpp"

// The switch of a job's tables from BSP to ASP, at a clock S of the run (Sync-Switch, Li et al.,
// ICDCS 2021). All tables of the job have the same S.
//
// Server. It works as under BSP until it closes clock S - 1, and as under ASP from then on. A
// record of clock S or later stays in its ring until that close, as under BSP: pushes, pulls of
// rows and changes of hyperparameters of a later clock than the open one are not consumed. So no
// update of these clocks is applied before all sums of the clocks before S. Every server decides by
// its own number of closed clocks, so nothing has to be agreed on.
//
// Version. A table's version is its number of closed clocks before the switch; each push raises it
// by 1 after the switch. So it never falls, it is at least min(c, S) once a worker at clock c may
// pull, and the staleness of an update also counts over the switch.
//
// Worker. A pull at clock c waits for version min(c, S), and from clock S on also for this worker's
// own pushes, as under ASP. All of it depends on the worker's clock alone (DensePort::settled,
// mpips/worker/waits.py).
//
// Rate. Under BSP with the mean, one clock moves the values once by rate * mean; under ASP it moves
// them once for each of n workers. So the rate is divided by n from the switch on. A velocity
// (momentum) stays as it is: the rate is a factor of what enters it, so each gradient moves the
// values by rate * gradient / (1 - momentum) in sum, whether the switch comes before all of that
// has happened or not.
//
// Restart. In memory, the number of closed clocks is a word of the journal, which is committed
// together with the close. An interrupted close is undone and done again under BSP; after it,
// `attach` switches. From a checkpoint, `clocks_before` is the clock of the cut, which is the same
// for all workers. So in every launch the model at a clock of the run is the same.
//
// At a plateau, or with uneven workers. S is not given: server 0 finds it by its part of the tables
// (server/plateau.hpp), or by the own times of the workers, which their ticks name
// (server/evenness.hpp), while all others, and the workers, work under BSP. How all of them get S
// in time:
//
// Decision. When server 0 has closed clock m - 1, so that m is the lowest clock of all workers, it
// may decide on S = m + switch_lead. It stores S in the `decision` of the head of the first table,
// with release, before it publishes m as the lowest clock. There is one decision in a run.
//
// Workers. Before a worker ends clock c it must have read S if S <= c + 1. It reads the lowest
// clock of server 0, say m, and then the word. A decision that it misses is taken at m + 1 or
// later, so its S is m + 1 + switch_lead or later. So the worker waits for m >= c + 1 -
// switch_lead, which is two clocks before its own: a worker that has pulled from server 0 does not
// wait. Each of its ticks from there on names S.
//
// Other servers. A server closes clock S - 1 by a tick of it, at least one, and all ticks of this
// clock name S. So it has S when it closes clock S - 1, and works as under BSP until then.
//
// Restart. Each server has S in its own word, which it stores before the tick that named it, or the
// close after which it decided, is committed to the journal. A word without that commit is still
// the decision: workers may have read it, and server 0 does not decide again. A worker that
// continues at clock c had read all S <= c when it ended clock c - 1, so the word of server 0 has
// them. The ticks that it owes to servers are written after it has read that word again. From a
// checkpoint all servers begin with the S in it, if there is one. Without a decision a launch
// measures anew.
namespace mpips {

void ServerCore::switch_if_due() noexcept {
  if (switch_at_ == 0 || has_switched_ || clocks_before_ + clocks_.current() < switch_at_) return;
  for (Table& t : tables_)
    if (t.consistency.model == Model::bsp) t.consistency.model = Model::asp;
  any_bsp_ = false;
  has_switched_ = true;
}

// Measure the sum of a table that is about to be applied. Pushes for a rule in Python may be values
// instead of gradients (mpips/torch/buffers.py).
void ServerCore::note_sum(const Table& t) {
  if (t.shard == nullptr || t.is_scales || t.shard->rule().python) return;
  plateau_->note(static_cast<std::size_t>(&t - tables_.data()), clocks_before_ + clocks_.current(),
                 t.shard->open_sum());
}

// Decide on the switch, after these workers have closed a clock.
void ServerCore::find_switch(const std::vector<std::size_t>& workers) {
  const std::uint64_t open = clocks_before_ + clocks_.current();
  const bool is_plateau = plateau_ && plateau_->close(open - 1);
  const bool is_uneven = evenness_ && evenness_->close(workers, now_s());
  if (is_plateau || is_uneven) learn_switch(open + switch_lead);
}

void ServerCore::learn_switch(std::uint64_t at) noexcept {
  switch_at_ = at;
  for (Table& t : tables_)
    if (t.consistency.finds_switch) t.consistency.switch_at = at;
  publish(&tables_[0].head->decision, at);
}

void ServerCore::set_switch(std::uint64_t at) {
  if (!finds_switch_) throw std::logic_error("the tables have no switch that is decided on");
  learn_switch(at);
  switch_if_due();
}

// Take over the decision that is in this memory; publish that there is none in a new one.
void ServerCore::take_switch() noexcept {
  if (!finds_switch_) return;
  // A process that was killed between the stores of the word and of its complement has decided.
  const std::uint64_t at = load_acquire(&tables_[0].head->decision.value);
  if (at != 0)
    learn_switch(at);
  else
    publish(&tables_[0].head->decision, 0);
}

}  // namespace mpips
