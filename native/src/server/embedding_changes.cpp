#include <algorithm>
#include <cstring>
#include <random>

#include "server/embedding_shard.hpp"

// Lists of the rows that have changed, and of those that have left the table, since a version.
//
// A row has the version of the update that changed it last, in memory of the process: an update
// names it before its bytes are there, and a reader takes the table's version before it looks at
// the first row. So a row that changes while a reader reads is in this list or in the next one, or
// in both. The marks of each process have a random number, by which readers find out that those of
// their version are lost. A row that moves takes its mark along. A removed row is noted with a
// version that is not below the first one without it.
namespace mpips {
namespace {

constexpr std::uint64_t places_per_list = std::uint64_t{1} << 16;  // visited in one call
constexpr std::size_t least_removals = std::size_t{1} << 16;       // that are remembered

std::uint64_t random_number() {
  std::random_device device;
  const std::uint64_t high = device(), low = device();
  return (high << 32 | low) | 1;
}

}  // namespace

void EmbeddingShard::note_changes_from(std::uint64_t now) {
  if (marks_ != 0) return;
  // What has changed before is not known, or only as far as `find_changes` needs it.
  if (!notes_changes_) changed_.assign(map_.size(), now);
  changed_.resize(map_.size(), now);
  notes_changes_ = true;
  next_version_ = std::max(next_version_, now);
  known_ = now;
  marks_ = random_number();
}

std::size_t EmbeddingShard::list_changed(const ChangesPayload& what, std::size_t most,
                                         std::uint8_t* out, ChangesHead* head) const {
  const bool all = what.since == ChangesPayload::all_rows;
  const std::uint64_t n_rows = map_.size();
  const std::uint64_t from = std::min(what.at.first, n_rows);
  const std::uint64_t end = from + std::min(places_per_list, n_rows - from);
  std::size_t n = 0;
  std::uint64_t place = from;
  for (; place < end && n < most; ++place) {
    if (!all && place < changed_.size() && changed_[place] <= what.since) continue;
    std::memcpy(out, keys() + place, sizeof(std::int64_t));
    // An entry begins at a multiple of 4 bytes.
    auto* floats = reinterpret_cast<float*>(out + sizeof(std::int64_t));
    if (what.at.n_floats != 0) read(place, what.at.from, what.at.n_floats, floats);
    out += what.entry_bytes();
    ++n;
  }
  *head = {0, marks_, known_, place, n_rows};
  return n;
}

std::size_t EmbeddingShard::list_removed(const ChangesPayload& what, std::size_t most,
                                         std::uint8_t* out, ChangesHead* head) const {
  const std::uint64_t stop = first_removal_ + removals_.size();
  const std::uint64_t from = std::clamp(what.at.first, first_removal_, stop);
  const std::uint64_t end = from + std::min(places_per_list, stop - from);
  std::size_t n = 0;
  std::uint64_t number = from;
  for (; number < end && n < most; ++number) {
    const Removal& removal = removals_[number - first_removal_];
    std::uint32_t row = RowMap::npos;
    if (removal.version > what.since) map_.find(&removal.key, 1, &row);
    if (removal.version <= what.since || row != RowMap::npos) continue;
    std::memcpy(out, &removal.key, sizeof removal.key);
    out += sizeof removal.key;
    ++n;
  }
  *head = {0, marks_, known_, number, stop};
  return n;
}

void EmbeddingShard::note_removal(std::int64_t key) {
  if (marks_ == 0) return;
  removals_.push_back({next_version_, key});
  const std::size_t most = std::max(least_removals, map_.size());
  while (removals_.size() > most) {
    known_ = removals_.front().version;
    removals_.pop_front();
    ++first_removal_;
  }
}

}  // namespace mpips
