// SPDX-License-Identifier: Apache-2.0
//
// Streams, events and graphs of the emulation. What is put into a stream is done at once, unless
// the stream captures: then it is taken down, with the arguments it has, and done at each launch of
// the graph. Streams that are made while a ThreadedStreams lives do their work in a thread of their
// own, behind the caller's back as a device does: kernels that poll need not keep the caller.
//
// What takes or gives back memory waits for the work of all streams with threads, and meanwhile no
// call goes on that puts work into a stream: a device may do so, and then who makes such a call
// while a kernel polls for what another thread is to launch waits for ever.
//
// Captures are thread-local (cudaStreamCaptureModeThreadLocal): while a thread captures, its calls
// that would wait or take memory fail, as on a device, and spoil the capture.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/support/cuda_emulation/cuda_error.h"

struct EmulatedGraph {
  std::vector<std::function<void()>> work;
};
struct EmulatedGraphExec {
  std::vector<std::function<void()>> work;
};
namespace lamina::cuda_emulation {
class StreamThread;
}
struct EmulatedStream {
  std::unique_ptr<EmulatedGraph> capture;  // Null: it does not capture.
  bool spoilt = false;
  std::shared_ptr<lamina::cuda_emulation::StreamThread> thread;  // Null: the caller's.
};
struct EmulatedEvent {
  bool captured = false;  // It was recorded last in a stream that captured.
  // The stream's; null: passed.
  std::shared_ptr<lamina::cuda_emulation::StreamThread> thread;
  uint64_t behind = 0;  // Works of it.
};

using cudaStream_t = EmulatedStream*;
using cudaEvent_t = EmulatedEvent*;
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = EmulatedGraphExec*;

namespace lamina::cuda_emulation {

// Streams that are created while one lives have threads. Nested ones count. Any thread.
class ThreadedStreams {
 public:
  ThreadedStreams();
  ThreadedStreams(const ThreadedStreams&) = delete;
  ThreadedStreams& operator=(const ThreadedStreams&) = delete;
  ~ThreadedStreams();
};

cudaStream_t CreateStream();
// Waits until its work is done; on a device that goes on by itself.
void DestroyStream(cudaStream_t stream);
// cudaErrorNotReady while there is work.
cudaError_t Query(cudaStream_t stream);

// Does `work`, or takes it down, or gives it to the stream's thread. Null is the stream that waits
// for all others; the emulation's waits for none that has a thread.
cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work);

// What a call that may not be made by a thread that captures begins with.
cudaError_t CheckNotCapturing();

// Waits for what all streams have to do now.
cudaError_t WaitForDevice();

cudaError_t BeginCapture(cudaStream_t stream);
cudaError_t EndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t Synchronize(cudaStream_t stream);
cudaError_t RecordEvent(cudaEvent_t event, cudaStream_t stream);
cudaError_t SynchronizeEvent(cudaEvent_t event);
cudaError_t Instantiate(cudaGraphExec_t* executable, cudaGraph_t graph);

// Whether instantiations of graphs fail, with cudaErrorMemoryAllocation. Any thread.
void FailInstantiations(bool fail);

}  // namespace lamina::cuda_emulation
