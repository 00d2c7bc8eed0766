#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "process/deadline.hpp"
#include "ring/layout.hpp"
#include "shm/round_trip.hpp"
#include "shm/store_choice.hpp"

namespace py = pybind11;

namespace mpips {
namespace {

thread_local double simulated_s = 0.0;
double simulated_clock() noexcept { return simulated_s; }

// Let a StoreChoice make writes of so many floats whose lines take so many seconds, by ordinary
// stores and past the caches. Return how many floats of each write went past.
std::vector<std::size_t> choose_stores(const std::vector<std::size_t>& sizes,
                                       const std::vector<double>& cached_s,
                                       const std::vector<double>& past_s) {
  if (cached_s.size() != sizes.size() || past_s.size() != sizes.size())
    throw py::value_error("cached_s and past_s must have one value for each size");
  StoreChoice choice(simulated_clock);
  std::vector<std::size_t> past_floats;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    past_floats.push_back(0);
    choice.write(nullptr, sizes[i], line_floats, [&](std::size_t, std::size_t n, bool past) {
      simulated_s += static_cast<double>(n) / line_floats * (past ? past_s[i] : cached_s[i]);
      if (past) past_floats.back() += n;
    });
  }
  return past_floats;
}

}  // namespace

void register_process(py::module_& m) {
  py::class_<Deadline>(m, "Deadline")
      .def(py::init([](double seconds, std::string name, std::vector<std::string> command) {
             if (command.empty()) throw py::value_error("command must have at least one word");
             if (name.empty() || name.size() > 15)
               throw py::value_error("name = '" + name + "': must have 1 to 15 bytes");
             return std::make_unique<Deadline>(seconds, std::move(name), std::move(command));
           }),
           py::arg("seconds"), py::arg("name"), py::arg("command"))
      .def("cancel", &Deadline::cancel, WithoutGil());
  py::class_<CoreDistance>(m, "CoreDistance")
      .def(py::init<>())
      .def_property_readonly("is_due", &CoreDistance::is_due)
      .def("found", &CoreDistance::found)
      .def("found_in", &CoreDistance::found_in, py::arg("seconds"), py::arg("clock_s"))
      .def_property_readonly("is_far", &CoreDistance::is_far);
  m.def("choose_stores", &choose_stores, py::arg("sizes"), py::arg("cached_s"), py::arg("past_s"));
  m.def(
      "flag_round_trip",
      [](ArrayOf<std::uint64_t>& words, bool is_first, std::size_t n, double limit_s) {
        if (words.size() * sizeof(std::uint64_t) < sizeof(HandoverWords))
          throw py::value_error("words has " + std::to_string(words.size()) +
                                " values, expected at least " +
                                std::to_string(sizeof(HandoverWords) / sizeof(std::uint64_t)));
        auto& shared = *reinterpret_cast<HandoverWords*>(words.mutable_data());
        const ReleaseGil release;
        return flag_round_trip(shared, is_first, n, limit_s);
      },
      py::arg("words").noconvert(), py::arg("is_first"), py::arg("n"), py::arg("limit_s"));
}

}  // namespace mpips
