#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "bindings/arrays.hpp"
#include "bindings/names.hpp"
#include "bindings/register.hpp"
#include "server/dense_shard.hpp"
#include "server/embedding_shard.hpp"
#include "server/scale_shard.hpp"
#include "server/server_core.hpp"
#include "shm/shared_memory.hpp"

namespace py = pybind11;

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

template <class T>
py::array read_only(const T* data, std::vector<py::ssize_t> shape, py::handle owner) {
  py::array_t<T> array(std::move(shape), data, owner);
  array.attr("setflags")(py::arg("write") = false);
  return std::move(array);
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

// Return a function that calls back at most every `interval_s` seconds; a server with remote peers
// enters MPI there.
Progress throttled(py::object callback, double interval_s, std::shared_ptr<bool> wanted) {
  if (callback.is_none()) return {};
  auto shared = std::make_shared<py::object>(std::move(callback));
  auto last = std::make_shared<double>(now_s());
  return [shared, last, interval_s, wanted] {
    if (!*wanted) return;
    if (now_s() - *last < interval_s) return;
    py::gil_scoped_acquire acquire;
    (*shared)();
    *last = now_s();
  };
}

py::dict stats_dict(const ServerCore& core, std::uint16_t table) {
  const TableStats& s = core.stats(table);
  py::dict d;
  d["pushed"] = s.pushed;
  d["applied"] = s.applied;
  d["scaled"] = s.scaled;
  d["compensated"] = s.compensated;
  d["rejected"] = s.rejected;
  d["late"] = s.late;
  d["updates"] = s.updates;
  d["pulled_rows"] = s.pulled_rows;
  d["staleness"] = std::vector<std::uint64_t>(s.staleness.begin(), s.staleness.end());
  return d;
}

// The C++ core together with the memory of its shards, which Python has created.
class Server {
 public:
  Server(SharedMemory& region, Layout layout, std::uint32_t generation, std::uint32_t backup,
         bool oversubscribed, py::object progress, double progress_interval_s)
      : region_(&region),
        layout_(layout),
        progress_(throttled(std::move(progress), progress_interval_s, has_remote_peers_)),
        core_(region.data(), layout, generation, backup, oversubscribed) {
    if (region.writable_bytes() < layout.total_bytes())
      throw py::value_error("the region has " + std::to_string(region.writable_bytes()) +
                            " bytes, its layout needs " + std::to_string(layout.total_bytes()));
  }

  // Use a journal; call this before any table is added. `fresh`: this process created the memory;
  // else it takes over what is there.
  void use_journal(SharedMemory& memory, bool fresh) {
    fresh_ = fresh;
    core_.set_journal(std::make_unique<Journal>(memory, layout_.n_workers(), layout_.n_tables(),
                                                layout_.geometry().payload_capacity()));
  }

  // Set where the buffers of the next table lie, if there is a journal; call this before the table
  // is added.
  void set_buffers(std::uint16_t table, SharedMemory& memory) { buffers_[table] = &memory; }

  void add_dense(std::uint16_t table, const OptimizerConfig& optimizer, std::size_t n_state_values,
                 py::object python_rule, ConsistencyConfig consistency) {
    auto shard = std::make_unique<DenseShard>(
        region_->data(), layout_.extent(table),
        Rule{optimizer, n_state_values, python_update(std::move(python_rule))}, layout_.n_workers(),
        progress_, durable(table));
    dense_[table] = shard.get();
    core_.add_dense(table, std::move(shard), consistency);
  }

  void add_scales(std::uint16_t table, std::uint16_t of, std::uint32_t block,
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

  void add_embedding(std::uint16_t table, const OptimizerConfig& optimizer,
                     std::size_t n_state_values, py::object python_rule,
                     ConsistencyConfig consistency, std::size_t dim, const Initializer& init,
                     SharedMemory& rows, SharedMemory& keys) {
    const Durable where = durable(table);
    if (where.journal != nullptr) where.journal->set_segment(where.row_segment(), rows.data());
    auto shard = std::make_unique<EmbeddingShard>(
        std::move(rows), std::move(keys), dim,
        Rule{optimizer, n_state_values, python_update(std::move(python_rule))}, init,
        layout_.n_workers(), progress_, where);
    embedding_[table] = shard.get();
    core_.add_embedding(table, std::move(shard), consistency);
  }

  void initialize_dense(std::uint16_t table, const Initializer& init, std::uint64_t first) {
    DenseShard* shard = dense_.at(table);
    py::gil_scoped_release release;
    initialize_range(init, first, shard->values(), shard->size());
    shard->refresh_image();
  }

  void set_dense(std::uint16_t table, const FloatArray& values) {
    DenseShard* shard = dense_.at(table);
    if (static_cast<std::size_t>(values.size()) != shard->size())
      throw py::value_error("values has " + std::to_string(values.size()) + " values, expected " +
                            std::to_string(shard->size()));
    std::copy_n(values.data(), shard->size(), shard->values());
    shard->refresh_image();
  }

  py::array_t<float> dense_values(std::uint16_t table) const {
    const DenseShard* shard = dense_.at(table);
    py::array_t<float> copy(static_cast<py::ssize_t>(shard->size()));
    std::copy_n(shard->values(), shard->size(), copy.mutable_data());
    return copy;
  }

  // Return arrays without a copy; `owner` keeps this object, and so the memory, alive.
  py::array dense_array(std::uint16_t table, std::size_t slot, py::handle owner) const {
    const DenseShard* shard = dense_.at(table);
    if (slot > shard->n_state()) throw py::index_error("the rule has no such state");
    const float* data = slot == 0 ? shard->values() : shard->state(slot - 1);
    return read_only(data, {static_cast<py::ssize_t>(shard->size())}, owner);
  }

  py::tuple embedding_arrays(std::uint16_t table, py::handle owner) const {
    const EmbeddingShard* shard = embedding_.at(table);
    const auto n = static_cast<py::ssize_t>(shard->n_rows());
    const auto stride = static_cast<py::ssize_t>(shard->stride());
    return py::make_tuple(read_only(shard->keys(), {n}, owner),
                          read_only(shard->row(0), {n, stride}, owner));
  }

  // Return all rows, sorted by key.
  py::tuple embedding_rows(std::uint16_t table) const {
    const EmbeddingShard* shard = embedding_.at(table);
    const std::size_t n = shard->n_rows(), dim = shard->dim();
    std::vector<std::size_t> order(n);
    for (std::size_t i = 0; i < n; ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return shard->keys()[a] < shard->keys()[b]; });
    KeyArray keys(static_cast<py::ssize_t>(n));
    FloatArray rows({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(dim)});
    for (std::size_t i = 0; i < n; ++i) {
      keys.mutable_data()[i] = shard->keys()[order[i]];
      std::copy_n(shard->row(order[i]), dim, rows.mutable_data() + i * dim);
    }
    return py::make_tuple(keys, rows);
  }

  py::array_t<float> dense_state(std::uint16_t table, std::size_t slot) const {
    const DenseShard* shard = dense_.at(table);
    if (slot >= shard->n_state()) throw py::index_error("the rule has no such state");
    py::array_t<float> copy(static_cast<py::ssize_t>(shard->size()));
    std::copy_n(shard->state(slot), shard->size(), copy.mutable_data());
    return copy;
  }

  void set_steps_before(std::uint16_t table, std::uint64_t n) {
    core_.set_steps_before(table, n);
    const auto dense = dense_.find(table);
    if (dense != dense_.end() && dense->second->common() != nullptr)
      dense->second->common()->set_number(n);
  }

  void set_dense_state(std::uint16_t table, std::size_t slot, const FloatArray& values) {
    DenseShard* shard = dense_.at(table);
    if (slot >= shard->n_state()) throw py::index_error("the rule has no such state");
    if (static_cast<std::size_t>(values.size()) != shard->size())
      throw py::value_error("values has " + std::to_string(values.size()) + " values, expected " +
                            std::to_string(shard->size()));
    std::copy_n(values.data(), shard->size(), shard->state(slot));
  }

  // Return keys with their whole rows (values, state, step count), in no particular order.
  py::tuple embedding_content(std::uint16_t table) const {
    const EmbeddingShard* shard = embedding_.at(table);
    const std::size_t n = shard->n_rows(), stride = shard->stride();
    KeyArray keys(static_cast<py::ssize_t>(n));
    FloatArray rows({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(stride)});
    std::copy_n(shard->keys(), n, keys.mutable_data());
    if (n != 0) std::copy_n(shard->row(0), n * stride, rows.mutable_data());
    return py::make_tuple(keys, rows);
  }

  void load_rows(std::uint16_t table, const KeyArray& keys, const FloatArray& rows) {
    EmbeddingShard* shard = embedding_.at(table);
    if (row_length(keys, rows) != shard->stride())
      throw py::value_error("rows must have shape (number of keys, values + state + step count)");
    py::gil_scoped_release release;
    shard->load(keys.data(), static_cast<std::size_t>(keys.size()), rows.data());
  }

  std::size_t n_rows(std::uint16_t table) const { return embedding_.at(table)->n_rows(); }

  std::size_t memory_bytes(std::uint16_t table) const {
    return embedding_.at(table)->memory_bytes();
  }

  ServerCore& core() { return core_; }
  void set_remote_peers(bool any) { *has_remote_peers_ = any; }

 private:
  Durable durable(std::uint16_t table) {
    Durable where{core_.journal(), nullptr, table, fresh_};
    if (where.journal == nullptr) return where;
    where.buffers = buffers_.at(table);
    where.journal->set_segment(where.buffer_segment(), where.buffers->data());
    return where;
  }

  SharedMemory* region_;
  Layout layout_;
  bool fresh_ = true;
  std::map<std::uint16_t, SharedMemory*> buffers_;
  std::shared_ptr<bool> has_remote_peers_ = std::make_shared<bool>(true);
  Progress progress_;
  ServerCore core_;
  std::map<std::uint16_t, DenseShard*> dense_;
  std::map<std::uint16_t, EmbeddingShard*> embedding_;
};

py::dict position_dict(Server& server, std::size_t worker) {
  const Position& at = server.core().position(worker);
  py::dict d;
  d["sequence"] = at.sequence;
  d["applied"] = server.core().applied(worker);
  d["clock"] = at.clock;
  d["finished"] = at.finished;
  d["taken"] = at.taken;
  d["pushes"] = at.pushes;
  d["tag"] = at.tag;
  d["ended"] = at.ended;
  py::list texts;
  for (const std::string& text : at.texts)
    if (!text.empty()) texts.append(py::bytes(text));
  d["texts"] = texts;
  return d;
}

// Return rows pulled and pushed per second, and for the hottest rows key, pulls and pushes per
// second.
py::object read_rows(RowCounter& counter, double at_s, std::size_t most) {
  const HotRows found = counter.read(at_s, most);
  py::list rows;
  for (const HotRow& row : found.rows)
    rows.append(py::make_tuple(row.key, row.pulls_per_s, row.pushes_per_s));
  return py::make_tuple(found.pulls_per_s, found.pushes_per_s, rows);
}

// Return the same of a table of a server; None if its rows are not counted.
py::object hot_rows(Server& server, std::uint16_t table, std::size_t most) {
  RowCounter* counter = server.core().row_counter(table);
  return counter != nullptr ? read_rows(*counter, now_s(), most) : py::object(py::none());
}

void bind_row_counter(py::module_& m) {
  py::class_<RowCounter>(m, "RowCounter")
      .def(py::init<double>(), py::arg("now_s"))
      .def(
          "count",
          [](RowCounter& counter, bool is_pull, const KeyArray& keys) {
            counter.count(is_pull, keys.data(), static_cast<std::size_t>(keys.size()));
          },
          py::arg("is_pull"), py::arg("keys").noconvert())
      .def("read", &read_rows, py::arg("now_s"), py::arg("most"));
}

py::dict partner_dict(Server& server) {
  const PartnerCounters& c = server.core().partner_counters();
  py::dict d;
  d["records"] = c.records;
  d["bytes"] = c.bytes;
  d["greatest_lag"] = std::max(c.greatest_lag, server.core().partner_lag());
  d["lag"] = server.core().partner_lag();
  return d;
}

// Write a replica's report to the server: for each worker the number of records that have arrived
// and the number of those consumed.
void partner_words(Server& server, WordArray& out) {
  const std::size_t n = server.core().n_workers();
  if (out.ndim() != 2 || static_cast<std::size_t>(out.shape(0)) != n || out.shape(1) != 2)
    throw py::value_error("words must have shape (number of workers, 2)");
  for (std::size_t w = 0; w < n; ++w) {
    out.mutable_data()[2 * w] = server.core().arrived(w);
    out.mutable_data()[2 * w + 1] = server.core().applied(w);
  }
}

void take_partner_words(Server& server, const WordArray& words) {
  const std::size_t n = server.core().n_workers();
  if (words.ndim() != 2 || static_cast<std::size_t>(words.shape(0)) != n || words.shape(1) != 2)
    throw py::value_error("words must have shape (number of workers, 2)");
  for (std::size_t w = 0; w < n; ++w)
    server.core().partner_has(w, words.data()[2 * w], words.data()[2 * w + 1]);
}

void bind_partner(py::class_<Server>& server) {
  server
      .def(
          "begin_partnership",
          [](Server& s, std::uint64_t bound) { s.core().begin_partnership(bound); },
          py::arg("bound"))
      .def(
          "outgoing",
          [](Server& s, ByteArray& batch) {
            std::uint8_t* data = batch.mutable_data();
            const auto bytes = static_cast<std::size_t>(batch.size());
            py::gil_scoped_release release;
            return s.core().outgoing(data, bytes);
          },
          py::arg("batch").noconvert())
      .def("become_copy", [](Server& s) { s.core().become_copy(); })
      .def(
          "accept",
          [](Server& s, const ByteArray& batch, std::size_t n_bytes) {
            if (n_bytes > static_cast<std::size_t>(batch.size()))
              throw py::value_error("n_bytes = " + std::to_string(n_bytes) +
                                    ": the batch has only " + std::to_string(batch.size()) +
                                    " bytes");
            const std::uint8_t* data = batch.data();
            py::gil_scoped_release release;
            s.core().accept(data, n_bytes);
          },
          py::arg("batch").noconvert(), py::arg("n_bytes"))
      .def("partner_words", &partner_words, py::arg("out").noconvert())
      .def("take_partner_words", &take_partner_words, py::arg("words").noconvert())
      .def("partner_counters", &partner_dict);
}

void bind_consistency(py::module_& m) {
  py::enum_<Model>(m, "Model")
      .value("BSP", Model::bsp)
      .value("SSP", Model::ssp)
      .value("ASP", Model::asp);
  py::class_<ConsistencyConfig>(m, "ConsistencyConfig")
      .def(py::init([](Model model, std::uint32_t bound, const std::string& policy,
                       std::uint32_t max_staleness, float lambda, bool mean) {
             const auto treatment = enumerator_named<Policy>("policy", policy, policy_names);
             return ConsistencyConfig{model, bound, treatment, max_staleness, lambda, mean};
           }),
           py::arg("model"), py::arg("bound"), py::arg("policy"), py::arg("max_staleness"),
           py::arg("lambda_"), py::arg("mean"));
}

}  // namespace

void register_server(py::module_& m) {
  py::register_exception<ProtocolViolation>(m, "ProtocolViolation");
  py::register_exception<RecoveryError>(m, "RecoveryError", PyExc_RuntimeError);
  m.def(
      "journal_bytes",
      [](const Layout& l) {
        return Journal::bytes(l.n_workers(), l.n_tables(), l.geometry().payload_capacity());
      },
      py::arg("layout"));
  m.def("dense_buffer_bytes", &DenseShard::buffer_bytes, py::arg("n"), py::arg("n_workers"));
  bind_consistency(m);
  bind_row_counter(m);
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<Server> server(m, "ServerCore");
  bind_partner(server);
  server
      .def(
          py::init<SharedMemory&, Layout, std::uint32_t, std::uint32_t, bool, py::object, double>(),
          py::arg("region"), py::arg("layout"), py::arg("generation"), py::arg("backup"),
          py::arg("oversubscribed"), py::arg("progress"), py::arg("progress_interval_s"),
          py::keep_alive<1, 2>())
      .def("add_dense", &Server::add_dense, py::arg("table"), py::arg("optimizer"),
           py::arg("n_state"), py::arg("python_rule"), py::arg("consistency"))
      .def("add_scales", &Server::add_scales, py::arg("table"), py::arg("of"), py::arg("block"),
           py::arg("optimizer"), py::arg("consistency"))
      .def("add_embedding", &Server::add_embedding, py::arg("table"), py::arg("optimizer"),
           py::arg("n_state"), py::arg("python_rule"), py::arg("consistency"), py::arg("dim"),
           py::arg("initializer"), py::arg("rows"), py::arg("keys"))
      .def(
          "add_absent",
          [](Server& s, std::uint16_t table, ConsistencyConfig c) {
            s.core().add_absent(table, c);
          },
          py::arg("table"), py::arg("consistency"))
      .def("initialize_dense", &Server::initialize_dense, py::arg("table"), py::arg("initializer"),
           py::arg("first"))
      .def("set_dense", &Server::set_dense, py::arg("table"), py::arg("values").noconvert())
      .def(
          "set_staging",
          [](Server& s, std::size_t worker, const SharedMemory& memory) {
            s.core().set_staging(worker, {memory.data(), memory.size()});
          },
          py::arg("worker"), py::arg("memory"), py::keep_alive<1, 3>())
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
          py::arg("table"), py::arg("codec"))
      .def(
          "set_patience", [](Server& s, double seconds) { s.core().set_patience(seconds); },
          py::arg("seconds"))
      .def("set_remote_peers", &Server::set_remote_peers, py::arg("any"))
      .def("use_journal", &Server::use_journal, py::arg("memory"), py::arg("fresh"),
           py::keep_alive<1, 2>())
      .def("set_buffers", &Server::set_buffers, py::arg("table"), py::arg("memory"),
           py::keep_alive<1, 3>())
      .def("begin_journal", [](Server& s) { s.core().begin_journal(); })
      .def("attach", [](Server& s) { s.core().attach(); })
      .def("old_staging", [](Server& s) { return s.core().old_staging(); })
      .def(
          "set_old_staging",
          [](Server& s, std::size_t worker, std::uint32_t generation, const SharedMemory& memory) {
            s.core().set_old_staging(worker, generation, {memory.data(), memory.size()});
          },
          py::arg("worker"), py::arg("generation"), py::arg("memory"), py::keep_alive<1, 4>())
      .def("finish_operation", [](Server& s) { s.core().finish_operation(); })
      .def("position", &position_dict, py::arg("worker"))
      .def("start", [](Server& s) { s.core().start(); })
      .def(
          "drain",
          [](Server& s, double max_s, std::uint32_t max_sleep_us) {
            return s.core().drain(max_s, max_sleep_us);
          },
          py::arg("max_s"), py::arg("max_sleep_us"), Release())
      .def(
          "consume", [](Server& s, double max_s) { return s.core().consume(max_s); },
          py::arg("max_s"), Release())
      .def(
          "stats", [](Server& s, std::uint16_t t) { return stats_dict(s.core(), t); },
          py::arg("table"))
      .def("counters",
           [](Server& s) {
             const ServerCounters& c = s.core().counters();
             py::dict d;
             d["records"] = c.records;
             d["retries"] = c.retries;
             d["clocks"] = c.clocks;
             d["bytes_in"] = c.bytes_in;
             d["bytes_out"] = c.bytes_out;
             return d;
           })
      .def(
          "set_trace", [](Server& s, TraceRing* trace) { s.core().set_trace(trace); },
          py::arg("trace").none(true), py::keep_alive<1, 2>())
      .def("observe_rows", [](Server& s) { s.core().observe_rows(); })
      .def("hot_rows", &hot_rows, py::arg("table"), py::arg("most"))
      .def("queue", [](Server& s) { return s.core().queue(); })
      .def(
          "version", [](Server& s, std::uint16_t t) { return s.core().version(t); },
          py::arg("table"))
      .def(
          "optimizer",
          [](Server& s, std::uint16_t t) -> std::optional<OptimizerConfig> {
            const OptimizerConfig* config = s.core().optimizer(t);
            return config != nullptr ? std::optional<OptimizerConfig>(*config) : std::nullopt;
          },
          py::arg("table"))
      .def(
          "configured_at", [](Server& s, std::uint16_t t) { return s.core().configured_at(t); },
          py::arg("table"))
      .def(
          "applied", [](Server& s, std::size_t w) { return s.core().applied(w); },
          py::arg("worker"))
      .def(
          "clock", [](Server& s, std::size_t w) { return s.core().clocks().clock(w); },
          py::arg("worker"))
      .def(
          "finished", [](Server& s, std::size_t w) { return s.core().clocks().finished(w); },
          py::arg("worker"))
      .def(
          "expect_cut", [](Server& s, std::uint64_t id) { s.core().expect_cut(id); }, py::arg("id"))
      .def("cut_ready", [](Server& s) { return s.core().cut_ready(); })
      .def("holds_cut", [](Server& s) { return s.core().holds_cut(); })
      .def(
          "release_cut", [](Server& s, std::uint64_t id) { s.core().release_cut(id); },
          py::arg("id"))
      .def(
          "position_text",
          [](Server& s, std::size_t w) { return py::bytes(s.core().position_text(w)); },
          py::arg("worker"))
      .def(
          "dense_array",
          [](py::object self, std::uint16_t table, std::size_t slot) {
            return self.cast<Server&>().dense_array(table, slot, self);
          },
          py::arg("table"), py::arg("slot"))
      .def(
          "embedding_arrays",
          [](py::object self, std::uint16_t table) {
            return self.cast<Server&>().embedding_arrays(table, self);
          },
          py::arg("table"))
      .def("dense_values", &Server::dense_values, py::arg("table"))
      .def("embedding_rows", &Server::embedding_rows, py::arg("table"))
      .def("dense_state", &Server::dense_state, py::arg("table"), py::arg("slot"))
      .def("set_dense_state", &Server::set_dense_state, py::arg("table"), py::arg("slot"),
           py::arg("values").noconvert())
      .def("embedding_content", &Server::embedding_content, py::arg("table"))
      .def("load_rows", &Server::load_rows, py::arg("table"), py::arg("keys").noconvert(),
           py::arg("rows").noconvert())
      .def(
          "set_steps_before",
          [](Server& s, std::uint16_t t, std::uint64_t n) { s.set_steps_before(t, n); },
          py::arg("table"), py::arg("n"))
      .def(
          "steps", [](Server& s, std::uint16_t t) { return s.core().steps(t); }, py::arg("table"))
      .def("n_rows", &Server::n_rows, py::arg("table"))
      .def("memory_bytes", &Server::memory_bytes, py::arg("table"));
}

}  // namespace mpips
