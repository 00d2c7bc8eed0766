#include <string>

#include "bindings/names.hpp"
#include "bindings/register.hpp"
#include "server/shard.hpp"

namespace py = pybind11;

namespace mpips {

void register_consistency(py::module_& m) {
  py::enum_<Model>(m, "Model")
      .value("BSP", Model::bsp)
      .value("SSP", Model::ssp)
      .value("ASP", Model::asp);
  py::class_<ConsistencyConfig>(m, "ConsistencyConfig")
      .def(py::init([](Model model, std::uint32_t bound, const std::string& policy,
                       std::uint32_t max_staleness, float lambda, bool mean, bool adaptive) {
             const auto treatment = enumerator_named<Policy>("policy", policy, policy_names);
             return ConsistencyConfig{model,         bound,  adaptive, treatment,
                                      max_staleness, lambda, mean};
           }),
           py::arg("model"), py::arg("bound"), py::arg("policy"), py::arg("max_staleness"),
           py::arg("lambda_"), py::arg("mean"), py::arg("adaptive") = false);
}

}  // namespace mpips
