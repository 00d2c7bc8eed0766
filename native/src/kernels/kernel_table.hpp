#pragma once

#include <string>
#include <vector>

#include "kernels/kernel_types.hpp"
#include "kernels/optimizer_config.hpp"

// One KernelTable per instruction set, each in a file of its own. The environment variable
// MPIPS_KERNELS forces one by name; otherwise it is the widest that the CPU and the OS support.
namespace mpips {

extern const KernelTable scalar_kernels;
#if MPIPS_X86
extern const KernelTable avx2_kernels;
extern const KernelTable avx512_kernels;
#endif

// The names that this machine can run, plainest first.
std::vector<std::string> available_kernels();

// The table chosen at first use, for the life of the process. If MPIPS_KERNELS names none that can
// run it is the widest; `select_kernels(nullptr)` tells, and making an optimizer's config calls it.
const KernelTable& kernels() noexcept;

// A table by name, or (null) the chosen one. Changes nothing. Throws std::invalid_argument listing
// what there is: for an unknown or unavailable name, or (null) if MPIPS_KERNELS holds one.
const KernelTable& select_kernels(const char* name);

}  // namespace mpips
