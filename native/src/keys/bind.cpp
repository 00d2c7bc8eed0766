#include "register.hpp"

namespace mpips {

void register_keys(pybind11::module_&) {}

}  // namespace mpips
