// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sampling.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_status_internal.h"
#include "kernels/cuda/sampling_kernels.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr uint32_t kVocabularyMax = 1u << 19;  // Sums of weights fit into 63 bits.
constexpr uint64_t kAlignment = 256;

uint64_t Padded(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t HandedOver(const CudaSamplerOptions& o) {
  return Padded(o.rows_max * sizeof(SampleRow)) + Padded(o.tokens_max * sizeof(int32_t)) +
         Padded(o.biases_max * sizeof(TokenBias)) + Padded(o.rows_max * sizeof(int32_t));
}

bool Penalises(const SamplingParams& p) {
  return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

absl::Status CheckLimit(absl::string_view what, uint64_t value, uint64_t limit) {
  if (value <= limit) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("a call samples ", value, " ", what, "; this CudaSampler was made for ", limit));
}

class CudaSamplerImpl final : public CudaSampler {
 public:
  CudaSamplerImpl(const CudaSamplerOptions& options, const Stream& stream, Event fetched)
      : options_(options), stream_(stream), fetched_(std::move(fetched)) {}

  absl::Status Take(MemoryArena& device, MemoryArena& pinned) {
    LAMINA_ASSIGN_OR_RETURN(rows_, device.Take<SampleRow>(options_.rows_max));
    LAMINA_ASSIGN_OR_RETURN(tokens_, device.Take<int32_t>(options_.tokens_max));
    LAMINA_ASSIGN_OR_RETURN(biases_, device.Take<TokenBias>(options_.biases_max));
    LAMINA_ASSIGN_OR_RETURN(results_, device.Take<int32_t>(options_.rows_max));
    LAMINA_ASSIGN_OR_RETURN(pinned_rows_, pinned.Take<SampleRow>(options_.rows_max));
    LAMINA_ASSIGN_OR_RETURN(pinned_tokens_, pinned.Take<int32_t>(options_.tokens_max));
    LAMINA_ASSIGN_OR_RETURN(pinned_biases_, pinned.Take<TokenBias>(options_.biases_max));
    LAMINA_ASSIGN_OR_RETURN(pinned_results_, pinned.Take<int32_t>(options_.rows_max));
    const uint64_t cells = uint64_t{options_.rows_max} * options_.vocabulary;
    LAMINA_ASSIGN_OR_RETURN(adjusted_, device.Take<float>(cells));
    LAMINA_ASSIGN_OR_RETURN(counts_, device.Take<uint32_t>(cells));
    LAMINA_RETURN_IF_ERROR(FillAsync(counts_, 0, cells * sizeof(uint32_t), stream_));
    return stream_.Synchronize();
  }

  absl::Status Sample(const float* logits, size_t stride,
                      absl::Span<const SampleRequest> requests) override {
    LAMINA_RETURN_IF_ERROR(CheckRequests(requests));
    count_ = requests.size();
    if (requests.empty()) {
      return absl::OkStatus();
    }
    LAMINA_RETURN_IF_ERROR(fetched_.Synchronize());
    uint32_t tokens = 0;
    uint32_t biases = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      pinned_rows_[i] = HandOver(requests[i], tokens, biases);
    }
    LAMINA_RETURN_IF_ERROR(
        CopyAsync(rows_, pinned_rows_, requests.size() * sizeof(SampleRow), stream_));
    LAMINA_RETURN_IF_ERROR(CopyAsync(tokens_, pinned_tokens_, tokens * sizeof(int32_t), stream_));
    LAMINA_RETURN_IF_ERROR(CopyAsync(biases_, pinned_biases_, biases * sizeof(TokenBias), stream_));
    LAMINA_RETURN_IF_ERROR(fetched_.Record(stream_));
    const SampleArguments arguments = {.vocabulary = options_.vocabulary,
                                       .logits = logits,
                                       .stride = stride,
                                       .rows = rows_,
                                       .tokens = tokens_,
                                       .biases = biases_,
                                       .adjusted = adjusted_,
                                       .counts = counts_,
                                       .results = results_};
    LAMINA_RETURN_IF_ERROR(
        CudaToStatus(SampleRows(arguments, static_cast<uint32_t>(requests.size()),
                                static_cast<cudaStream_t>(stream_.get())),
                     "SampleRows"));
    return CopyAsync(pinned_results_, results_, requests.size() * sizeof(int32_t), stream_);
  }

  absl::Span<const TokenId> results() const override { return {pinned_results_, count_}; }

 private:
  absl::Status CheckRequests(absl::Span<const SampleRequest> requests) const {
    uint64_t tokens = 0;
    uint64_t biases = 0;
    for (const SampleRequest& request : requests) {
      if (request.params->logprobs >= 0) {
        return absl::InvalidArgumentError(
            "logprobs: not computed on the device; sample such rows with kernels/sampling.h");
      }
      tokens += Penalises(*request.params) ? request.prompt.size() + request.output.size() : 0;
      biases += request.params->logit_bias.size();
    }
    LAMINA_RETURN_IF_ERROR(CheckLimit("rows", requests.size(), options_.rows_max));
    LAMINA_RETURN_IF_ERROR(CheckLimit("tokens with penalties", tokens, options_.tokens_max));
    return CheckLimit("biases", biases, options_.biases_max);
  }

  // Puts the request's tokens and biases behind those of earlier ones.
  SampleRow HandOver(const SampleRequest& request, uint32_t& tokens, uint32_t& biases) {
    const SamplingParams& p = *request.params;
    SampleRow row = {.temperature = p.temperature,
                     .top_k = p.top_k,
                     .top_p = p.top_p,
                     .min_p = p.min_p,
                     .repetition_penalty = p.repetition_penalty,
                     .presence_penalty = p.presence_penalty,
                     .frequency_penalty = p.frequency_penalty,
                     .tokens = tokens,
                     .biases = biases,
                     .bias_count = static_cast<uint32_t>(p.logit_bias.size()),
                     .seed = p.seed,
                     .position = request.position};
    if (Penalises(p)) {
      row.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
      row.output_tokens = static_cast<uint32_t>(request.output.size());
      std::copy(request.prompt.begin(), request.prompt.end(), pinned_tokens_ + tokens);
      tokens += row.prompt_tokens;
      std::copy(request.output.begin(), request.output.end(), pinned_tokens_ + tokens);
      tokens += row.output_tokens;
    }
    for (const auto& [token, bias] : p.logit_bias) {
      pinned_biases_[biases++] = {.token = token, .bias = bias};
    }
    return row;
  }

  const CudaSamplerOptions options_;
  const Stream& stream_;
  Event fetched_;  // The device has read what was handed over.
  size_t count_ = 0;
  SampleRow* rows_ = nullptr;
  int32_t* tokens_ = nullptr;
  TokenBias* biases_ = nullptr;
  int32_t* results_ = nullptr;
  SampleRow* pinned_rows_ = nullptr;
  int32_t* pinned_tokens_ = nullptr;
  TokenBias* pinned_biases_ = nullptr;
  int32_t* pinned_results_ = nullptr;
  float* adjusted_ = nullptr;   // [rows_max, vocabulary]
  uint32_t* counts_ = nullptr;  // [rows_max, vocabulary], zero between calls
};

}  // namespace

uint64_t CudaSampler::DeviceBytes(const CudaSamplerOptions& o) {
  const uint64_t cells = uint64_t{o.rows_max} * o.vocabulary;
  return HandedOver(o) + Padded(cells * sizeof(float)) + Padded(cells * sizeof(uint32_t));
}

uint64_t CudaSampler::PinnedBytes(const CudaSamplerOptions& o) { return HandedOver(o); }

absl::StatusOr<std::unique_ptr<CudaSampler>> CudaSampler::Create(const CudaSamplerOptions& options,
                                                                 MemoryArena& device_arena,
                                                                 MemoryArena& pinned_arena,
                                                                 const Stream& stream) {
  if (options.vocabulary == 0 || options.vocabulary > kVocabularyMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary: ", options.vocabulary, " is not in [1, ", kVocabularyMax, "]"));
  }
  LAMINA_ASSIGN_OR_RETURN(Event fetched, Event::Create());
  auto sampler = std::make_unique<CudaSamplerImpl>(options, stream, std::move(fetched));
  LAMINA_RETURN_IF_ERROR(sampler->Take(device_arena, pinned_arena));
  return sampler;
}

}  // namespace lamina::kernels::cuda
