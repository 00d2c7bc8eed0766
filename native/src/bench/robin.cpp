#include "bench/robin.hpp"

#include <cstdint>

#include "bindings/arrays.hpp"
#include "keys/row_map.hpp"

#if MPIPS_ROBIN_MAP
#include <tsl/robin_map.h>
#endif

namespace mpips {

namespace {

// A robin map in its plain use: default hash, memory reserved, one find per key.
class RobinMap {
#if MPIPS_ROBIN_MAP
 public:
  explicit RobinMap(std::size_t capacity) { map_.reserve(capacity); }

  std::size_t size() const noexcept { return map_.size(); }

  void insert(const std::int64_t* keys, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      map_.emplace(keys[i], static_cast<std::uint32_t>(map_.size()));
  }

  void find(const std::int64_t* keys, std::size_t n, std::uint32_t* rows) const {
    for (std::size_t i = 0; i < n; ++i) {
      const auto found = map_.find(keys[i]);
      rows[i] = found != map_.end() ? found->second : RowMap::npos;
    }
  }

 private:
  tsl::robin_map<std::int64_t, std::uint32_t> map_;
#else
 public:
  explicit RobinMap(std::size_t) {
    py::set_error(py::module_::import("mpips.errors").attr("CapabilityError"),
                  "mpips was built without tsl/robin_map.h: install robin-map-dev (Debian, Ubuntu) "
                  "or robin-map-devel (Fedora) and run the set-up again");
    throw py::error_already_set();
  }

  std::size_t size() const noexcept { return 0; }
  void insert(const std::int64_t*, std::size_t) {}
  void find(const std::int64_t*, std::size_t, std::uint32_t*) const {}
#endif
};

void insert(RobinMap& map, const ArrayOf<std::int64_t>& keys) {
  require_vector(keys, "keys");
  const std::int64_t* from = keys.data();
  const ReleaseGil release;
  map.insert(from, length(keys));
}

ArrayOf<std::uint32_t> find(const RobinMap& map, const ArrayOf<std::int64_t>& keys) {
  require_vector(keys, "keys");
  ArrayOf<std::uint32_t> rows(keys.shape(0));
  const std::int64_t* from = keys.data();
  std::uint32_t* to = rows.mutable_data();
  {
    const ReleaseGil release;
    map.find(from, length(keys), to);
  }
  return rows;
}

}  // namespace

void bind_robin(py::module_& m) {
  py::class_<RobinMap>(m, "RobinMap")
      .def(py::init<std::size_t>(), py::arg("capacity"))
      .def("__len__", &RobinMap::size)
      .def("insert", &insert, py::arg("keys").noconvert())
      .def("find", &find, py::arg("keys").noconvert());
}

}  // namespace mpips
