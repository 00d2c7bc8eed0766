#include "register.hpp"

namespace mpips {

void register_kernels(pybind11::module_&) {}

}  // namespace mpips
