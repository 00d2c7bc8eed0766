#include <algorithm>

#include "server/embedding_rows.hpp"
#include "server/look_up_port.hpp"
#include "server/server_core.hpp"

// Look-ups by processes outside the job (look_up_port.hpp). They are answered between two visits of
// the rings, where no update is half applied and no row is moving, at most one a visit.
namespace mpips {

void EmbeddingShard::look_up(const std::int64_t* keys, std::size_t n, float* out, std::uint8_t* has,
                             std::vector<std::uint32_t>* rows) const {
  rows->resize(n);
  map_.find(keys, n, rows->data());
  const std::uint32_t* found = rows->data();
  for (std::size_t i = 0; i < n; ++i) {
    if (i + ahead_ < n && found[i + ahead_] != RowMap::npos)
      prefetch<0>(found[i + ahead_], value_lines_);
    const bool is_dead = has_uses() && found[i] != RowMap::npos && limits_->is_dead(found[i]);
    has[i] = found[i] != RowMap::npos && !is_dead ? 1 : 0;
    if (has[i] != 0)
      read(found[i], 0, dim_, out + i * dim_);
    else
      make_initial(keys[i], out + i * dim_);
  }
}

std::uint64_t ServerCore::run_clock() const noexcept {
  std::uint64_t clock = clocks_.min_clock();
  if (clock == finished_clock) {
    clock = 0;
    for (std::size_t w = 0; w < clocks_.size(); ++w) clock = std::max(clock, clocks_.clock(w));
  }
  return clocks_before_ + clock;
}

void ServerCore::set_look_ups(std::unique_ptr<LookUpPort> port) { look_ups_ = std::move(port); }

// Answer one request, if there is any; return true if there was.
bool ServerCore::answer_look_up() {
  return look_ups_->answer([this](std::uint32_t table, const std::int64_t* keys, std::size_t n,
                                  float* out, std::size_t out_bytes, std::uint8_t* has) {
    return look_up(table, keys, n, out, out_bytes, has);
  });
}

// Look rows up; without keys return the state of any table.
LookUpAnswer ServerCore::look_up(std::uint32_t table, const std::int64_t* keys, std::size_t n,
                                 float* out, std::size_t out_bytes, std::uint8_t* has) {
  if (table >= tables_.size()) return {LookUpStatus::refused, 0, 0};
  const Table& t = tables_[table];
  if (n != 0) {
    if (t.embedding == nullptr || n * t.embedding->dim() * sizeof(float) > out_bytes)
      return {LookUpStatus::refused, 0, 0};
    t.embedding->look_up(keys, n, out, has, &looked_up_);
  }
  return {LookUpStatus::answered, t.version, run_clock()};
}

}  // namespace mpips
