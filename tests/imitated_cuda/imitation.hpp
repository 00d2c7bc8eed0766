// An imitation of the CUDA runtime (libcudart.so.13) for torch's CUDA build, without a device.
//
// The host cannot touch memory of a device: its addresses are PROT_NONE, and copies reach it by a
// second mapping. It begins as NaN.
//
// A request on a stream is executed when the host or another stream waits for it, and not before. A
// query of an event is answered by "not ready" a few times. So a missing wait gives old bytes, in
// every run.
//
// Two uses of the same bytes by different streams that no event and no wait of the host orders are
// a race, which ends the process. Vector clocks (Mattern, 1989) tell what a request is ordered
// behind.
//
// Copies from and to memory that is not registered wait, as with CUDA. Whole pages are registered,
// once. A forked child has no device.
//
// Kernels do not run: the first launch ends the process with its name. imitated_kernels.py computes
// on the CPU instead.
//
// Environment:
//   IMITATED_CUDA_DEVICES       number of devices; 1
//   IMITATED_CUDA_QUERIES       answers of "not ready" for an event; 3
//   IMITATED_CUDA_RACES=print   go on after a race
//   IMITATED_CUDA_FAIL_AT=n     the n-th copy fails, and with it all that follows
//   IMITATED_CUDA_COUNTS=1      print what the process did, at its end
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace imitated {

// Number of requests of each stream that end before something, by the number of the stream.
using Clock = std::vector<std::uint64_t>;

struct Stream {
  std::size_t number = 0;
  std::uint64_t n_made = 0;
  std::uint64_t n_requested = 0;
  Clock behind;  // its newest request, and all that this one is ordered behind
  std::deque<std::function<void()>> waiting;
};

struct Event {
  Stream* stream = nullptr;
  std::uint64_t place = 0;  // number of requests of the stream that end before it
  Clock behind;
  int n_queries = 0;
};

struct Use {
  const char* begin;
  const char* end;
  std::size_t stream;
  std::uint64_t place;
  bool writes;
  const char* what;
};

struct DeviceMemory {
  std::size_t n_bytes;
  int device;
  char* reachable;  // the second mapping
};

struct Counts {
  long long to_host = 0, to_device = 0, waited = 0, n_registered = 0, n_released = 0;
  ~Counts();  // prints them
};

const long kPage = 4096;

long long setting(const char* name, long long otherwise);
[[noreturn]] void stop(const std::string& why);

// Stores an error for cudaGetLastError, and returns it.
cudaError_t result(cudaError_t code);

// All that follows is used under the mutex. A stream that waits for others takes it again.
extern std::recursive_mutex mutex;
extern std::map<char*, DeviceMemory> device_memory;
extern std::map<char*, std::size_t> pinned;
extern std::map<char*, std::size_t> registered;
extern std::vector<Use> uses;
extern Clock host;  // what its threads have waited for
extern Counts counts;
extern cudaError_t failure;  // of all calls, from the first one on
extern thread_local int current_device;
extern thread_local cudaError_t last_error;

// True in the process that was started, not in its forked children.
bool has_device();

#define LOCK_AND_CHECK()                                                              \
  std::lock_guard<std::recursive_mutex> lock(imitated::mutex);                        \
  if (!imitated::has_device()) return imitated::result(cudaErrorInitializationError); \
  if (imitated::failure != cudaSuccess) return imitated::result(imitated::failure)

void join(Clock& own, const Clock& other);
bool is_behind(const Clock& clock, const Use& use);

Stream* new_stream();
Stream& stream_of(cudaStream_t handle);

// Adds a request to a stream; `use` says which bytes the newest one reads or writes.
void request(Stream& stream, std::function<void()> what);
void use(Stream& stream, const void* address, std::size_t n_bytes, bool writes, const char* what);

// Makes the requests of a stream before a place.
void make(Stream& stream, std::uint64_t place);

// Lets the host wait for a stream, or for all of them.
void wait(Stream& stream);
void wait_for_all();

// Forgets uses of memory that is released.
void forget(const char* begin, std::size_t n_bytes);

// Returns the piece of a map from addresses that begins last before an address.
template <class Pieces>
typename Pieces::iterator piece_at(Pieces& pieces, const void* address) {
  auto found = pieces.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  return found == pieces.begin() ? pieces.end() : std::prev(found);
}

// Returns where the host reaches memory; sets whether it is that of a device.
char* reach(const void* pointer, std::size_t n_bytes, bool* is_device);

}  // namespace imitated
