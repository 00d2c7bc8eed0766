#if MPIPS_X86

#include "kernels/loops.hpp"
#include "kernels/vector8.hpp"

namespace mpips {

extern const KernelTable avx2_kernels;
const KernelTable avx2_kernels = table_of<Vector8>("avx2");

}  // namespace mpips

#endif
