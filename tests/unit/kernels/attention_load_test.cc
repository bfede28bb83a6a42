// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace lamina::kernels {
namespace {

using ::testing::ElementsAre;

// Notes which layers it attends, and computes nothing.
class NotingDevice final : public KvDevice {
 public:
  explicit NotingDevice(std::vector<uint32_t>& layers) : layers_(layers) {}

  const std::string& name() const override { return name_; }
  uint32_t slots() const override { return 0; }
  uint64_t bytes() const override { return 0; }
  uint32_t query_tokens_max() const override { return 1; }
  bool usable() const override { return true; }
  absl::Status Begin() override { return absl::OkStatus(); }
  absl::Status Store(uint32_t, HeadRange, absl::Span<const KvRows>) override {
    return absl::OkStatus();
  }
  absl::Status Attend(uint32_t layer, HeadRange, absl::Span<const AttentionItem>) override {
    layers_.push_back(layer);
    return absl::OkStatus();
  }
  KvDeviceRows* device_rows() override { return nullptr; }
  KvStepAttention* step_attention() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<WindowChannel>> MakeChannel(const ChannelOptions&) override {
    return nullptr;
  }

 private:
  const std::string name_ = "noting";
  std::vector<uint32_t>& layers_;
};

class AttentionLoadTest : public testing::Test {
 protected:
  // Four layers of 512 bytes of K and V a token, one of them with a window, attended once each; the
  // load has 8 sequences.
  void Attend(bool share_kinds) {
    const AttentionDescriptor whole = {.query_heads = 4, .kv_heads = 2, .head_dim = 64};
    AttentionDescriptor windowed = whole;
    windowed.window = 128;
    const auto load = AttentionLoad::Create(
        {.layers = {whole, windowed, whole, whole},
         .kv_bytes = uint64_t{4} << 20,
         .share_kinds = share_kinds},
        [this](const KvDeviceOptions& options) -> absl::StatusOr<std::unique_ptr<KvDevice>> {
          made_ = options;
          return std::make_unique<NotingDevice>(attended_);
        });
    ASSERT_TRUE(load.ok()) << load.status();
    for (int call = 0; call < 5; ++call) {
      ASSERT_TRUE((*load)->AttendTimed().ok());
    }
  }

  KvDeviceOptions made_;
  std::vector<uint32_t> attended_;
};

TEST_F(AttentionLoadTest, EachLayerHasItsShareOfTheBytes) {
  Attend(/*share_kinds=*/false);
  EXPECT_EQ(made_.layers.size(), 4u);
  EXPECT_EQ(made_.context_tokens_max, 256u);
  EXPECT_EQ(made_.slots, 8 * 256u);
  EXPECT_THAT(attended_, ElementsAre(0, 1, 2, 3, 0));
}

TEST_F(AttentionLoadTest, LayersOfAKindMayShareThem) {
  Attend(/*share_kinds=*/true);
  ASSERT_EQ(made_.layers.size(), 2u);
  EXPECT_EQ(made_.layers[1].window, 128u);
  EXPECT_EQ(made_.context_tokens_max, 512u);
  EXPECT_EQ(made_.slots, 8 * 512u);
  EXPECT_THAT(attended_, ElementsAre(0, 1, 0, 0, 0));
}

}  // namespace
}  // namespace lamina::kernels
