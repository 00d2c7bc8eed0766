#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "process/deadline.hpp"
#include "shm/round_trip.hpp"
#include "shm/store_choice.hpp"

namespace py = pybind11;

namespace mpips {

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
      .def("found_in", &CoreDistance::found_in, py::arg("seconds"))
      .def_property_readonly("is_far", &CoreDistance::is_far);
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
