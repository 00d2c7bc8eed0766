#pragma once

#include <string>
#include <vector>

#include "kernels/kernel_types.hpp"
#include "kernels/optimizer_config.hpp"

// One KernelTable per instruction set, each in a file of its own. The environment variable
// MPIPS_KERNELS forces one by name; the default is the widest that the CPU and the OS support.
namespace mpips {

extern const KernelTable scalar_kernels;
#if MPIPS_X86
extern const KernelTable avx2_kernels;
extern const KernelTable avx512_kernels;
#endif

// Return the names of the tables that this machine can run, scalar first, the widest last.
std::vector<std::string> available_kernels();

// Return the table chosen at first use; it stays the same until the process ends. If MPIPS_KERNELS
// names a table that cannot run, this is the widest one: `select_kernels(nullptr)` reports the
// error, and the constructor of an optimizer's config calls it.
const KernelTable& kernels() noexcept;

// Return the table of this name or (null) the chosen one; change nothing. Throws
// std::invalid_argument that lists the available names if the name, or (null) MPIPS_KERNELS, is
// unknown or unavailable.
const KernelTable& select_kernels(const char* name);

}  // namespace mpips
