// SPDX-License-Identifier: Apache-2.0
//
// The emulation's matrix products: the reference's, over memory that is the host's after all.

#include <memory>
#include <vector>

#include "common/status_macros.h"
#include "kernels/cuda/linear_engine_internal.h"

namespace lamina::kernels::cuda {
namespace {

class PlainEngine final : public LinearEngine {
 public:
  explicit PlainEngine(DType compute_type) : dense_(MakeReferenceDense(compute_type)) {}

  std::string description() const override { return "emulation"; }
  absl::Status Prepare(const DeviceLinear&) override { return absl::OkStatus(); }

  absl::Status Linear(const DeviceLinear& weights, const ActivationView& in, size_t first_out,
                      MatrixView<float> out) override {
    const absl::Span<const float> bias(weights.bias(),
                                       weights.bias() != nullptr ? weights.out_features() : 0);
    LAMINA_ASSIGN_OR_RETURN(const auto packed,
                            dense_->Pack(weights.weights(), dense_->compute_type(),
                                         weights.out_features(), weights.in_features(), bias));
    dense_->Linear(*packed, in, first_out, out);
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<Dense> dense_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinearEngine>> MakeLinearEngine(DType compute_type,
                                                               absl::Span<std::byte>,
                                                               const Stream&) {
  return std::make_unique<PlainEngine>(compute_type);
}

}  // namespace lamina::kernels::cuda
