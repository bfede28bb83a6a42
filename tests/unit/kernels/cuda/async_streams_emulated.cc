// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulation/streams.h"
#include "tests/unit/kernels/cuda/async_streams.h"

namespace lamina::kernels::cuda {

std::shared_ptr<void> MakeStreamsAsync() {
  return std::make_shared<cuda_emulation::ThreadedStreams>();
}

}  // namespace lamina::kernels::cuda
