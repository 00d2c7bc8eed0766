#include <algorithm>

#include "server/server_core.hpp"

// A consistent cut of all servers while training goes on.
//
// Each worker writes a cut record into its ring at every server, at the same place among its
// records: after the tick of one clock and before any push of the next (or, if the worker has
// nothing more to send, in front of its finish record). A server that reaches a cut record holds
// that ring: it consumes nothing from the record on. When the rings of all workers that have not
// finished are held, the shards have exactly the effects of the records before the cut records. The
// caller copies the shards and calls `release_cut`, and the rings go on. No further agreement
// between servers is needed: each of them has the effects of the same prefix of each worker's
// program, whenever it makes its copy, because the prefix ends at a record and not at a time.
//
// At that moment no push is half consumed. A worker writes all segments of a push before its tick.
// Under BSP a clock is closed once all workers have ticked (or, with backup workers, all that were
// waited for; the tick of a late worker drops what it had sent), so all sums of a clock are empty.
//
// Why it cannot deadlock. Under BSP and SSP all workers cut at the same clock C. A record before C
// waits only for ticks of clocks below C, and these are all before the cut records: no held ring
// has what it waits for. So all rings drain up to their cut records, as if training ended there.
// Workers that are ahead wait for free slots, as they would for a slow server. A worker writes its
// cut record server by server. One that waits for a free slot at server B is not held there yet, so
// B consumes its records. With backup workers, clock C cannot be closed while one worker has not
// reached it, so no worker skips past C. Under ASP no record waits for a tick, and workers cut at
// their next tick. Waits of a worker outside the rings are not known here: the caller gives a cut
// up if it is not ready in time, by `release_cut` without a copy. A finished worker has no more
// records and is ready for any cut that is proposed later, at a clock that the others have not
// ended. One that was asked before agrees to no clock before its own (mpi/pending.py), also when it
// has finished meanwhile (snapshot/coordinator.py): its last records would wait in a ring for ticks
// behind the cut records, or, consumed under BSP, be in sums of a clock that is not closed.
// Deferred segments are copied and consumed when any other record than the next segment follows, so
// also when a cut record follows.
//
// Cut 0 belongs to no checkpoint: it only gives the worker's position and is consumed at once.
namespace mpips {

ServerCore::Verdict ServerCore::handle_cut(std::size_t worker, const RecordHeader& h,
                                           const std::uint8_t* payload) {
  Ring& ring = rings_[worker];
  const bool held = ring.held_cut != 0 && ring.held_cut == h.offset;
  if (!held) {
    check_nothing_open(worker);
    ring.position_text.assign(reinterpret_cast<const char*>(payload), h.payload_bytes);
  }
  // A cut record of an earlier launch does not hold its ring: that cut is no longer wanted.
  const bool passes = h.offset <= released_cut_ || h.generation != generation_;
  ring.held_cut = passes ? 0 : h.offset;
  return {passes, passes ? Outcome::answered : Outcome::none, 0};
}

// Return true if the cut can be copied; false if all workers have finished: there is nothing to
// cut.
bool ServerCore::cut_ready() {
  bool any = false;
  for (std::size_t w = 0; w < rings_.size(); ++w) {
    if (clocks_.finished(w)) continue;
    if (expected_cut_ == 0 || rings_[w].held_cut != expected_cut_) return false;
    any = true;
  }
  // A copy has no rows that have left their tables.
  if (any) settle_rows();
  return any;
}

bool ServerCore::holds_cut() const {
  return std::any_of(rings_.begin(), rings_.end(),
                     [](const Ring& ring) { return ring.held_cut != 0; });
}

// Let cut records up to this one hold no ring any more, including those that are still to come.
void ServerCore::release_cut(std::uint64_t id) {
  released_cut_ = std::max(released_cut_, id);
  if (expected_cut_ <= released_cut_) expected_cut_ = 0;
}

}  // namespace mpips
