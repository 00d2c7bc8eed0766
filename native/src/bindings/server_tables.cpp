#include <pybind11/functional.h>

#include <utility>

#include "bindings/names.hpp"
#include "bindings/server.hpp"
#include "server/scale_shard.hpp"

// The tables of a server. Their shards lie in memory that Python has created, and their rules may
// be Python functions.
namespace mpips {
namespace {

// Wrap memory in an array without copying. The capsule owns nothing: the array must not outlive the
// call that it is made for.
py::array_t<float> view_of(float* data, std::size_t n) {
  return py::array_t<float>(static_cast<py::ssize_t>(n), data, py::capsule(data, [](void*) {}));
}

// Wrap state arrays that lie at equal distances, as shape (n_state, n).
py::array_t<float> state_view(float* const* state, std::size_t n_state, std::size_t n) {
  static float nothing = 0.0F;
  float* first = n_state > 0 ? state[0] : &nothing;
  const py::ssize_t stride = n_state > 1 ? (state[1] - state[0]) : static_cast<py::ssize_t>(n);
  const py::ssize_t unit = sizeof(float);
  return py::array_t<float>(
      std::vector<py::ssize_t>{static_cast<py::ssize_t>(n_state), static_cast<py::ssize_t>(n)},
      std::vector<py::ssize_t>{stride * unit, unit}, first, py::capsule(first, [](void*) {}));
}

PythonUpdate python_update(py::object rule) {
  if (rule.is_none()) return {};
  auto shared = std::make_shared<py::object>(std::move(rule));
  return [shared](float* values, float* const* state, std::size_t n_state, const float* update,
                  std::size_t n, std::uint64_t step) {
    py::gil_scoped_acquire acquire;
    (*shared)(view_of(values, n), state_view(state, n_state, n),
              view_of(const_cast<float*>(update), n), step);
  };
}

}  // namespace

void Server::add_dense(std::uint16_t table, const OptimizerConfig& optimizer,
                       std::size_t n_state_values, py::object python_rule,
                       ConsistencyConfig consistency) {
  auto shard = std::make_unique<DenseShard>(
      region_->data(), layout_.extent(table),
      Rule{optimizer, n_state_values, python_update(std::move(python_rule))}, layout_.n_workers(),
      progress_, durable(table));
  dense_[table] = shard.get();
  core_.add_dense(table, std::move(shard), consistency);
}

void Server::add_scales(std::uint16_t table, std::uint16_t of, std::uint32_t block,
                        const OptimizerConfig& optimizer, ConsistencyConfig consistency) {
  if (block < 1 || block > most_block || dense_.count(of) == 0 ||
      (layout_.extent(of).n + block - 1) / block != layout_.extent(table).n)
    throw py::value_error("scales of table " + std::to_string(of) + " for blocks of " +
                          std::to_string(block) + " values: do not fit to its shard");
  auto shard =
      std::make_unique<ScaleShard>(region_->data(), layout_.extent(table), Rule{optimizer, 0, {}},
                                   layout_.n_workers(), progress_, durable(table), block);
  dense_[table] = shard.get();
  core_.add_scales(table, of, std::move(shard), consistency);
}

void Server::add_embedding(std::uint16_t table, const OptimizerConfig& optimizer,
                           std::size_t n_state_values, py::object python_rule,
                           ConsistencyConfig consistency, std::size_t dim, const std::string& dtype,
                           const Initializer& init, SharedMemory& rows, SharedMemory& keys) {
  const Durable where = durable(table);
  if (where.journal != nullptr) where.journal->set_segment(where.row_segment(), rows.data());
  auto shard = std::make_unique<EmbeddingShard>(
      std::move(rows), std::move(keys), dim,
      enumerator_named<RowDtype>("row dtype", dtype, row_dtype_names),
      Rule{optimizer, n_state_values, python_update(std::move(python_rule))}, init,
      layout_.n_workers(), progress_, where);
  embedding_[table] = shard.get();
  core_.add_embedding(table, std::move(shard), consistency);
}

void Server::set_limits(std::uint16_t table, const LimitsConfig& limits, SharedMemory* uses,
                        SharedMemory* counts) {
  if ((limits.eviction != Eviction::none) != (uses != nullptr) ||
      (limits.admission == Admission::counted) != (counts != nullptr))
    throw py::value_error(
        "limits of rows need memory for uses if they evict, and memory for counts if "
        "they count");
  const auto own = [](SharedMemory* memory) {
    return memory != nullptr ? std::make_unique<SharedMemory>(std::move(*memory)) : nullptr;
  };
  core_.set_limits(table, limits, own(uses), own(counts));
}

Durable Server::durable(std::uint16_t table) {
  Durable where{core_.journal(), nullptr, table, fresh_};
  if (where.journal == nullptr) return where;
  where.buffers = buffers_.at(table);
  where.journal->set_segment(where.buffer_segment(), where.buffers->data());
  return where;
}

namespace {

LimitsConfig limits_of(const std::string& admission, std::uint32_t least_clocks,
                       std::uint32_t within, double probability, std::uint64_t seed,
                       const std::string& eviction, std::uint64_t idle, std::uint64_t most_rows) {
  LimitsConfig made;
  made.admission = enumerator_named<Admission>("admission", admission, admission_names);
  made.least_clocks = least_clocks;
  made.within = within;
  made.probability = probability;
  made.seed = seed;
  made.eviction = enumerator_named<Eviction>("eviction", eviction, eviction_names);
  made.idle = idle;
  made.most_rows = most_rows;
  return made;
}

}  // namespace

void bind_server_tables(py::class_<Server>& server) {
  server
      .def(
          "set_limits",
          [](Server& s, std::uint16_t table, const std::string& admission,
             std::uint32_t least_clocks, std::uint32_t within, double probability,
             std::uint64_t seed, const std::string& eviction, std::uint64_t idle,
             std::uint64_t most_rows, SharedMemory* uses, SharedMemory* counts) {
            s.set_limits(table,
                         limits_of(admission, least_clocks, within, probability, seed, eviction,
                                   idle, most_rows),
                         uses, counts);
          },
          py::arg("table"), py::arg("admission"), py::arg("least_clocks"), py::arg("within"),
          py::arg("probability"), py::arg("seed"), py::arg("eviction"), py::arg("idle"),
          py::arg("most_rows"), py::arg("uses").none(true), py::arg("counts").none(true))
      .def("add_dense", &Server::add_dense, py::arg("table"), py::arg("optimizer"),
           py::arg("n_state"), py::arg("python_rule"), py::arg("consistency"))
      .def("add_scales", &Server::add_scales, py::arg("table"), py::arg("of"), py::arg("block"),
           py::arg("optimizer"), py::arg("consistency"))
      .def("add_embedding", &Server::add_embedding, py::arg("table"), py::arg("optimizer"),
           py::arg("n_state"), py::arg("python_rule"), py::arg("consistency"), py::arg("dim"),
           py::arg("row_dtype"), py::arg("initializer"), py::arg("rows"), py::arg("keys"))
      .def(
          "add_absent",
          [](Server& s, std::uint16_t table, ConsistencyConfig c) {
            s.core().add_absent(table, c);
          },
          py::arg("table"), py::arg("consistency"))
      .def(
          "set_codec",
          [](Server& s, std::uint16_t table, const Codec& codec) {
            s.core().set_codec(table, codec);
          },
          py::arg("table"), py::arg("codec"))
      .def(
          "set_pull_codec",
          [](Server& s, std::uint16_t table, const Codec& codec) {
            s.core().set_pull_codec(table, codec);
          },
          py::arg("table"), py::arg("codec"));
}

}  // namespace mpips
