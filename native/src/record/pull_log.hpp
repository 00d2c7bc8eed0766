#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "record/varint.hpp"

// What one worker's pulls have seen, and its clocks, as they are recorded. One thread, the
// worker's, writes and takes the bytes.
//
// A pull of a dense table reads the blocks of a shard one after the other, and the server may apply
// updates meanwhile. So an entry has the number of updates of every block. They are mostly equal:
// then the entry has one number, else runs of equal ones.
namespace mpips {

enum class PullEntry : std::uint8_t { whole = 1, mixed = 2, tick = 3, rows = 4, end = 5 };

class PullLog {
 public:
  PullLog(std::size_t n_servers, std::size_t n_tables)
      : n_tables_(n_tables),
        own_(n_servers, 0),
        row_pulls_(n_servers, 0),
        versions_(n_servers * n_tables, 0) {}

  // Return room for the updates of the blocks of a part, for `add_part`.
  std::uint64_t* seen(std::size_t n_blocks) {
    seen_.resize(n_blocks);
    return seen_.data();
  }
  // Note a part of a pull: `version` of the table's head before it, and the blocks in `seen`.
  // `own`: records that the worker has written to the server. It counts from `keep` on.
  void add_part(std::size_t server, std::size_t table, std::uint64_t own, std::uint64_t version) {
    if (n_parts_ == parts_.size()) parts_.emplace_back();
    Part& part = parts_[n_parts_++];
    part.server = server;
    part.table = table;
    part.own = own;
    part.version = version;
    part.runs.clear();
    for (const std::uint64_t updates : seen_) {
      if (part.runs.empty() || part.runs.back().second != updates)
        part.runs.emplace_back(0, updates);
      ++part.runs.back().first;
    }
  }
  // The pull of which parts were noted has ended, or begins anew.
  void keep() {
    for (std::size_t i = 0; i < n_parts_; ++i) write(parts_[i]);
    n_parts_ = 0;
  }
  void drop() noexcept { n_parts_ = 0; }

  // Note the first reply of a pull of rows.
  void add_rows(std::size_t server, std::size_t table, std::uint64_t sequence,
                std::uint64_t version) {
    bytes_.push_back(static_cast<std::uint8_t>(PullEntry::rows));
    put_varint(&bytes_, table);
    put_varint(&bytes_, server);
    put_difference(&bytes_, sequence, row_pulls_[server]);
    put_difference(&bytes_, version, versions_[server * n_tables_ + table]);
    row_pulls_[server] = sequence;
    versions_[server * n_tables_ + table] = version;
  }
  // Note the end of a clock, or of the worker. `own`: records written to each server, without the
  // record of this tick.
  void add_tick(std::uint64_t clock, const std::vector<std::uint64_t>& own, bool is_end) {
    bytes_.push_back(static_cast<std::uint8_t>(is_end ? PullEntry::end : PullEntry::tick));
    put_difference(&bytes_, clock, clock_);
    clock_ = clock + 1;
    for (std::size_t server = 0; server < own_.size(); ++server) pass(server, own.at(server));
  }

  std::size_t size() const noexcept { return bytes_.size(); }
  std::vector<std::uint8_t> take() {
    std::vector<std::uint8_t> taken;
    taken.reserve(bytes_.capacity());
    taken.swap(bytes_);
    return taken;
  }

 private:
  struct Part {
    std::size_t server = 0, table = 0;
    std::uint64_t own = 0, version = 0;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> runs = {};  // blocks, their updates
  };

  void write(const Part& part) {
    const bool whole = part.runs.size() == 1 && part.runs[0].second == part.version;
    bytes_.push_back(static_cast<std::uint8_t>(whole ? PullEntry::whole : PullEntry::mixed));
    put_varint(&bytes_, part.table);
    put_varint(&bytes_, part.server);
    pass(part.server, part.own);
    std::uint64_t& before = versions_[part.server * n_tables_ + part.table];
    put_difference(&bytes_, part.version, before);
    before = part.version;
    if (whole) return;
    put_varint(&bytes_, part.runs.size());
    for (const auto& [n, updates] : part.runs) {
      put_varint(&bytes_, n);
      put_difference(&bytes_, updates, part.version);
    }
  }
  void pass(std::size_t server, std::uint64_t own) {
    put_varint(&bytes_, own - own_[server]);
    own_[server] = own;
  }

  std::size_t n_tables_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint64_t> own_, row_pulls_, versions_, seen_;
  std::vector<Part> parts_;
  std::size_t n_parts_ = 0;
  std::uint64_t clock_ = 0;
};

}  // namespace mpips
