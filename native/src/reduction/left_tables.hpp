#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reduction/reduction.hpp"

// The replicated tables in durable memory that an earlier launch has left on a node. They are read
// only: the next launch makes new memory from them. mpips/recovery/node_tables.py has the protocol
// and the reasons why the memory contains what is read here.
namespace mpips {

// The place of a worker, from its records at all servers.
struct LeftWorker {
  std::uint64_t clock = 0;  // least clock at any server, where the worker continues
  std::uint64_t ahead = 0;  // greatest clock at any server
  bool finished = false;    // at all servers
};

class LeftTables {
 public:
  LeftTables(const std::uint8_t* memory, NodeLayout layout, std::vector<ReplicatedRule> rules,
             std::vector<LeftWorker> workers, std::uint64_t base);

  // Return why the tables after `base` clocks, and the contributions to clock `base` of workers
  // that have ended it at a server, are not all here; "": they are.
  std::string lacks() const;
  // Write words and version 0 of the new memory, which has the same layout and is zero. `lacks`
  // must return "". Words of the node's own workers follow (`set_local`).
  void write(std::uint8_t* to);
  // Return offset and length in bytes of the contributions that the new memory takes over, in both.
  std::vector<std::pair<std::size_t, std::size_t>> contributions() const;

 private:
  template <class Line>
  const Line* at(std::size_t offset) const noexcept {
    return reinterpret_cast<const Line*>(memory_ + offset);
  }
  const ContributionLine* line(std::size_t w, std::size_t t) const noexcept {
    return at<ContributionLine>(layout_.table_words(w, t));
  }
  bool is_local(std::size_t worker) const noexcept {
    return at<ReducerLine>(layout_.words(worker))->local != 0;
  }
  bool is_ahead(std::size_t worker) const noexcept { return workers_[worker].ahead > base_; }
  bool has_ended(std::size_t worker, std::size_t table, std::uint64_t clock) const noexcept;
  bool is_complete(std::size_t table, std::uint64_t clocks) const noexcept;
  int version_of(std::size_t table, std::uint64_t clocks) const noexcept;
  const RuleLine* rule_of(std::size_t worker, std::size_t table) const noexcept;
  OptimizerConfig config_of_update(std::size_t worker, std::size_t table) const;
  std::string lacks(std::size_t table) const;
  void write_words(std::uint8_t* to) const;
  void write_table(std::size_t table, std::uint8_t* to);

  const std::uint8_t* memory_;
  NodeLayout layout_;
  std::vector<ReplicatedRule> rules_;
  std::vector<LeftWorker> workers_;
  std::uint64_t base_;
  std::vector<float> sum_;
};

// Set the words of a node's own workers in durable memory whose values have the updates of `base`
// clocks.
void set_local(std::uint8_t* memory, const NodeLayout& layout,
               const std::vector<std::size_t>& local, std::uint64_t base);

// Declare that version 0 of new durable memory has the values at the start of a launch: no clocks,
// and so many updates of each table.
void set_start(std::uint8_t* memory, const NodeLayout& layout,
               const std::vector<std::uint64_t>& steps);

}  // namespace mpips
