#include "ring/dense_port.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "shm/shared_memory.hpp"

namespace py = pybind11;

namespace mpips {
namespace {

// shorter copies end before another thread needs the lock
constexpr std::size_t bytes_with_gil = 256 << 10;
constexpr double spin_s = 50e-6;
constexpr std::size_t warm_bytes = 128 << 10;

// Releases the GIL only for long copies: releasing and taking it costs more than a copy of a few
// KiB.
class MaybeRelease {
 public:
  explicit MaybeRelease(bool really) {
    if (really) release_.emplace();
  }

 private:
  std::optional<py::gil_scoped_release> release_;
};

// Adds the time of a call, without its waits, to that of its kind, if this call is to be timed.
class Timed {
 public:
  Timed(CallTime& time, const WorkerClock& clock)
      : time_(time.due() ? &time : nullptr), clock_(clock) {
    if (time_ != nullptr) began_ = now_s() - clock_.wait_s;
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    if (time_ != nullptr) time_->add(now_s() - clock_.wait_s - began_);
  }

 private:
  CallTime* time_;
  const WorkerClock& clock_;
  double began_ = 0.0;
};

// A port together with the Python objects that its pointers point into.
struct BoundPort {
  DensePort port;
  std::vector<py::ssize_t> shape;
  py::object clock, result_type;
  std::vector<py::object> owners;

  // Refuse arrays of other classes, as masked ones: they may mean more than their numbers.
  bool fits(py::handle array) const {
    if (Py_TYPE(array.ptr()) != py::detail::npy_api::get().PyArray_Type_) return false;
    if (!FloatArray::check_(array)) return false;
    const auto& a = py::reinterpret_borrow<py::array>(array);
    const auto n = static_cast<std::size_t>(a.ndim());
    if (n != shape.size()) return false;
    for (std::size_t i = 0; i < n; ++i)
      if (a.shape(static_cast<py::ssize_t>(i)) != shape[i]) return false;
    return true;
  }

  void poll(py::handle owner) const {
    if (port.clock()->poll_due()) owner.attr("poll")();
  }
};

// Return a `result_type` (mpips.worker.requests.PushResult) of the servers' results of one push.
py::object push_result(const py::object& result_type, const std::vector<PushEnd>& ends) {
  std::size_t count[9] = {};
  std::uint64_t staleness = 0;
  for (const PushEnd& end : ends) {
    const std::uint64_t word = end.writer->result(end.sequence);
    ++count[std::min<std::size_t>(word & 0xff, 8)];
    staleness = std::max(staleness, staleness_of(word));
  }
  const auto of = [&](Outcome o) { return count[static_cast<std::size_t>(o)]; };
  const std::size_t scaled = of(Outcome::scaled), compensated = of(Outcome::compensated);
  const py::int_ fields[] = {
      py::int_(of(Outcome::applied) + scaled + compensated + of(Outcome::accumulated)),
      py::int_(scaled),
      py::int_(compensated),
      py::int_(of(Outcome::rejected)),
      py::int_(of(Outcome::late)),
      py::int_(of(Outcome::none)),
      py::int_(staleness)};
  PyObject* arguments[std::size(fields)];
  for (std::size_t i = 0; i < std::size(fields); ++i) arguments[i] = fields[i].ptr();
  PyObject* made = PyObject_Vectorcall(result_type.ptr(), arguments, std::size(fields), nullptr);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// A push in progress; see mpips.worker.requests.Request. `owner` is the handle that made it. The
// handle does the long waits, because it can name the rank that is late.
class PushRequest {
 public:
  PushRequest(py::object owner, py::object result_type, WorkerClock* clock, bool oversubscribed)
      : owner_(std::move(owner)),
        result_type_(std::move(result_type)),
        clock_(clock),
        oversubscribed_(oversubscribed) {}

  std::vector<PushEnd>* ends() noexcept { return &ends_; }

  // Return the index of the first part whose server has not consumed its record; the number of
  // parts if all have.
  std::size_t missing() {
    while (done_ < ends_.size() && ends_[done_].writer->applied() > ends_[done_].sequence) ++done_;
    return done_;
  }

  bool advance(double max_s) {
    if (missing() == ends_.size()) return true;
    if (max_s <= 0.0) return false;
    MaybeRelease release(max_s > spin_s);
    return wait_until([&] { return missing() == ends_.size(); }, max_s, oversubscribed_,
                      &clock_->wait_s);
  }

  static py::object wait(py::object self, py::object timeout) {
    auto& request = self.cast<PushRequest&>();
    // Prepare the next record while waiting.
    for (const PushEnd& end : request.ends_) end.writer->warm_next_slot(warm_bytes);
    if (!request.advance(spin_s))
      return request.owner_.attr("wait_for_push")(self, std::move(timeout));
    return request.result();
  }

  py::object result() {
    if (!value_) value_ = push_result(result_type_, ends_);
    return value_;
  }

 private:
  py::object owner_, result_type_, value_;
  WorkerClock* clock_;  // `owner_` holds it
  std::vector<PushEnd> ends_;
  std::size_t done_ = 0;
  bool oversubscribed_;
};

// Records a push, pull or wait of the worker while it is traced.
class Traced {
 public:
  Traced(TraceKind kind, const WorkerClock& clock, std::uint16_t table)
      : kind_(kind),
        clock_(clock),
        table_(table),
        begin_ns_(clock.trace != nullptr ? TraceRing::now_ns() : 0) {}
  // Record the operation; call it only when it is complete.
  void end() const {
    if (clock_.trace != nullptr && begin_ns_ != 0)
      clock_.trace->add(kind_, begin_ns_, TraceRing::now_ns(), 0, clock_.now, table_, 0);
  }

 private:
  TraceKind kind_;
  const WorkerClock& clock_;
  std::uint16_t table_;
  std::uint64_t begin_ns_;
};

// Make a port from (memory, layout, writer, start, stop) of each server's part.
using PartTuple = std::tuple<py::object, py::object, py::object, std::size_t, std::size_t>;

std::unique_ptr<BoundPort> make_port(py::object clock, std::uint16_t table,
                                     std::vector<py::ssize_t> shape,
                                     const std::vector<PartTuple>& list, std::uint64_t bsp_until,
                                     std::int64_t bound, bool check_finite, bool oversubscribed,
                                     const py::object& staging, py::object result_type) {
  std::vector<DensePort::Part> parts;
  std::vector<py::object> owners;
  for (const auto& [memory, layout, writer, start, stop] : list) {
    const auto& region = memory.cast<const SharedMemory&>();
    const auto& where = layout.cast<const Layout&>();
    const DenseExtent& extent = where.extent(table);
    if (extent.n != stop - start || where.total_bytes() > region.size())
      throw py::value_error("a part of table " + std::to_string(table) + " has " +
                            std::to_string(stop - start) + " elements, its shard has " +
                            std::to_string(extent.n));
    parts.push_back({writer.cast<RingWriter*>(), region.data(), start, stop, where.head(table),
                     extent.versions, extent.values});
    owners.insert(owners.end(), {memory, writer});
  }
  auto port = std::make_unique<BoundPort>(
      BoundPort{DensePort(clock.cast<WorkerClock*>(), table, std::move(parts), bsp_until, bound,
                          check_finite, oversubscribed),
                std::move(shape), clock, std::move(result_type), std::move(owners)});
  if (!staging.is_none()) {
    const auto& memory = staging.cast<const SharedMemory&>();
    port->port.set_staging(memory.data(), memory.size());
    port->owners.push_back(staging);
  }
  return port;
}

// Push; return a PushRequest, False if there is no room now, or None if the update must take the
// general path.
py::object push(BoundPort& bound, const py::object& update, const py::object& owner) {
  if (!bound.fits(update)) return py::none();
  bound.poll(owner);
  const Timed timed(bound.port.clock()->pushes, *bound.port.clock());
  const Traced traced(TraceKind::push, *bound.port.clock(), bound.port.table());
  const auto array = py::reinterpret_borrow<FloatArray>(update);
  auto request = std::make_unique<PushRequest>(owner, bound.result_type, bound.port.clock(),
                                               bound.port.oversubscribed());
  Sent sent = Sent::other_way;
  {
    MaybeRelease release(bound.port.size() * sizeof(float) > bytes_with_gil);
    sent = bound.port.push(array.data(), request->ends());
  }
  if (sent == Sent::other_way) return py::none();
  if (sent == Sent::no_room) return py::bool_(false);
  traced.end();
  return py::cast(std::move(request));
}

bool pull(BoundPort& bound, const py::object& out, const py::object& owner) {
  if (!bound.fits(out)) return false;
  auto array = py::reinterpret_borrow<FloatArray>(out);
  if (!array.writeable()) return false;
  bound.poll(owner);
  const Timed timed(bound.port.clock()->pulls, *bound.port.clock());
  float* to = array.mutable_data();
  const Traced traced(TraceKind::pull, *bound.port.clock(), bound.port.table());
  MaybeRelease release(bound.port.size() * sizeof(float) > bytes_with_gil);
  const bool done = bound.port.pull(to);
  if (done) traced.end();
  return done;
}

}  // namespace

void register_port(py::module_& m) {
  py::class_<WorkerClock>(m, "WorkerClock")
      .def(py::init<>())
      .def_readwrite("now", &WorkerClock::now)
      .def_readwrite("pushed_at", &WorkerClock::pushed_at)
      .def_readwrite("wait_s", &WorkerClock::wait_s)
      .def("begin", &WorkerClock::begin)
      .def("end_push", [](WorkerClock& c) { c.end(&c.push_s); })
      .def("end_pull", [](WorkerClock& c) { c.end(&c.pull_s); })
      .def_property_readonly("push_s",
                             [](const WorkerClock& c) { return c.push_s + c.pushes.total_s(); })
      .def_property_readonly("pull_s",
                             [](const WorkerClock& c) { return c.pull_s + c.pulls.total_s(); })
      .def(
          "set_trace", [](WorkerClock& clock, TraceRing* ring) { clock.trace = ring; },
          py::arg("ring").none(true), py::keep_alive<1, 2>());
  py::class_<PushRequest>(m, "PushRequest")
      .def(
          "test", [](PushRequest& r) { return r.advance(0.0); },
          "Return true if the push is complete. Does not block.")
      .def("wait", &PushRequest::wait, py::arg("timeout") = py::none(),
           "Block until the push is complete and return its PushResult.")
      .def("advance", &PushRequest::advance, py::arg("max_s"))
      .def("missing", &PushRequest::missing)
      .def("result", &PushRequest::result);
  m.def(
      "push_result",
      [](const py::object& result_type,
         const std::vector<std::pair<RingWriter*, std::uint64_t>>& list) {
        std::vector<PushEnd> ends;
        for (const auto& [writer, sequence] : list) ends.push_back({writer, sequence});
        return push_result(result_type, ends);
      },
      py::arg("result_type"), py::arg("ends"));
  py::class_<BoundPort>(m, "DensePort")
      .def(py::init(&make_port), py::arg("clock"), py::arg("table"), py::arg("shape"),
           py::arg("parts"), py::arg("bsp_until"), py::arg("bound"), py::arg("check_finite"),
           py::arg("oversubscribed"), py::arg("staging"), py::arg("result_type"))
      .def(
          "add_bounce", [](BoundPort& bound, std::size_t offset) { bound.port.add_bounce(offset); },
          py::arg("offset"))
      .def_property_readonly("has_bounce",
                             [](const BoundPort& bound) { return bound.port.has_bounce(); })
      .def("close", [](BoundPort& bound) { bound.port.close(); })
      .def(
          "set_bound", [](BoundPort& port, std::int64_t to) { port.port.set_bound(to); },
          py::arg("bound"))
      .def(
          "set_bsp_until",
          [](BoundPort& port, std::uint64_t clock) { port.port.set_bsp_until(clock); },
          py::arg("clock"))
      .def(
          "set_log",
          [](BoundPort& bound, PullLog* log, std::vector<std::size_t> servers) {
            if (servers.size() != bound.port.n_parts())
              throw py::value_error("servers has " + std::to_string(servers.size()) +
                                    " entries, the port " + std::to_string(bound.port.n_parts()) +
                                    " parts");
            bound.port.set_log(log, std::move(servers));
          },
          "Note what pulls see. `servers`: index of the server of each part.", py::arg("log"),
          py::arg("servers"), py::keep_alive<1, 2>())
      .def(
          "leave_pulls", [](BoundPort& bound) { bound.port.leave_pulls(); },
          "Refuse pulls from here on: they take the general path.")
      .def(
          "wait_room", [](BoundPort& bound, double max_s) { return bound.port.wait_room(max_s); },
          py::arg("max_s"), WithoutGil())
      .def("waits_for", [](const BoundPort& bound) { return bound.port.waits_for(); })
      .def("push", &push, py::arg("update"), py::arg("owner"))
      .def("pull", &pull, py::arg("out"), py::arg("owner"));
}

}  // namespace mpips
