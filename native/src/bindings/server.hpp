#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "bindings/arrays.hpp"
#include "server/dense_shard.hpp"
#include "server/embedding_shard.hpp"
#include "server/server_core.hpp"
#include "shm/shared_memory.hpp"

namespace mpips {

// The server's entries into MPI.
struct MpiEntries {
  bool needed = true;   // some peer is remote
  double last_s = 0.0;  // time of the last one, as now_s
};

// Return the sums of workers as pairs of clocks and seconds.
inline std::vector<std::pair<std::uint64_t, double>> pairs_of(
    const std::vector<PushIntervals::Sum>& sums) {
  std::vector<std::pair<std::uint64_t, double>> found;
  for (const PushIntervals::Sum& sum : sums) found.emplace_back(sum.n, sum.seconds);
  return found;
}

// The C++ core together with the memory of its shards, which Python has created.
class Server {
 public:
  Server(SharedMemory& region, Layout layout, std::uint32_t generation, std::uint32_t backup,
         bool oversubscribed, py::object progress, double progress_interval_s);

  // Use a journal; call this before any table is added. `fresh`: this process created the memory;
  // else it takes over what is there.
  void use_journal(SharedMemory& memory, bool fresh);
  // is added.
  void set_buffers(std::uint16_t table, SharedMemory& memory) { buffers_[table] = &memory; }

  // Add a table whose shard lies in the memory of this server; see ServerCore.
  void add_dense(std::uint16_t table, const OptimizerConfig& optimizer, std::size_t n_state_values,
                 py::object python_rule, ConsistencyConfig consistency);
  void add_scales(std::uint16_t table, std::uint16_t of, std::uint32_t block,
                  const OptimizerConfig& optimizer, ConsistencyConfig consistency);
  void add_embedding(std::uint16_t table, const OptimizerConfig& optimizer,
                     std::size_t n_state_values, py::object python_rule,
                     ConsistencyConfig consistency, std::size_t dim, const std::string& dtype,
                     const Initializer& init, SharedMemory& rows, SharedMemory& keys);

  // Apply limits to the rows of a table; `uses` and `counts` (null: not needed) are moved from.
  void set_limits(std::uint16_t table, const LimitsConfig& limits, SharedMemory* uses,
                  SharedMemory* counts);

  // Let rows of a table of this name lie in a file; see RowStorage. `places` is moved from.
  void set_storage(std::uint16_t table, const std::string& name, SharedMemory& places,
                   std::size_t most_frames, const std::string& folder, const std::string& path);

  // Return the shard of a table. Raise IndexError if this server has no such shard.
  DenseShard& dense(std::uint16_t table) const { return *dense_.at(table); }
  EmbeddingShard& embedding(std::uint16_t table) const { return *embedding_.at(table); }
  void set_steps_before(std::uint16_t table, std::uint64_t n);

  ServerCore& core() { return core_; }
  // Follow a recorded order. Dense tables under BSP are not gated: their pulls are not recorded.
  void follow(RecordedOrder& order, PullGate& gate);
  void set_remote_peers(bool any) { mpi_->needed = any; }
  // Note that the caller has entered MPI just now, so `progress_` need not soon.
  void note_mpi_entry() { mpi_->last_s = now_s(); }

 private:
  Durable durable(std::uint16_t table);

  SharedMemory* region_;
  Layout layout_;
  bool fresh_ = true;
  std::map<std::uint16_t, SharedMemory*> buffers_;
  std::shared_ptr<MpiEntries> mpi_ = std::make_shared<MpiEntries>();
  Progress progress_;
  ServerCore core_;
  std::map<std::uint16_t, DenseShard*> dense_;
  std::map<std::uint16_t, EmbeddingShard*> embedding_;
};

// Define the methods of mpips._native.ServerCore, by what they are for.
void bind_server_tables(py::class_<Server>& server);
void bind_server_content(py::class_<Server>& server);
void bind_server_recovery(py::class_<Server>& server);
void bind_server_replica(py::class_<Server>& server);
void bind_server_look_ups(py::class_<Server>& server);
void bind_server_storage(py::class_<Server>& server);
// Define what processes outside the job use for look-ups.
void register_look_ups(py::module_& m);

}  // namespace mpips
