#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "bindings/arrays.hpp"
#include "bindings/kernel_named.hpp"
#include "bindings/names.hpp"
#include "bindings/register.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/row_rule.hpp"

namespace mpips {
namespace {

namespace py = pybind11;
using Floats = py::array_t<float, py::array::c_style>;

std::size_t size_of(const Floats& array) { return static_cast<std::size_t>(array.size()); }

void require_size(const Floats& array, std::size_t n, const char* name) {
  if (size_of(array) == n) return;
  throw py::value_error(std::string(name) + " has " + std::to_string(array.size()) +
                        " values, expected " + std::to_string(n));
}

// Make a config. Every server makes one before its first update, so a wrong MPIPS_KERNELS is
// reported here.
OptimizerConfig make_config(const std::string& kind, double lr, double momentum, double beta1,
                            double beta2, double rho, double eps, double l1, double l2, double beta,
                            double weight_decay, double clip_value, double initial_accumulator,
                            double every) {
  table_named(std::nullopt);
  OptimizerConfig c;
  c.kind = enumerator_named<OptimizerKind>("optimizer", kind, optimizer_names);
  c.lr = lr;
  c.momentum = momentum;
  c.beta1 = beta1;
  c.beta2 = beta2;
  c.rho = rho;
  c.eps = eps;
  c.l1 = l1;
  c.l2 = l2;
  c.beta = beta;
  c.weight_decay = weight_decay;
  c.clip_value = clip_value;
  c.initial_accumulator = initial_accumulator;
  c.every = every;
  c.bias_table = make_bias_table(c);
  return c;
}

// Return the state's memory, or null where the rule has no such state.
float* state_data(const OptimizerConfig& config, std::size_t slot, std::optional<Floats>& state,
                  std::size_t n) {
  const std::string name = "state" + std::to_string(slot);
  const bool wanted = slot < n_state(config.kind) + n_row_state(config.kind);
  if (wanted != state.has_value())
    throw py::value_error(std::string(name_of(config.kind)) + (wanted ? " needs " : " has no ") +
                          name);
  if (!wanted) return nullptr;
  require_size(*state, n_row_state(config.kind) != 0 ? 1 : n, name.c_str());
  return state->mutable_data();
}

void update(const OptimizerConfig& config, Floats& values, std::optional<Floats> state0,
            std::optional<Floats> state1, const Floats& gradient, std::uint64_t step,
            float gradient_scale, float rate_scale, bool past_caches,
            const std::optional<std::string>& kernels_name) {
  const KernelTable& table = table_named(kernels_name);
  const std::size_t n = size_of(values);
  require_size(gradient, n, "gradient");
  if (step == 0) throw py::value_error("step = 0: steps count from 1");
  float* s0 = state_data(config, 0, state0, n);
  float* s1 = state_data(config, 1, state1, n);
  float* w = values.mutable_data();
  const float* g = gradient.data();
  const ReleaseGil release;
  UpdateArgs args = prepare(config, step, {gradient_scale, rate_scale});
  args.past_caches = past_caches;
  if (n_row_state(config.kind) != 0)
    update_row(table, config, w, nullptr, nullptr, s0, g, n, &args);
  else
    update_row(table, config, w, s0, s1, nullptr, g, n, &args);
}

void add(Floats& dst, const Floats& src, const std::optional<std::string>& kernels_name) {
  const KernelTable& table = table_named(kernels_name);
  require_size(src, size_of(dst), "src");
  float* to = dst.mutable_data();
  const float* from = src.data();
  const std::size_t n = size_of(dst);
  const ReleaseGil release;
  table.add(to, from, n);
}

void scale(Floats& dst, float factor, const std::optional<std::string>& kernels_name) {
  const KernelTable& table = table_named(kernels_name);
  float* to = dst.mutable_data();
  const std::size_t n = size_of(dst);
  const ReleaseGil release;
  table.scale(to, factor, n);
}

bool all_finite(const Floats& src, const std::optional<std::string>& kernels_name) {
  const KernelTable& table = table_named(kernels_name);
  const float* from = src.data();
  const std::size_t n = size_of(src);
  const ReleaseGil release;
  return table.all_finite(from, n);
}

bool all_within(const Floats& src, float bound, const std::optional<std::string>& kernels_name) {
  const KernelTable& table = table_named(kernels_name);
  const float* from = src.data();
  const std::size_t n = size_of(src);
  const ReleaseGil release;
  return table.all_within(from, n, bound);
}

py::tuple centred_sums(const Floats& src, float centre,
                       const std::optional<std::string>& kernels_name) {
  const KernelTable& table = table_named(kernels_name);
  const float* from = src.data();
  const std::size_t n = size_of(src);
  double sums[2];
  {
    const ReleaseGil release;
    table.centred_sums(from, n, centre, sums);
  }
  return py::make_tuple(sums[0], sums[1]);
}

bool copy_finite(Floats& dst, const Floats& src, bool past_caches,
                 const std::optional<std::string>& kernels_name) {
  const KernelTable& table = table_named(kernels_name);
  require_size(src, size_of(dst), "src");
  float* to = dst.mutable_data();
  const float* from = src.data();
  const std::size_t n = size_of(dst);
  if (past_caches && reinterpret_cast<std::uintptr_t>(to) % 64 != 0)
    throw py::value_error("dst must be a multiple of 64 bytes to be written past the caches");
  const ReleaseGil release;
  return past_caches ? table.stream_finite(to, from, n) : table.copy_finite(to, from, n);
}

void round_bf16(py::array_t<std::uint16_t, py::array::c_style>& dst, const Floats& src,
                std::uint64_t key, const std::optional<std::string>& kernels_name) {
  const KernelTable& table = table_named(kernels_name);
  const std::size_t n = size_of(src);
  if (static_cast<std::size_t>(dst.size()) != n)
    throw py::value_error("dst has " + std::to_string(dst.size()) + " values, expected " +
                          std::to_string(n));
  std::uint16_t* to = dst.mutable_data();
  const float* from = src.data();
  const ReleaseGil release;
  table.round_bf16(to, from, n, static_cast<std::uint32_t>(key),
                   static_cast<std::uint32_t>(key >> 32));
}

void compensate(Floats& out, const Floats& gradient, const Floats& values, const Floats& base,
                float lambda, const std::optional<std::string>& kernels_name) {
  const KernelTable& table = table_named(kernels_name);
  const std::size_t n = size_of(out);
  require_size(gradient, n, "gradient");
  require_size(values, n, "values");
  require_size(base, n, "base");
  float* to = out.mutable_data();
  const float *g = gradient.data(), *w = values.data(), *b = base.data();
  const ReleaseGil release;
  table.compensate(to, g, w, b, lambda, n);
}

void bind_config(py::module_& m) {
  py::class_<OptimizerConfig>(m, "OptimizerConfig")
      .def(py::init(&make_config), py::kw_only(), py::arg("kind"), py::arg("lr"),
           py::arg("momentum"), py::arg("beta1"), py::arg("beta2"), py::arg("rho"), py::arg("eps"),
           py::arg("l1"), py::arg("l2"), py::arg("beta"), py::arg("weight_decay"),
           py::arg("clip_value"), py::arg("initial_accumulator"), py::arg("every"))
      .def_property_readonly("kind", [](const OptimizerConfig& c) { return name_of(c.kind); })
      .def_property_readonly("n_state", [](const OptimizerConfig& c) { return n_state(c.kind); })
      .def_property_readonly("n_row_state",
                             [](const OptimizerConfig& c) { return n_row_state(c.kind); })
      .def_property_readonly("uses_step",
                             [](const OptimizerConfig& c) { return uses_step(c.kind); })
      .def("initial_state", &initial_state, py::arg("slot"))
      .def_readonly("lr", &OptimizerConfig::lr)
      .def_readonly("momentum", &OptimizerConfig::momentum)
      .def_readonly("beta1", &OptimizerConfig::beta1)
      .def_readonly("beta2", &OptimizerConfig::beta2)
      .def_readonly("rho", &OptimizerConfig::rho)
      .def_readonly("eps", &OptimizerConfig::eps)
      .def_readonly("l1", &OptimizerConfig::l1)
      .def_readonly("l2", &OptimizerConfig::l2)
      .def_readonly("beta", &OptimizerConfig::beta)
      .def_readonly("weight_decay", &OptimizerConfig::weight_decay)
      .def_readonly("clip_value", &OptimizerConfig::clip_value)
      .def_readonly("initial_accumulator", &OptimizerConfig::initial_accumulator)
      .def_readonly("every", &OptimizerConfig::every);
}

}  // namespace

void register_kernels(py::module_& m) {
  bind_config(m);
  const py::arg kernels_arg("kernels");
  m.def("update", &update, py::arg("config"), py::arg("values").noconvert(),
        py::arg("state0").noconvert().none(true), py::arg("state1").noconvert().none(true),
        py::arg("gradient").noconvert(), py::arg("step"), py::arg("gradient_scale"),
        py::arg("rate_scale"), py::arg("past_caches"), kernels_arg);
  m.def("add", &add, py::arg("dst").noconvert(), py::arg("src").noconvert(), kernels_arg);
  m.def("scale", &scale, py::arg("dst").noconvert(), py::arg("factor"), kernels_arg);
  m.def("copy_finite", &copy_finite, py::arg("dst").noconvert(), py::arg("src").noconvert(),
        py::arg("past_caches"), kernels_arg);
  m.def("all_finite", &all_finite, py::arg("src").noconvert(), kernels_arg);
  m.def("all_within", &all_within, py::arg("src").noconvert(), py::arg("bound"), kernels_arg);
  m.def("centred_sums", &centred_sums, py::arg("src").noconvert(), py::arg("centre"), kernels_arg);
  m.def("compensate", &compensate, py::arg("out").noconvert(), py::arg("gradient").noconvert(),
        py::arg("values").noconvert(), py::arg("base").noconvert(), py::arg("lambda_"),
        kernels_arg);
  m.def("round_bf16", &round_bf16, py::arg("dst").noconvert(), py::arg("src").noconvert(),
        py::arg("key"), kernels_arg);
  m.def("available_kernels", &available_kernels);
  m.def("kernels_name", [] { return table_named(std::nullopt).name; });
}

}  // namespace mpips
