// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention_probe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/philox.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels {
namespace {

constexpr uint32_t kHeadDims[] = {64, 128, 80};
constexpr uint32_t kGroups[] = {1, 2, 3, 4, 5, 8};

struct Problem {
  uint32_t head_dim;
  uint32_t group;
  uint32_t tokens;
  uint32_t queries;
  bool scattered;  // Every other slot of an arena twice as large; else in order.

  AttentionDescriptor descriptor() const {
    return {.query_heads = group,
            .kv_heads = 1,
            .head_dim = head_dim,
            .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
  }
};

std::vector<BFloat16> RandomValues(size_t count, Prng& prng) {
  std::vector<BFloat16> values(count);
  for (BFloat16& value : values) {
    value = ToBFloat16(static_cast<float>(4 * prng.Uniform() - 2));
  }
  return values;
}

// K, V and queries of one problem.
class Probe {
 public:
  explicit Probe(const Problem& problem)
      : descriptor_(problem.descriptor()), queries_(problem.queries) {
    Prng prng(problem.head_dim * problem.group + problem.tokens);
    const size_t width = descriptor_.kv_width();
    const std::vector<BFloat16> k = RandomValues(problem.tokens * width, prng);
    const std::vector<BFloat16> v = RandomValues(problem.tokens * width, prng);
    q_ = RandomValues(size_t{queries_} * descriptor_.q_width(), prng);
    if (problem.scattered) {
      for (uint32_t token = 0; token < problem.tokens; ++token) {
        extents_.push_back({.first_slot = 2 * token, .tokens = 1});
      }
    } else {
      extents_.push_back({.first_slot = 0, .tokens = problem.tokens});
    }
    tokens_ = problem.tokens;
    head_stride_ = WholeTiles(extents_.back().first_slot + extents_.back().tokens) * width;
    k_.resize(head_stride_);
    v_.resize(head_stride_);
    StoreKv(descriptor_, k.data(), v.data(), width, extents_, k_.data(), v_.data(), head_stride_);
  }

  std::vector<BFloat16> Attend(const AttentionKernel& kernel, ThreadPool& pool) const {
    const size_t width = descriptor_.q_width();
    std::vector<BFloat16> out(queries_ * width);
    const AttentionItem item = {.extents = extents_,
                                .first_position = tokens_ - queries_,
                                .query_tokens = queries_,
                                .q = q_.data(),
                                .q_stride = width,
                                .out = out.data(),
                                .out_stride = width};
    const auto scratch = kernel.MakeScratch(descriptor_, queries_, tokens_, pool.threads());
    kernel.Attend(descriptor_, {.k = k_.data(), .v = v_.data(), .head_stride = head_stride_},
                  {&item, 1}, *scratch, pool);
    return out;
  }

 private:
  const AttentionDescriptor descriptor_;
  const uint32_t queries_;
  uint32_t tokens_ = 0;
  size_t head_stride_ = 0;
  std::vector<Extent> extents_;
  std::vector<BFloat16> k_;
  std::vector<BFloat16> v_;
  std::vector<BFloat16> q_;
};

absl::Status ProbeOne(const AttentionKernel& kernel, const AttentionKernel& reference,
                      const Problem& problem, ThreadPool& pool) {
  const Probe probe(problem);
  const std::vector<BFloat16> want = probe.Attend(reference, pool);
  const std::vector<BFloat16> got = probe.Attend(kernel, pool);
  if (std::equal(want.begin(), want.end(), got.begin(),
                 [](BFloat16 a, BFloat16 b) { return a.bits == b.bits; })) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat(kernel.name(), ": other bits than the reference, head size ", problem.head_dim,
                   ", ", problem.group, " query heads a KV head, ", problem.tokens, " tokens",
                   problem.scattered ? ", scattered" : ""));
}

}  // namespace

absl::Status ProbeAttention(const AttentionKernel& kernel, const AttentionKernel& reference) {
  ThreadPool pool({});
  for (const uint32_t head_dim : kHeadDims) {
    for (const uint32_t group : kGroups) {
      // One block and the next one's beginning, and many rows, once for each head size.
      const Problem problem = {.head_dim = head_dim,
                               .group = group,
                               .tokens = group == 3 ? kBlockTokens + 20 : 35,
                               .queries = group == 4 ? 18u : 2u,
                               .scattered = group % 2 == 0};
      if (absl::Status status = ProbeOne(kernel, reference, problem, pool); !status.ok()) {
        return status;
      }
    }
  }
  return absl::OkStatus();
}

const AttentionKernel& FirstThatPasses(absl::Span<const AttentionKernel* const> kernels) {
  for (const AttentionKernel* kernel : kernels) {
    const absl::Status status = ProbeAttention(*kernel);
    if (status.ok()) {
      return *kernel;
    }
    LogWarning("attention kernel not used on this processor; please report it: ", status.message());
  }
  return ReferenceAttention();
}

}  // namespace lamina::kernels
