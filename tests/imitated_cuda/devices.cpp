// Devices, errors, and kernels, which do not run.
#include <algorithm>
#include <cstring>
#include <utility>

#include "imitation.hpp"

using namespace imitated;

namespace {

const int n_devices = static_cast<int>(setting("IMITATED_CUDA_DEVICES", 1));
std::map<const void*, std::string> kernel_names;

cudaError_t launched(const void* function) {
  stop("nothing computes the kernel " + kernel_names[function]);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* n) {
  *n = n_devices;
  if (!has_device()) return result(cudaErrorInitializationError);
  return n_devices > 0 ? cudaSuccess : result(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  LOCK_AND_CHECK();
  if (device < 0 || device >= n_devices) return result(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheImitation"; }

const char* cudaGetErrorString(cudaError_t code) {
  switch (code) {
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer does not correspond to a registered memory region";
    case cudaErrorInitializationError:
      return "initialization error";
    default:
      return "an error of the imitation";
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device) {
  if (device >= n_devices) return result(cudaErrorInvalidDevice);
  *found = cudaDeviceProp{};
  std::strcpy(found->name, "Imitated device");
  found->totalGlobalMem = std::size_t{4} << 30;
  found->major = 9;
  found->multiProcessorCount = 2;
  found->warpSize = 32;
  found->maxThreadsPerBlock = 1024;
  found->maxThreadsPerMultiProcessor = 2048;
  std::fill(found->maxThreadsDim, found->maxThreadsDim + 3, 1024);
  std::fill(found->maxGridSize, found->maxGridSize + 3, 65535);
  found->sharedMemPerBlock = 48 << 10;
  found->regsPerBlock = 65536;
  found->textureAlignment = 512;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  *function = nullptr;
  if (status != nullptr) *status = cudaDriverEntryPointSymbolNotFound;
  return cudaErrorNotSupported;
}

void** __cudaRegisterFatBinary(void*) {
  static void* any;
  return &any;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*,
                            void*, void*, void*, int*) {
  kernel_names[function] = name;
}

unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, struct CUstream_st*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) { return cudaSuccess; }

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return launched(kernel);
}

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return launched(function);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) {
  return launched(function);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, std::size_t,
                                        cudaStream_t) {
  return launched(function);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  *found = cudaFuncAttributes{};
  found->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

}  // extern "C"
