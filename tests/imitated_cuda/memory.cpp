// Memory of devices and of the host, and copies.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "imitation.hpp"

namespace imitated {
namespace {

const long long fail_at = setting("IMITATED_CUDA_FAIL_AT", 0);

bool is_registered(const void* pointer, std::size_t n_bytes) {
  const char* end = static_cast<const char*>(pointer) + n_bytes;
  for (auto* pieces : {&pinned, &registered}) {
    const auto found = piece_at(*pieces, pointer);
    if (found != pieces->end() && end <= found->first + found->second) return true;
  }
  return false;
}

cudaError_t copy(void* to, const void* from, std::size_t n_bytes, cudaStream_t handle) {
  LOCK_AND_CHECK();
  static long long n_copies = 0;
  if (fail_at != 0 && ++n_copies == fail_at) return result(failure = cudaErrorLaunchFailure);
  bool to_device = false;
  bool from_device = false;
  char* target = reach(to, n_bytes, &to_device);
  const char* source = reach(from, n_bytes, &from_device);
  Stream& stream = stream_of(handle);
  request(stream, [=] { std::memmove(target, source, n_bytes); });
  use(stream, from, n_bytes, false, "a copy");
  use(stream, to, n_bytes, true, "a copy");
  const bool is_late =
      (to_device || is_registered(to, n_bytes)) && (from_device || is_registered(from, n_bytes));
  if (!is_late) {
    ++counts.waited;
    wait(stream);
  } else if (!to_device) {
    ++counts.to_host;
  } else if (!from_device) {
    ++counts.to_device;
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace imitated

using namespace imitated;

extern "C" {

// For imitated_kernels.py: bytes that a kernel reads, at this place of its stream. The host does
// not wait for them in the sense of CUDA: it is not behind the stream afterwards.
int imitated_cuda_read(void* to, const void* from, std::size_t n_bytes, cudaStream_t handle) {
  LOCK_AND_CHECK();
  bool is_device = false;
  const char* source = reach(from, n_bytes, &is_device);
  if (!is_device) stop("a kernel reads memory that is not that of a device");
  Stream& stream = stream_of(handle);
  request(stream, [] {});
  make(stream, stream.n_requested);
  use(stream, from, n_bytes, false, "a kernel");
  std::memcpy(to, source, n_bytes);
  return 0;
}

// For imitated_kernels.py: bytes that a kernel writes when its stream is waited for.
int imitated_cuda_write(void* to, const void* from, std::size_t n_bytes, cudaStream_t handle) {
  LOCK_AND_CHECK();
  bool is_device = false;
  char* target = reach(to, n_bytes, &is_device);
  if (!is_device) stop("a kernel writes memory that is not that of a device");
  Stream& stream = stream_of(handle);
  std::string own(static_cast<const char*>(from), n_bytes);
  request(stream, [target, own = std::move(own)] { std::memcpy(target, own.data(), own.size()); });
  use(stream, to, n_bytes, true, "a kernel");
  return 0;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{4} << 30;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, std::size_t n_bytes) {
  LOCK_AND_CHECK();
  const std::size_t whole = (std::max<std::size_t>(n_bytes, 1) + kPage - 1) / kPage * kPage;
  const int file = memfd_create("imitated-cuda", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(whole)) != 0)
    return result(cudaErrorMemoryAllocation);
  void* reachable = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  void* address = mmap(nullptr, whole, PROT_NONE, MAP_SHARED, file, 0);
  close(file);
  if (reachable == MAP_FAILED || address == MAP_FAILED) return result(cudaErrorMemoryAllocation);
  std::memset(reachable, 0xFF, whole);
  device_memory[static_cast<char*>(address)] = {whole, current_device,
                                                static_cast<char*>(reachable)};
  *pointer = address;
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  LOCK_AND_CHECK();
  if (pointer == nullptr) return cudaSuccess;
  const auto found = device_memory.find(static_cast<char*>(pointer));
  if (found == device_memory.end()) return result(cudaErrorInvalidValue);
  wait_for_all();
  forget(found->first, found->second.n_bytes);
  munmap(found->second.reachable, found->second.n_bytes);
  munmap(pointer, found->second.n_bytes);
  device_memory.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t n_bytes, unsigned) {
  LOCK_AND_CHECK();
  *pointer = std::aligned_alloc(kPage, (n_bytes + kPage - 1) / kPage * kPage);
  if (*pointer == nullptr) return result(cudaErrorMemoryAllocation);
  pinned[static_cast<char*>(*pointer)] = n_bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  LOCK_AND_CHECK();
  const auto found = pinned.find(static_cast<char*>(pointer));
  if (found == pinned.end()) return result(cudaErrorInvalidValue);
  wait_for_all();
  forget(found->first, found->second);
  pinned.erase(found);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, std::size_t n_bytes, unsigned) {
  LOCK_AND_CHECK();
  const auto page = [](const char* p) { return reinterpret_cast<std::uintptr_t>(p) / kPage; };
  char* begin = static_cast<char*>(pointer);
  for (const auto& [other, n] : registered)
    if (page(begin) <= page(other + n - 1) && page(other) <= page(begin + n_bytes - 1))
      return result(cudaErrorHostMemoryAlreadyRegistered);
  registered[begin] = n_bytes;
  ++counts.n_registered;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  LOCK_AND_CHECK();
  const auto found = registered.find(static_cast<char*>(pointer));
  if (found == registered.end()) return result(cudaErrorHostMemoryNotRegistered);
  for (const Use& u : uses)
    if (u.begin < found->first + found->second && found->first < u.end && !is_behind(host, u))
      stop("memory is released while a copy may use it");
  forget(found->first, found->second);
  registered.erase(found);
  ++counts.n_released;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* pointer) {
  LOCK_AND_CHECK();
  *found = cudaPointerAttributes{};
  bool is_device = false;
  reach(pointer, 1, &is_device);
  if (is_device) {
    found->type = cudaMemoryTypeDevice;
    found->device = piece_at(device_memory, pointer)->second.device;
    found->devicePointer = const_cast<void*>(pointer);
  } else if (is_registered(pointer, 1)) {
    found->type = cudaMemoryTypeHost;
    found->hostPointer = found->devicePointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n_bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return copy(to, from, n_bytes, stream);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t n_bytes,
                                cudaStream_t stream) {
  return copy(to, from, n_bytes, stream);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t n_bytes, cudaMemcpyKind) {
  const cudaError_t code = copy(to, from, n_bytes, nullptr);
  return code != cudaSuccess ? code : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t n_bytes, cudaStream_t handle) {
  LOCK_AND_CHECK();
  bool is_device = false;
  char* target = reach(to, n_bytes, &is_device);
  Stream& stream = stream_of(handle);
  request(stream, [=] { std::memset(target, value, n_bytes); });
  use(stream, to, n_bytes, true, "a memset");
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, std::size_t n_bytes) {
  const cudaError_t code = cudaMemsetAsync(to, value, n_bytes, nullptr);
  return code != cudaSuccess ? code : cudaStreamSynchronize(nullptr);
}

}  // extern "C"
