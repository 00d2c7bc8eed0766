#include "register.hpp"

namespace mpips {

void register_data(pybind11::module_&) {}

}  // namespace mpips
