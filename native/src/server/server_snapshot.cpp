#include <algorithm>

#include "server/server_core.hpp"

// A consistent cut of all servers while training goes on.
//
// Each worker writes a cut record into its ring at every server, at the same place among its
// records: after the tick of one clock and before any push of the next (or, if it has nothing to
// say any more, its finish record). A server that comes to a cut record holds that ring: it
// consumes nothing behind the record. When the rings of all workers at work are held, the shards
// contain exactly what stands before the records. The caller copies them, calls `release_cut`, and
// the rings go on. Nothing else is needed for consistency between servers: each of them holds the
// same prefix of each worker's program, whenever it takes its copy, because the prefix ends at a
// record and not at a time.
//
// At that moment no push is half taken in. A worker writes all segments of a push before its tick;
// under BSP a clock is closed once all have ticked it (or, with backup workers, all that were
// waited for, and the tick of a late one drops what it had sent), so that sums of a clock are
// empty.
//
// Why it cannot deadlock. Under BSP and SSP all workers cut at one clock C. A record before C waits
// for ticks of clocks below C only, and these all stand before the cut records: no held ring has
// what it waits for. So all rings drain to their cut records, as if training ended there; workers
// that are ahead wait for room in their rings, as they would for a slow server. A worker writes its
// cut record server by server; one that waits for room at server B is not held there yet, so B
// takes its records. With backup workers nobody can close C while one worker has not come to it, so
// none skips past it. Under ASP nothing waits for anybody's tick, and workers cut at their next
// tick. What a worker waits for outside the rings is not known here: the caller gives a cut up, by
// `release_cut` without a copy, if it is not ready in time. A finished worker has no records left
// and is ready for any cut. Segments that wait in their slots are let go by any record that is not
// the next segment, so also by a cut record.
//
// Cut 0 belongs to no checkpoint: it says where the worker stands and is consumed at once.
namespace mpips {

ServerCore::Verdict ServerCore::handle_cut(std::size_t worker, const RecordHeader& h,
                                           const std::uint8_t* payload) {
  Ring& ring = rings_[worker];
  const bool held = ring.held_cut != 0 && ring.held_cut == h.offset;
  if (!held) {
    check_nothing_open(worker);
    ring.position_text.assign(reinterpret_cast<const char*>(payload), h.payload_bytes);
  }
  // What an earlier launch wanted to cut is wanted no more.
  const bool passes = h.offset <= released_cut_ || h.generation != generation_;
  ring.held_cut = passes ? 0 : h.offset;
  return {passes, passes ? Outcome::answered : Outcome::none, 0};
}

// Where all have finished there is nothing to cut.
bool ServerCore::cut_ready() const {
  bool any = false;
  for (std::size_t w = 0; w < rings_.size(); ++w) {
    if (clocks_.finished(w)) continue;
    if (expected_cut_ == 0 || rings_[w].held_cut != expected_cut_) return false;
    any = true;
  }
  return any;
}

bool ServerCore::holds_cut() const {
  return std::any_of(rings_.begin(), rings_.end(),
                     [](const Ring& ring) { return ring.held_cut != 0; });
}

// Cut records up to this one hold nothing from now on, also those that are yet to come.
void ServerCore::release_cut(std::uint64_t id) {
  released_cut_ = std::max(released_cut_, id);
  if (expected_cut_ <= released_cut_) expected_cut_ = 0;
}

}  // namespace mpips
