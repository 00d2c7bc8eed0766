// Streams and events.
#include "imitation.hpp"

using namespace imitated;

namespace {

const int n_not_ready = static_cast<int>(setting("IMITATED_CUDA_QUERIES", 3));

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int) {
  LOCK_AND_CHECK();
  *handle = reinterpret_cast<cudaStream_t>(new_stream());
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  LOCK_AND_CHECK();
  wait(stream_of(handle));
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  LOCK_AND_CHECK();
  Stream& stream = stream_of(handle);
  if (stream.n_made < stream.n_requested) return cudaErrorNotReady;
  join(host, stream.behind);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  LOCK_AND_CHECK();
  const Event& awaited = *reinterpret_cast<Event*>(event);
  if (awaited.stream == nullptr) return cudaSuccess;
  Stream& stream = stream_of(handle);
  request(stream, [of = awaited.stream, place = awaited.place] { make(*of, place); });
  join(stream.behind, awaited.behind);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, std::size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  LOCK_AND_CHECK();
  request(stream_of(handle), [=] { function(data); });
  return cudaSuccess;
}

// Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  LOCK_AND_CHECK();
  Stream& stream = stream_of(handle);
  join(stream.behind, host);
  *reinterpret_cast<Event*>(event) = {&stream, stream.n_requested, stream.behind, 0};
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  LOCK_AND_CHECK();
  const Event& event = *reinterpret_cast<Event*>(handle);
  if (event.stream == nullptr) return cudaSuccess;
  make(*event.stream, event.place);
  join(host, event.behind);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  LOCK_AND_CHECK();
  Event& event = *reinterpret_cast<Event*>(handle);
  const bool has_ended = event.stream == nullptr || event.stream->n_made >= event.place;
  if (!has_ended && ++event.n_queries <= n_not_ready) return cudaErrorNotReady;
  return cudaEventSynchronize(handle);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  LOCK_AND_CHECK();
  wait_for_all();
  return cudaSuccess;
}

}  // extern "C"
