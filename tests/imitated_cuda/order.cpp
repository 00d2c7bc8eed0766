// Streams, and the order of their requests.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "imitation.hpp"

namespace imitated {

namespace {

const pid_t owner = getpid();
std::map<int, Stream> default_streams;
std::vector<Stream*> created_streams;  // never deleted: events name them
std::size_t n_streams = 0;

void begin(Stream& stream) {
  stream.number = n_streams++;
  stream.behind.resize(n_streams);
}

}  // namespace

std::recursive_mutex mutex;
std::map<char*, DeviceMemory> device_memory;
std::map<char*, std::size_t> pinned;
std::map<char*, std::size_t> registered;
std::vector<Use> uses;
Clock host;
Counts counts;
cudaError_t failure = cudaSuccess;
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

Counts::~Counts() {
  if (has_device() && std::getenv("IMITATED_CUDA_COUNTS") != nullptr)
    std::fprintf(stderr,
                 "imitated CUDA: %lld copies to the host and %lld to the device, %lld waited; "
                 "%lld pieces of memory registered, %lld released\n",
                 to_host, to_device, waited, n_registered, n_released);
}

bool has_device() { return getpid() == owner; }

long long setting(const char* name, long long otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "imitated CUDA: %s\n", why.c_str());
  std::abort();
}

cudaError_t result(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

void join(Clock& own, const Clock& other) {
  own.resize(std::max(own.size(), other.size()));
  for (std::size_t i = 0; i < other.size(); ++i) own[i] = std::max(own[i], other[i]);
}

bool is_behind(const Clock& clock, const Use& use) {
  return use.stream < clock.size() && clock[use.stream] >= use.place;
}

Stream* new_stream() {
  Stream* stream = new Stream;
  begin(*stream);
  created_streams.push_back(stream);
  return stream;
}

Stream& stream_of(cudaStream_t handle) {
  // 0, 1 and 2 are default streams; torch creates its others as non-blocking ones.
  if (reinterpret_cast<std::uintptr_t>(handle) > 2) return *reinterpret_cast<Stream*>(handle);
  Stream& stream = default_streams[current_device];
  if (stream.behind.empty()) begin(stream);
  return stream;
}

void make(Stream& stream, std::uint64_t place) {
  while (stream.n_made < place) {
    if (stream.waiting.empty()) stop("a stream waits for itself");
    std::function<void()> request = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    request();
    ++stream.n_made;
  }
}

void wait(Stream& stream) {
  make(stream, stream.n_requested);
  join(host, stream.behind);
}

void wait_for_all() {
  for (auto& [device, stream] : default_streams) wait(stream);
  for (Stream* stream : created_streams) wait(*stream);
}

void request(Stream& stream, std::function<void()> what) {
  stream.waiting.push_back(std::move(what));
  ++stream.n_requested;
  join(stream.behind, host);
  ++stream.behind[stream.number];
}

// The newest request of a stream reads or writes bytes.
void use(Stream& stream, const void* address, std::size_t n_bytes, bool writes, const char* what) {
  const Use now{static_cast<const char*>(address),
                static_cast<const char*>(address) + n_bytes,
                stream.number,
                stream.behind[stream.number],
                writes,
                what};
  std::vector<Use> kept;
  for (const Use& other : uses) {
    const bool meets = other.begin < now.end && now.begin < other.end;
    const bool is_before = is_behind(stream.behind, other);
    if (meets && (writes || other.writes) && !is_before) {
      const std::string text = std::string("race: ") + what + (writes ? " writes" : " reads") +
                               " what " + other.what + (other.writes ? " writes" : " reads") +
                               " on another stream, and nothing orders them";
      const char* races = std::getenv("IMITATED_CUDA_RACES");
      if (races == nullptr || std::strcmp(races, "print") != 0) stop(text);
      std::fprintf(stderr, "imitated CUDA: %s\n", text.c_str());
    }
    const bool is_within = now.begin <= other.begin && other.end <= now.end;
    const bool is_newer = is_within && is_before && (writes || other.writes == writes);
    if (!is_newer) kept.push_back(other);
  }
  kept.push_back(now);
  uses.swap(kept);
}

void forget(const char* begin, std::size_t n_bytes) {
  const auto is_there = [=](const Use& u) { return u.begin < begin + n_bytes && begin < u.end; };
  uses.erase(std::remove_if(uses.begin(), uses.end(), is_there), uses.end());
}

char* reach(const void* pointer, std::size_t n_bytes, bool* is_device) {
  char* address = static_cast<char*>(const_cast<void*>(pointer));
  const auto found = piece_at(device_memory, pointer);
  *is_device = found != device_memory.end() && address < found->first + found->second.n_bytes;
  if (!*is_device) return address;
  if (address + n_bytes > found->first + found->second.n_bytes) stop("use beyond an allocation");
  return found->second.reachable + (address - found->first);
}

}  // namespace imitated
