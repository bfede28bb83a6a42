// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/row_sampler.h"

#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "kernels/cuda/sampling.h"

namespace lamina::kernels::cuda {
namespace {

constexpr uint64_t kPieceAlignment = 256;  // Alignment of a MemoryArena's pieces.
// The most pieces that a CudaSampler takes from each arena.
constexpr uint64_t kPieces = 16;

class CudaRowSampler final : public RowSampler {
 public:
  CudaRowSampler(uint32_t rows_max, MemoryArena device_arena, MemoryArena pinned_arena)
      : device_arena_(std::move(device_arena)), pinned_arena_(std::move(pinned_arena)) {
    requests_.reserve(rows_max);
  }

  absl::Status MakeSampler(const CudaSamplerOptions& options, const Stream& stream) {
    LAMINA_ASSIGN_OR_RETURN(sampler_,
                            CudaSampler::Create(options, device_arena_, pinned_arena_, stream));
    return absl::OkStatus();
  }

  bool Takes(const SamplingParams& params) const override {
    return params.logprobs < 0 && params.form.any() && params.allowed_tokens.empty() &&
           params.logit_bias.size() <= kBiasesOfRow;
  }

  absl::Status Sample(const MatrixView<const float>& logits,
                      absl::Span<const SampleRequest> rows) override {
    requests_.clear();
    for (const SampleRequest& row : rows) {
      requests_.push_back({.params = row.params != nullptr ? row.params : &left_out_,
                           .prompt = row.prompt,
                           .output = row.output,
                           .position = row.position});
    }
    return sampler_->Sample(logits.data, logits.stride, requests_);
  }

  absl::Span<const TokenId> tokens() const override { return sampler_->results(); }

 private:
  const SamplingParams left_out_;  // Greedy: the cheapest.
  MemoryArena device_arena_;
  MemoryArena pinned_arena_;
  std::unique_ptr<CudaSampler> sampler_;
  std::vector<SampleRequest> requests_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowSampler>> MakeCudaRowSampler(const RowSamplerOptions& options,
                                                               const Stream& stream) {
  const CudaSamplerOptions sampler_options = {
      .vocabulary = options.vocabulary,
      .rows_max = options.rows_max,
      .tokens_max = options.rows_max * options.sequence_tokens_max,
      .biases_max = options.rows_max * kBiasesOfRow};
  LAMINA_ASSIGN_OR_RETURN(
      MemoryArena device_arena,
      MemoryArena::Create(ArenaKind::kDevice,
                          CudaSampler::DeviceBytes(sampler_options) + kPieces * kPieceAlignment));
  LAMINA_ASSIGN_OR_RETURN(
      MemoryArena pinned_arena,
      MemoryArena::Create(ArenaKind::kPinnedHost,
                          CudaSampler::PinnedBytes(sampler_options) + kPieces * kPieceAlignment));
  auto sampler = std::make_unique<CudaRowSampler>(options.rows_max, std::move(device_arena),
                                                  std::move(pinned_arena));
  LAMINA_RETURN_IF_ERROR(sampler->MakeSampler(sampler_options, stream));
  return sampler;
}

}  // namespace lamina::kernels::cuda
