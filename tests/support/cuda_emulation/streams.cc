// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulation/streams.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "tests/support/cuda_emulation/emulation.h"

namespace lamina::cuda_emulation {
namespace {

// Those that this thread captures.
thread_local std::vector<cudaStream_t> capturing;
std::atomic<bool> instantiations_fail{false};

cudaError_t Spoil(cudaError_t error) {
  for (const cudaStream_t stream : capturing) {
    stream->spoilt = true;
  }
  return error;
}

}  // namespace

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr && !capturing.empty()) {
    return Spoil(cudaErrorStreamCaptureImplicit);
  }
  if (stream == nullptr || stream->capture == nullptr) {
    work();
    return cudaSuccess;
  }
  if (stream->spoilt) {
    return cudaErrorStreamCaptureInvalidated;
  }
  stream->capture->work.push_back(std::move(work));
  return cudaSuccess;
}

cudaError_t CheckNotCapturing() {
  return capturing.empty() ? cudaSuccess : Spoil(cudaErrorStreamCaptureUnsupported);
}

cudaError_t BeginCapture(cudaStream_t stream) {
  if (stream == nullptr) {
    return cudaErrorStreamCaptureUnsupported;
  }
  if (stream->capture != nullptr) {
    return cudaErrorInvalidValue;
  }
  stream->capture = std::make_unique<EmulatedGraph>();
  stream->spoilt = false;
  capturing.push_back(stream);
  return cudaSuccess;
}

cudaError_t EndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream == nullptr || stream->capture == nullptr) {
    return cudaErrorInvalidValue;
  }
  capturing.erase(std::remove(capturing.begin(), capturing.end(), stream), capturing.end());
  const std::unique_ptr<EmulatedGraph> captured = std::move(stream->capture);
  if (stream->spoilt) {
    return cudaErrorStreamCaptureInvalidated;
  }
  *graph = new EmulatedGraph(std::move(*captured));
  return cudaSuccess;
}

cudaError_t Synchronize(cudaStream_t stream) {
  if (stream != nullptr && stream->capture != nullptr) {
    stream->spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return TakeFailure() ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t RecordEvent(cudaEvent_t event, cudaStream_t stream) {
  event->captured = stream != nullptr && stream->capture != nullptr;
  return cudaSuccess;
}

cudaError_t SynchronizeEvent(cudaEvent_t event) {
  return event->captured ? Spoil(cudaErrorCapturedEvent) : cudaSuccess;
}

cudaError_t Instantiate(cudaGraphExec_t* executable, cudaGraph_t graph) {
  if (const cudaError_t error = CheckNotCapturing(); error != cudaSuccess) {
    return error;
  }
  if (instantiations_fail.load()) {
    return cudaErrorMemoryAllocation;
  }
  *executable = new EmulatedGraphExec{.work = graph->work};
  return cudaSuccess;
}

void FailInstantiations(bool fail) { instantiations_fail.store(fail); }

}  // namespace lamina::cuda_emulation
