#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/register.hpp"
#include "client/producer.hpp"
#include "shm/backoff.hpp"

namespace py = pybind11;

namespace mpips {
namespace {

constexpr double signals_s = 0.05;  // seconds of a wait between two looks for signals

// Return true if the handler of a signal has raised an exception, which is then the current one.
// Called without the interpreter's lock. Handlers run in the main thread. Other threads must not
// ask for the lock here: while the interpreter ends, that would end the process (see `waited`).
bool has_raised() noexcept {
  static thread_local double next_s = 0.0;
  if (now_s() < next_s) return false;
  next_s = now_s() + signals_s;
  if (syscall(SYS_gettid) != getpid()) return false;
  const py::gil_scoped_acquire lock;
  return PyErr_CheckSignals() != 0;
}

bool is_ending() noexcept {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Return the number of a type in mpips.h; 0: there is none.
std::uint32_t type_of(const py::dtype& dtype) {
  const char kind = dtype.kind();
  const auto bytes = static_cast<std::size_t>(dtype.itemsize());
  const char* kinds = " ffiiiiuuuub";
  for (std::uint32_t type = 1; type <= n_value_types; ++type)
    if (kinds[type] == kind && value_bytes[type] == bytes) return type;
  return 0;
}

// A producer of mpips.h for a Python program. A second thread that uses it meanwhile gets an error.
class QueueClient {
 public:
  QueueClient(std::optional<std::string> name, int number, double timeout_s)
      : name_(std::move(name)), number_(number), timeout_s_(timeout_s) {}
  QueueClient(const QueueClient&) = delete;
  QueueClient& operator=(const QueueClient&) = delete;
  ~QueueClient() {
    if (p_ != nullptr) mpips_detach(p_);
  }

  int open() {
    const Use use(busy_);
    if (p_ != nullptr) throw std::runtime_error("the producer is open already");
    mpips_producer* p = nullptr;
    const int code = waited([&] {
      return open_producer(&p, name_ ? name_->c_str() : nullptr, number_, timeout_s_, has_raised);
    });
    if (code != MPIPS_OK) return code;
    p_ = p;
    for (std::uint32_t i = 0; i < p_->header().n_fields; ++i) {
      const QueueField* field = p_->file.fields() + i;
      p_->declared.push_back({field, ArrayCopy(*field, field->type, nullptr)});
      forms_.push_back({field->type, {}});
    }
    return code;
  }

  std::vector<std::tuple<std::string, std::uint32_t, std::vector<std::uint64_t>>> fields() {
    const Use use(busy_);
    std::vector<std::tuple<std::string, std::uint32_t, std::vector<std::uint64_t>>> found;
    for (const DeclaredField& d : opened().declared)
      found.emplace_back(
          d.field->name, d.field->type,
          std::vector<std::uint64_t>(d.field->shape, d.field->shape + d.field->n_dims));
    return found;
  }

  int push(const std::vector<py::array>& arrays, bool wait) {
    const Use use(busy_);
    mpips_producer& p = opened();
    if (arrays.size() != p.declared.size())
      throw py::value_error(std::to_string(arrays.size()) + " arrays, the stream has " +
                            std::to_string(p.declared.size()) + " fields");
    std::vector<const void*> addresses;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      declare(i, arrays[i]);
      addresses.push_back(arrays[i].data());
    }
    return waited([&] {
      return wait ? mpips_push(&p, addresses.data()) : mpips_try_push(&p, addresses.data());
    });
  }

  int flush() {
    const Use use(busy_);
    mpips_producer& p = opened();
    return waited([&] { return mpips_flush(&p); });
  }

  // Return code and version; `values` has `n_steer` elements.
  std::pair<int, std::int64_t> steer(py::array_t<float, py::array::c_style>& values) {
    const Use use(busy_);
    mpips_producer& p = opened();
    std::int64_t version = 0;
    float* to = values.mutable_data();
    const auto n = static_cast<std::int64_t>(values.size());
    const int code = waited([&] { return mpips_steer(&p, to, n, &version); });
    return {code, version};
  }

  int close() {
    const Use use(busy_);
    mpips_producer* p = std::exchange(p_, nullptr);  // gone afterwards, whatever the code is
    return waited([&] { return mpips_close(p); });
  }

  void detach() {
    const Use use(busy_);
    if (p_ != nullptr) mpips_detach(std::exchange(p_, nullptr));
  }

  bool is_open() const noexcept { return p_ != nullptr; }
  std::string name() {
    const Use use(busy_);
    return opened().name;
  }
  int number() {
    const Use use(busy_);
    return opened().number;
  }
  std::int64_t produced() {
    const Use use(busy_);
    return mpips_produced(&opened());
  }
  std::uint64_t n_steer() {
    const Use use(busy_);
    return opened().header().n_steer;
  }
  bool has_ended() {
    const Use use(busy_);
    return load_acquire(&opened().header().closed) != 0;
  }

 private:
  // The use by one thread, in the scope of the object.
  class Use {
   public:
    explicit Use(std::atomic_flag& busy) : busy_(busy) {
      if (busy_.test_and_set(std::memory_order_acquire))
        throw std::runtime_error(
            "another thread uses this producer, or the call that a signal has interrupted: give "
            "each thread its own, and let handlers of signals only raise an exception");
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { busy_.clear(std::memory_order_release); }

   private:
    std::atomic_flag& busy_;
  };

  // The form in which an array was declared last; no strides: it is contiguous.
  struct Form {
    std::uint32_t type;
    std::vector<std::int64_t> strides;
  };

  mpips_producer& opened() const {
    if (p_ == nullptr) throw std::runtime_error("the producer is not open");
    return *p_;
  }

  // Call a function of the library without the interpreter's lock; return its code.
  //
  // A daemon thread may be here while the interpreter ends. One that asks for the lock then is
  // ended by force, which aborts the process in a destructor such as that of gil_scoped_release.
  // So it stays here until the process ends.
  template <class Call>
  static int waited(Call call) {
    const bool ends_interpreter = is_ending();  // this thread has the lock
    PyThreadState* const state = PyEval_SaveThread();
    const int code = call();
    while (!ends_interpreter && is_ending()) pause();
    PyEval_RestoreThread(state);
    if (code == interrupted) throw py::error_already_set();
    return code;
  }

  // Let field `i` be copied with the type and the strides of an array.
  void declare(std::size_t i, const py::array& array) {
    DeclaredField& d = p_->declared[i];
    const std::uint32_t type = type_of(array.dtype());
    const bool has_shape = array.ndim() == static_cast<py::ssize_t>(d.field->n_dims) &&
                           std::equal(d.field->shape, d.field->shape + d.field->n_dims,
                                      array.shape(), [](std::uint64_t n, py::ssize_t m) {
                                        return n == static_cast<std::uint64_t>(m);
                                      });
    const bool converts = type == MPIPS_FLOAT64 && d.field->type == MPIPS_FLOAT32;
    if (!has_shape || (type != d.field->type && !converts))
      throw py::value_error(std::string("field '") + d.field->name + "' has another shape or type");
    Form form{type, {}};
    if ((array.flags() & py::array::c_style) == 0)
      for (py::ssize_t k = 0; k < array.ndim(); ++k) {
        if (array.strides(k) % array.itemsize() != 0)
          throw py::value_error(std::string("field '") + d.field->name + "' has odd strides");
        form.strides.push_back(array.strides(k) / array.itemsize());
      }
    if (form.type == forms_[i].type && form.strides == forms_[i].strides) return;
    d.copy = ArrayCopy(*d.field, type, form.strides.empty() ? nullptr : form.strides.data());
    forms_[i] = std::move(form);
  }

  std::optional<std::string> name_;
  int number_;
  double timeout_s_;
  mpips_producer* p_ = nullptr;
  std::vector<Form> forms_;  // by field
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace

void register_client(py::module_& m) {
  py::class_<QueueClient>(m, "QueueClient")
      .def(py::init<std::optional<std::string>, int, double>(), py::arg("name"), py::arg("number"),
           py::arg("timeout_s"))
      .def("open", &QueueClient::open)
      .def("fields", &QueueClient::fields)
      .def("push", &QueueClient::push, py::arg("arrays"), py::arg("wait"))
      .def("flush", &QueueClient::flush)
      .def("steer", &QueueClient::steer, py::arg("values").noconvert())
      .def("close", &QueueClient::close)
      .def("detach", &QueueClient::detach)
      .def_property_readonly("is_open", &QueueClient::is_open)
      .def_property_readonly("name", &QueueClient::name)
      .def_property_readonly("number", &QueueClient::number)
      .def_property_readonly("produced", &QueueClient::produced)
      .def_property_readonly("n_steer", &QueueClient::n_steer)
      .def_property_readonly("has_ended", &QueueClient::has_ended)
      // It may be cut within a character, and contain a path that is no text.
      .def_static("message", [] {
        const char* text = mpips_message();
        return py::reinterpret_steal<py::str>(
            PyUnicode_DecodeUTF8(text, static_cast<py::ssize_t>(std::strlen(text)), "replace"));
      });
}

}  // namespace mpips
