#include "server/server_core.hpp"

// The shard of a replicated table, from which checkpoints are written.
//
// Workers hold a replicated table and change it (reduction/reduction.hpp); the server's shard is
// only what jobs start from and what checkpoints contain. The workers that end clock C - 1 together
// write values, state and number of updates of the table as they are after that clock: before their
// cut records of a cut at clock C, and before they finish at clock C. Each writes a share, which
// all of them compute from the same numbers, so the shares cover the table.
//
// A cut at clock C has the version of clock C. A worker that ended clock C - 1 has either written
// its cut record, behind its share, or has finished at clock C, behind its share of the same
// version. Shares of later clocks are behind cut records, which hold their rings. Shares of earlier
// clocks, of workers that finished, are overwritten: other workers go on only when the finishing
// worker has published its end, which it does when servers have consumed its share.
//
// With a journal. A record of an earlier launch is consumed without effect, like a cut record of
// one: its worker repeats it, unless it has finished, and then the record was consumed before. A
// record that is being consumed at a kill stays in its ring and is consumed again, or dropped; so
// nothing is undone. The number of updates is a word of the journal.
namespace mpips {

ServerCore::Verdict ServerCore::handle_store(std::size_t worker, const RecordHeader& h,
                                             const std::uint8_t* payload) {
  const std::string what = "values of table " + std::to_string(h.table);
  if (h.table >= tables_.size() || tables_[h.table].shard == nullptr)
    violation(worker, what + ", of which this server has no part");
  check_nothing_open(worker);
  if (h.generation != generation_) return {true, Outcome::answered, 0};
  Table& t = tables_[h.table];
  const auto* values = reinterpret_cast<const float*>(payload);
  if (h.payload_bytes != h.count * sizeof(float) ||
      !t.shard->store(h.slot, h.offset, values, h.count))
    violation(worker, what + " that lie outside its shard");
  t.steps_before = h.base_version - t.stats.updates;
  publish_updates(t);
  return {true, Outcome::answered, 0};
}

}  // namespace mpips
