#include "keys/key_plan.hpp"

#include <exception>
#include <string>
#include <vector>

#include "bindings/arrays.hpp"
#include "keys/partitioner.hpp"

namespace mpips {

namespace {

template <class T>
std::vector<T> to_vector(const ArrayOf<T>& array, const char* name) {
  require_vector(array, name);
  return std::vector<T>(array.data(), array.data() + array.shape(0));
}

ArrayOf<std::uint16_t> owners(const Partitioner& partitioner, const ArrayOf<std::int64_t>& keys) {
  require_vector(keys, "keys");
  ArrayOf<std::uint16_t> servers(keys.shape(0));
  const std::int64_t* from = keys.data();
  std::uint16_t* to = servers.mutable_data();
  {
    const ReleaseGil release;
    partitioner.owners(from, length(keys), to);
  }
  return servers;
}

const char* mode_name(const Partitioner& partitioner) {
  constexpr const char* names[] = {"hash", "range", "buckets"};
  return names[static_cast<int>(partitioner.mode())];
}

void bind_partitioner(py::module_& m) {
  // A key outside the partition is a KeyError in Python, as in a dict.
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const KeyOutsidePartition& outside) {
      py::set_error(PyExc_KeyError, outside.what());
    }
  });

  py::class_<Partitioner>(m, "Partitioner")
      .def_static("hash", &Partitioner::by_hash, py::arg("n_servers"))
      .def_static(
          "range",
          [](const ArrayOf<std::int64_t>& boundaries) {
            return Partitioner::by_range(to_vector(boundaries, "boundaries"));
          },
          py::arg("boundaries").noconvert())
      .def_static(
          "buckets",
          [](const ArrayOf<std::uint16_t>& servers, std::size_t n_servers) {
            return Partitioner::by_buckets(to_vector(servers, "servers"), n_servers);
          },
          py::arg("servers").noconvert(), py::arg("n_servers"))
      .def_property_readonly("mode", &mode_name)
      .def_property_readonly("n_servers", &Partitioner::n_servers)
      .def("owner", &Partitioner::owner, py::arg("key"))
      .def("owners", &owners, py::arg("keys").noconvert());
}

void build(KeyPlan& plan, const ArrayOf<std::int64_t>& keys, const Partitioner& partitioner) {
  require_vector(keys, "keys");
  const std::int64_t* from = keys.data();
  const ReleaseGil release;
  plan.build(from, length(keys), partitioner);
}

// Return copies, because the next `build` overwrites the plan's own memory.
ArrayOf<std::int64_t> unique_keys(const KeyPlan& plan) {
  return ArrayOf<std::int64_t>(static_cast<py::ssize_t>(plan.n_unique()), plan.unique_keys());
}

ArrayOf<std::uint32_t> inverse(const KeyPlan& plan) {
  return ArrayOf<std::uint32_t>(static_cast<py::ssize_t>(plan.size()), plan.inverse());
}

ArrayOf<std::uint64_t> group_starts(const KeyPlan& plan) {
  ArrayOf<std::uint64_t> starts(static_cast<py::ssize_t>(plan.n_servers() + 1));
  for (std::size_t s = 0; s <= plan.n_servers(); ++s)
    starts.mutable_at(static_cast<py::ssize_t>(s)) = plan.group_start(s);
  return starts;
}

ArrayOf<float> sum_rows(const KeyPlan& plan, const ArrayOf<float>& rows) {
  const std::size_t dim = require_rows(rows, plan.size(), "rows");
  ArrayOf<float> sums({plan.n_unique(), dim});
  const float* from = rows.data();
  float* to = sums.mutable_data();
  {
    const ReleaseGil release;
    plan.sum_rows(0, plan.n_unique(), from, dim, to);
  }
  return sums;
}

void scatter_rows(const KeyPlan& plan, const ArrayOf<float>& unique_rows, ArrayOf<float>& out) {
  const std::size_t dim = require_rows(unique_rows, plan.n_unique(), "unique_rows");
  if (require_rows(out, plan.size(), "out") != dim)
    throw py::value_error("out has shape " + shape_text(out) + ", expected rows of length " +
                          std::to_string(dim));
  const float* from = unique_rows.data();
  float* to = out.mutable_data();
  const ReleaseGil release;
  plan.scatter_rows(0, plan.n_unique(), from, dim, to);
}

void bind_key_plan(py::module_& m) {
  py::class_<KeyPlan>(m, "KeyPlan")
      .def(py::init<>())
      .def("build", &build, py::arg("keys").noconvert(), py::arg("partitioner"))
      .def("__len__", &KeyPlan::size)
      .def_property_readonly("n_unique", &KeyPlan::n_unique)
      .def_property_readonly("n_servers", &KeyPlan::n_servers)
      .def_property_readonly("unique_keys", &unique_keys)
      .def_property_readonly("group_starts", &group_starts)
      .def_property_readonly("inverse", &inverse)
      .def("sum_rows", &sum_rows, py::arg("rows").noconvert())
      .def("scatter_rows", &scatter_rows, py::arg("unique_rows").noconvert(),
           py::arg("out").noconvert());
}

}  // namespace

void register_key_plan(py::module_& m) {
  bind_partitioner(m);
  bind_key_plan(m);
}

}  // namespace mpips
