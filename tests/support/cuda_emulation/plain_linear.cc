// SPDX-License-Identifier: Apache-2.0
//
// The emulation's matrix products: the reference's, over memory that is the host's after all.

#include <memory>
#include <vector>

#include "common/check.h"
#include "kernels/cuda/cuda_status_internal.h"
#include "kernels/cuda/linear_engine_internal.h"
#include "tests/support/cuda_emulation/streams.h"

namespace lamina::kernels::cuda {
namespace {

class PlainEngine final : public LinearEngine {
 public:
  PlainEngine(DType compute_type, const Stream& stream)
      : dense_(MakeReferenceDense(compute_type)), stream_(stream) {}

  std::string description() const override { return "emulation"; }
  absl::Status Prepare(const DeviceLinear&) override { return absl::OkStatus(); }

  absl::Status Linear(const DeviceLinear& weights, const ActivationView& in, size_t first_out,
                      MatrixView<float> out) override {
    return CudaToStatus(cuda_emulation::Enqueue(static_cast<cudaStream_t>(stream_.get()),
                                                [this, &weights, in, first_out, out] {
                                                  Multiply(weights, in, first_out, out);
                                                }),
                        "PlainEngine::Linear");
  }

 private:
  void Multiply(const DeviceLinear& weights, const ActivationView& in, size_t first_out,
                MatrixView<float> out) {
    const absl::Span<const float> bias(weights.bias(),
                                       weights.bias() != nullptr ? weights.out_features() : 0);
    const auto packed = dense_->Pack(weights.weights(), dense_->compute_type(),
                                     weights.out_features(), weights.in_features(), bias);
    LAMINA_CHECK(packed.ok());
    dense_->Linear(**packed, in, first_out, out);
  }

  std::unique_ptr<Dense> dense_;
  const Stream& stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinearEngine>> MakeLinearEngine(DType compute_type,
                                                               absl::Span<std::byte>,
                                                               const Stream& stream) {
  return std::make_unique<PlainEngine>(compute_type, stream);
}

}  // namespace lamina::kernels::cuda
