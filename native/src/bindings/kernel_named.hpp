#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "kernels/kernel_table.hpp"

namespace mpips {

// Return the table of this name, or the chosen one; raise mpips.errors.KernelError for a wrong
// name.
inline const KernelTable& table_named(const std::optional<std::string>& name) {
  try {
    return select_kernels(name ? name->c_str() : nullptr);
  } catch (const std::invalid_argument& error) {
    pybind11::set_error(pybind11::module_::import("mpips.errors").attr("KernelError"),
                        error.what());
    throw pybind11::error_already_set();
  }
}

}  // namespace mpips
