// SPDX-License-Identifier: Apache-2.0
//
// Attention problems on a device, for the tests of both arithmetics.

#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/partial.h"
#include "tests/unit/kernels/attention_fixture.h"
#include "tests/unit/kernels/cuda/device_fixture.h"

namespace lamina::kernels::cuda {

class AttentionDeviceTest : public DeviceTest {
 protected:
  explicit AttentionDeviceTest(AttentionArithmetic arithmetic) : arithmetic_(arithmetic) {}

  std::unique_ptr<CudaAttention> MakeAttention(const AttentionDescriptor& descriptor,
                                               uint32_t rows_max = 64,
                                               uint32_t partials_max = 512) {
    const CudaAttentionOptions options = {.descriptor = descriptor,
                                          .arithmetic = arithmetic_,
                                          .query_rows_max = rows_max,
                                          .partials_max = partials_max,
                                          .extents_max = 4096};
    auto attention = CudaAttention::Create(options, device_, *arena_, *pinned_, stream());
    EXPECT_TRUE(attention.ok()) << attention.status();
    return std::move(*attention);
  }

  // K and V of a problem on the device.
  KvView Upload(const AttentionProblem& problem) {
    const size_t count = problem.descriptor().kv_heads * problem.kv().head_stride;
    return {.k = DeviceTest::Upload(problem.k_in_rows()),
            .v = DeviceTest::Upload(std::vector<BFloat16>(problem.kv().v, problem.kv().v + count)),
            .head_stride = problem.kv().head_stride};
  }

  // Attends rows of `q` [rows, query_heads, head_dim] as the query tokens of the items, in order.
  std::vector<BFloat16> Attend(const AttentionDescriptor& d, const KvView& kv,
                               const std::vector<StepItem>& items, const std::vector<BFloat16>& q) {
    const auto rows = static_cast<uint32_t>(q.size() / d.q_width());
    const auto attention = MakeAttention(d, rows, 32 + 24 * rows);
    const absl::Status loaded = attention->LoadStep(items);
    EXPECT_TRUE(loaded.ok()) << loaded;
    EXPECT_EQ(attention->rows(), rows);
    auto* out = Make<BFloat16>(q.size());
    const absl::Status status =
        attention->Attend(d, kv, DeviceTest::Upload(q), d.q_width(), out, d.q_width());
    EXPECT_TRUE(status.ok()) << status;
    return Download(out, q.size());
  }

  // Queries [first, first + count) of the problem.
  std::vector<BFloat16> Attend(const AttentionProblem& problem, uint32_t first, uint32_t count) {
    const AttentionItem item = problem.Item(first, count, nullptr);
    return Attend(
        problem.descriptor(), Upload(problem),
        {{.extents = item.extents, .first_position = item.first_position, .query_tokens = count}},
        {item.q, item.q + size_t{count} * problem.descriptor().q_width()});
  }

  // Attends one query token to what a holder has of its sequence, and pushes the partials of each
  // head on its stack, as a node does that joins several holders.
  void AttendPart(const AttentionDescriptor& d, const KvView& kv, const BFloat16* q,
                  const StepItem& part, std::vector<PartialStack>& stacks) {
    constexpr uint32_t kEntries = 8;
    const auto attention = MakeAttention(d);
    const absl::Status loaded = attention->LoadStep({part});
    ASSERT_TRUE(loaded.ok()) << loaded;
    auto* out = Make<float>(d.query_heads * kEntries * d.head_dim);
    auto* lse = Make<float>(d.query_heads * kEntries);
    const absl::Status status = attention->AttendPartial(d, kv, q, d.q_width(), kEntries, out, lse);
    ASSERT_TRUE(status.ok()) << status;
    const auto outs = Download(out, d.query_heads * kEntries * d.head_dim);
    const auto lses = Download(lse, d.query_heads * kEntries);
    const std::vector<StackEntry> entries = attention->Entries(0);
    for (uint32_t h = 0; h < d.query_heads; ++h) {
      for (size_t i = 0; i < entries.size(); ++i) {
        const size_t place = h * kEntries + i;
        stacks[h].Push(entries[i].first_block, entries[i].blocks, &outs[place * d.head_dim],
                       lses[place]);
      }
    }
  }

  static void ExpectFolded(std::vector<PartialStack>& stacks,
                           const std::vector<BFloat16>& expected) {
    const size_t head_dim = expected.size() / stacks.size();
    for (size_t h = 0; h < stacks.size(); ++h) {
      std::vector<float> out(head_dim);
      float lse = 0;
      stacks[h].Fold(out.data(), &lse);
      for (size_t i = 0; i < head_dim; ++i) {
        EXPECT_EQ(ToBFloat16(out[i]).bits, expected[h * head_dim + i].bits) << h << " " << i;
      }
    }
  }

 private:
  const AttentionArithmetic arithmetic_;
};

}  // namespace lamina::kernels::cuda
