// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/graph.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_status_internal.h"

namespace lamina::kernels::cuda {
namespace {

cudaStream_t HandleOf(const Stream& stream) { return static_cast<cudaStream_t>(stream.get()); }

absl::Status Instantiate(cudaGraph_t graph, const Stream& stream, cudaGraphExec_t& executable) {
  LAMINA_RETURN_IF_ERROR(
      CudaToStatus(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate"));
  // Now, and not at the first launch.
  return CudaToStatus(cudaGraphUpload(executable, HandleOf(stream)), "cudaGraphUpload");
}

}  // namespace

absl::StatusOr<Graph> Graph::Capture(const Stream& stream, absl::FunctionRef<absl::Status()> work) {
  LAMINA_RETURN_IF_ERROR(
      CudaToStatus(cudaStreamBeginCapture(HandleOf(stream), cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture"));
  absl::Status status = work();
  cudaGraph_t captured = nullptr;  // Ended whatever `work` said, or the stream would go on.
  status.Update(
      CudaToStatus(cudaStreamEndCapture(HandleOf(stream), &captured), "cudaStreamEndCapture"));
  Graph graph;
  if (status.ok()) {
    cudaGraphExec_t executable = nullptr;
    status = Instantiate(captured, stream, executable);
    graph.handle_ = executable;
  }
  if (captured != nullptr) {
    status.Update(CudaToStatus(cudaGraphDestroy(captured), "cudaGraphDestroy"));
  }
  LAMINA_RETURN_IF_ERROR(status);
  return graph;
}

Graph::Graph(Graph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Graph::~Graph() {
  if (handle_ == nullptr) {
    return;
  }
  const absl::Status destroyed = CudaToStatus(
      cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_)), "cudaGraphExecDestroy");
  if (!destroyed.ok()) {
    LogWarning(destroyed.message());
  }
}

absl::Status Graph::Launch(const Stream& stream) const {
  return CudaToStatus(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), HandleOf(stream)),
                      "cudaGraphLaunch");
}

}  // namespace lamina::kernels::cuda
