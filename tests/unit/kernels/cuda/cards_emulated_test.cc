// SPDX-License-Identifier: Apache-2.0
//
// Attention on cards whose thread blocks have less shared memory: the same bits in smaller tiles,
// and no launch that the card would refuse (the emulated one refuses it).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/attention_tiling.h"
#include "tests/support/cuda_emulation/launches.h"
#include "tests/unit/kernels/cuda/attention_device_fixture.h"

namespace lamina::kernels::cuda {
namespace {

using cuda_emulation::Card;
using cuda_emulation::OtherCard;

constexpr Card kCards[] = {
    {.capability_major = 8, .capability_minor = 0, .shared_bytes_max = kSharedBytesOf80},
    {.capability_major = 8, .capability_minor = 6, .shared_bytes_max = kSharedBytesOf86}};

// Heads whose tiles shrink or whose ring is shorter on some card, and heads of which nothing does;
// tiles full, cut, and of one row; windows.
const std::vector<AttentionCase>& Cases() {
  static const auto* const cases =
      new std::vector<AttentionCase>{AttentionCase{Descriptor(256, 1, 8), 300, 9, 33, 1},
                                     AttentionCase{Descriptor(256, 1, 32), 70, 3, 64, 2},
                                     AttentionCase{Descriptor(256, 1, 1, 90), 130, 70, 64, 3},
                                     AttentionCase{Descriptor(240, 1, 4), 70, 17, 64, 4},
                                     AttentionCase{Descriptor(128, 1, 4), 290, 17, 64, 5},
                                     AttentionCase{Descriptor(128, 2, 8), 300, 1, 300, 6},
                                     AttentionCase{Descriptor(64, 2, 3), 40, 40, 300, 7},
                                     AttentionCase{Descriptor(16, 1, 5), 300, 9, 64, 8},
                                     AttentionCase{Descriptor(128, 1, 8), 1900, 10, 500, 9},
                                     AttentionCase{Descriptor(64, 1, 4, 900), 2400, 20, 90, 10}};
  return *cases;
}

template <AttentionArithmetic kArithmetic>
class OnCards : public AttentionDeviceTest {
 protected:
  OnCards() : AttentionDeviceTest(kArithmetic) {}

  void ExpectTheSameBits() {
    for (const AttentionCase& c : Cases()) {
      const AttentionProblem problem(c);
      const std::vector<uint16_t> expected = Bits(Attend(problem, 0, c.queries));
      for (const Card& card : kCards) {
        const OtherCard other(card);
        auto opened = OpenDevice(0);
        ASSERT_TRUE(opened.ok()) << opened.status();
        ASSERT_EQ(opened->shared_bytes_max, card.shared_bytes_max);
        device_ = *opened;
        EXPECT_EQ(Bits(Attend(problem, 0, c.queries)), expected)
            << "heads of " << c.descriptor.head_dim << " on " << card.capability_major << "."
            << card.capability_minor;
      }
      device_ = *OpenDevice(0);
    }
  }
};

using CanonicalOnCards = OnCards<AttentionArithmetic::kCanonical>;
using TensorOnCards = OnCards<AttentionArithmetic::kTensor>;

TEST_F(CanonicalOnCards, HasTheSameBits) { ExpectTheSameBits(); }
TEST_F(TensorOnCards, HasTheSameBits) { ExpectTheSameBits(); }

TEST_F(TensorOnCards, TheEmulatedCardRefusesTilesOfALargerOne) {
  const AttentionProblem problem(
      {.descriptor = Descriptor(256, 1, 1), .tokens = 64, .queries = 64});
  const OtherCard smaller(kCards[1]);  // device_ still says what the larger one has.
  const auto attention = MakeAttention(problem.descriptor());
  const AttentionItem item = problem.Item(0, 64, nullptr);
  ASSERT_TRUE(attention->LoadStep({{.extents = item.extents, .query_tokens = 64}}).ok());
  auto* const q = Make<BFloat16>(64 * 256);

  EXPECT_FALSE(attention->Attend(problem.descriptor(), Upload(problem), q, 256, q, 256).ok());
}

TEST_F(TensorOnCards, ACardWithoutRoomForATileIsRefusedWithTheFigures) {
  device_.shared_bytes_max = 48 * 1024;
  const CudaAttentionOptions options = {.descriptor = Descriptor(256, 1, 1),
                                        .arithmetic = AttentionArithmetic::kTensor,
                                        .query_rows_max = 1,
                                        .partials_max = 1,
                                        .extents_max = 1};

  const auto refused = CudaAttention::Create(options, device_, *arena_, *pinned_, stream());

  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              testing::AllOf(testing::HasSubstr("heads of 256"), testing::HasSubstr("49152")));
}

}  // namespace
}  // namespace lamina::kernels::cuda
