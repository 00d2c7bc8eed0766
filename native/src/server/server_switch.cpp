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
namespace mpips {

void ServerCore::switch_if_due() noexcept {
  if (switch_at_ == 0 || has_switched_ || clocks_before_ + clocks_.current() < switch_at_) return;
  for (Table& t : tables_)
    if (t.consistency.model == Model::bsp) t.consistency.model = Model::asp;
  any_bsp_ = false;
  has_switched_ = true;
}

}  // namespace mpips
