#include "register.hpp"

namespace mpips {

void register_server(pybind11::module_&) {}

}  // namespace mpips
