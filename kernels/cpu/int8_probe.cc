// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8_probe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/philox.h"
#include "kernels/int8_kv.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels {
namespace {

constexpr uint32_t kHeadDims[] = {64, 128, 80};
constexpr uint32_t kGroups[] = {1, 2, 3, 4, 8};
constexpr uint32_t kQueries = 2;
constexpr uint32_t kInt8 = kBlockTokens + kInt8BlockTokens;
constexpr uint32_t kTail = 20;

struct Problem {
  uint32_t head_dim;
  uint32_t group;
  bool scattered;  // Every other slot of an arena twice as large; else in order.
};

// Random bytes, scales and bf16: nothing needs to have been quantised.
class Probe {
 public:
  explicit Probe(const Problem& problem)
      : descriptor_{.query_heads = problem.group,
                    .kv_heads = 1,
                    .head_dim = problem.head_dim,
                    .scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim))},
        slots_(WholeTiles(2 * kInt8)),
        prng_(problem.head_dim * problem.group) {
    for (uint32_t token = 0; token < kInt8; ++token) {
      extents_.push_back({.first_slot = problem.scattered ? 2 * token : token, .tokens = 1});
    }
    const size_t dim = problem.head_dim;
    k8_ = Bytes(slots_ * dim);
    v8_ = Bytes(slots_ * dim);
    k_scales_ = Scales(slots_ * Int8ScalesOfSlot(problem.head_dim));
    v_scales_ = Scales(slots_);
    k_ = Values(kInt8BlockTokens * dim);
    v_ = Values(kInt8BlockTokens * dim);
    q_ = Values(kQueries * descriptor_.q_width());
  }

  std::vector<BFloat16> Attend(const AttentionKernel& kernel, ThreadPool& pool) {
    const Int8View int8 = {.k = k8_.data(),
                           .v = v8_.data(),
                           .k_scales = k_scales_.data(),
                           .v_scales = v_scales_.data(),
                           .slots = slots_};
    const KvView kv = {.k = k_.data(), .v = v_.data(), .head_stride = k_.size(), .int8 = &int8};
    const size_t width = descriptor_.q_width();
    std::vector<BFloat16> out(kQueries * width);
    const AttentionItem item = {.extents = extents_,
                                .first_position = kInt8 + kTail - kQueries,
                                .query_tokens = kQueries,
                                .q = q_.data(),
                                .q_stride = width,
                                .out = out.data(),
                                .out_stride = width,
                                .int8_tokens = kInt8};
    const auto scratch = kernel.MakeScratch(descriptor_, kQueries, kInt8 + kTail, pool.threads());
    kernel.Attend(descriptor_, kv, {&item, 1}, *scratch, pool);
    return out;
  }

 private:
  std::vector<uint8_t> Bytes(size_t count) {
    std::vector<uint8_t> bytes(count);
    for (uint8_t& byte : bytes) {
      byte = static_cast<uint8_t>(256 * prng_.Uniform());
    }
    return bytes;
  }
  std::vector<Int8Scale> Scales(size_t count) {
    std::vector<Int8Scale> scales(count);
    for (Int8Scale& scale : scales) {
      scale = {.step = ToBFloat16(static_cast<float>(0.001 + prng_.Uniform() / 64)),
               .zero = static_cast<int16_t>(512 * prng_.Uniform() - 128)};
    }
    return scales;
  }
  std::vector<BFloat16> Values(size_t count) {
    std::vector<BFloat16> values(count);
    for (BFloat16& value : values) {
      value = ToBFloat16(static_cast<float>(4 * prng_.Uniform() - 2));
    }
    return values;
  }

  const AttentionDescriptor descriptor_;
  const size_t slots_;
  Prng prng_;
  std::vector<Extent> extents_;
  std::vector<uint8_t> k8_, v8_;
  std::vector<Int8Scale> k_scales_, v_scales_;
  std::vector<BFloat16> k_, v_, q_;
};

}  // namespace

absl::Status ProbeInt8Attention(const AttentionKernel& kernel) {
  ThreadPool pool({});
  for (const uint32_t head_dim : kHeadDims) {
    for (const uint32_t group : kGroups) {
      const Problem problem = {.head_dim = head_dim, .group = group, .scattered = group % 2 == 0};
      Probe probe(problem);
      const std::vector<BFloat16> want = probe.Attend(ReferenceAttention(), pool);
      const std::vector<BFloat16> got = probe.Attend(kernel, pool);
      if (!std::equal(want.begin(), want.end(), got.begin(),
                      [](BFloat16 a, BFloat16 b) { return a.bits == b.bits; })) {
        return absl::InternalError(absl::StrCat(
            kernel.name(), ": other bits than the reference over INT8, head size ", head_dim, ", ",
            group, " query heads a KV head", problem.scattered ? ", scattered" : ""));
      }
    }
  }
  return absl::OkStatus();
}

const AttentionKernel& FirstInt8ThatPasses(absl::Span<const AttentionKernel* const> kernels) {
  for (const AttentionKernel* kernel : kernels) {
    const absl::Status status = ProbeInt8Attention(*kernel);
    if (status.ok()) {
      return *kernel;
    }
    LogWarning("attention kernel not used on this processor; please report it: ", status.message());
  }
  return ReferenceAttention();
}

}  // namespace lamina::kernels
