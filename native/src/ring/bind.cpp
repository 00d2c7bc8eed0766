#include "register.hpp"

namespace mpips {

void register_ring(pybind11::module_&) {}

}  // namespace mpips
