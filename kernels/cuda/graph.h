// SPDX-License-Identifier: Apache-2.0
//
// Graph: work of a stream that was captured once and is launched as a whole.
//
// What is captured runs later with the pointers and sizes it was captured with, and with what
// memory holds then. Captured work may launch kernels and copy, asynchronously. It may not take or
// free memory, nor wait: such calls fail (cudaErrorStreamCaptureUnsupported) and end the capture.
//
// Captures are thread-local: other threads do as they like meanwhile.
//
// Threading: the stream's thread.
// Memory:    capturing takes memory of the host and the device; a launch takes none.

#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"

namespace lamina::kernels::cuda {

// Move-only. Must have run to its end when it is destroyed.
class Graph {
 public:
  // Captures what `work` puts into the stream; nothing of it runs. Kernels must have been launched
  // once before: loading them takes memory.
  // Errors: that of `work`; those of CUDA's, with their names. The stream is as it was.
  static absl::StatusOr<Graph> Capture(const Stream& stream,
                                       absl::FunctionRef<absl::Status()> work);
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  // Puts all of it into the stream. Does not wait.
  absl::Status Launch(const Stream& stream) const;

 private:
  Graph() = default;
  void* handle_ = nullptr;  // A cudaGraphExec_t.
};

}  // namespace lamina::kernels::cuda
