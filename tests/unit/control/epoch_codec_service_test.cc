// SPDX-License-Identifier: Apache-2.0
#include "control/epoch_codec_service.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/philox.h"

namespace lamina::control {
namespace {

// Through the bytes, as between processes.
template <typename Proto, typename T>
T RoundTrip(const T& value) {
  Proto proto;
  ToProto(value, &proto);
  Proto received;
  EXPECT_TRUE(received.ParseFromString(proto.SerializeAsString()));
  return FromProto(received);
}

// Values of any field, as many elements as there may be of each list; no field of a type is
// skipped, so that one that the codec forgets differs in most draws.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  uint32_t Number() { return static_cast<uint32_t>(random_()); }
  bool Flag() { return random_.Chance(0.5); }
  template <typename T>
  std::vector<T> List(T (Draw::*one)()) {
    std::vector<T> list(random_.Below(5));
    for (T& value : list) {
      value = (this->*one)();
    }
    return list;
  }
  std::string Name() { return absl::StrCat("n", random_()); }
  // Descriptors of regions are any bytes.
  std::string Bytes() {
    return std::string{static_cast<char>(random_()), 0, static_cast<char>(-1)};
  }
  AttentionDescriptor Layer() {
    return {.query_heads = Number(),
            .kv_heads = Number(),
            .head_dim = Number(),
            .scale = static_cast<float>(random_.Normal()),
            .window = Number(),
            .soft_cap = static_cast<float>(random_.Normal())};
  }
  plan::Stage Stage() {
    return {.replica = Number(),
            .first_layer = Number(),
            .layers = Number(),
            .shard = {.index = Number(),
                      .count = Number(),
                      .first_head = Number(),
                      .heads = Number(),
                      .first_column = Number(),
                      .columns = Number()}};
  }
  std::vector<uint32_t> Numbers() { return List(&Draw::Number); }
  AttentionArithmetic Arithmetic() {
    return Flag() ? AttentionArithmetic::kTensor : AttentionArithmetic::kCanonical;
  }
  plan::EpochConfig Config() {
    return {.epoch = random_(),
            .mode = Flag() ? PipelineMode::kRotational : PipelineMode::kFixed,
            .lanes = Number(),
            .plan_ahead = Number(),
            .rows_max = Number(),
            .row_sequences_max = Number(),
            .chunk_tokens_max = Number(),
            .step_tokens_max = Number(),
            .scratch_tokens = Number(),
            .sequence_tokens_max = Number(),
            .layers = List(&Draw::Layer),
            .attention = {.decode = Arithmetic(), .prefill = Arithmetic()},
            .compute_nodes = List(&Draw::Name),
            .stages = List(&Draw::Stage),
            .attention_paths = plan::AttentionPaths::FromBits(Number()),
            .fetch_bytes = random_(),
            .fetch_heads = Number(),
            .activation_width = Number(),
            .resident_tokens = Number(),
            .activation_share = Number(),
            .made_tokens_max = Number(),
            .int8_tails = Number(),
            .sparse_tokens = Flag() ? SparseTokens::kLocal : SparseTokens::kStrided,
            .sparse_ratio = static_cast<double>(Number()) / 7,
            .streaming = {.sink = Number(), .window = Number(), .layers = List(&Draw::Numbers)},
            .memory_nodes = List(&Draw::Name),
            .slots = List(&Draw::Number),
            .int8_slots = List(&Draw::Number),
            .hybrid_slots = List(&Draw::Number),
            .partition = Flag() ? Partition::kHead : Partition::kTokenRange,
            .heads = ConsecutiveRanges(List(&Draw::Number)),
            .span_tokens = Number(),
            .transport = Name(),
            .prefill_nodes = Number(),
            .prefill_lanes = Number(),
            .compute_waits = Flag(),
            .memory_waits = Flag()};
  }
  plan::EpochPeers Peers() {
    return {.epoch = random_(),
            .compute_regions = List(&Draw::Bytes),
            .memory_regions = List(&Draw::Bytes)};
  }

 private:
  Prng random_;
};

TEST(EpochCodecTest, AnyConfigurationComesBackWhole) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const plan::EpochConfig config = Draw(seed).Config();
    EXPECT_EQ(RoundTrip<v1::Configure>(config), config) << "seed " << seed;
  }
}

TEST(EpochCodecTest, AnyPeersComeBackWhole) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const plan::EpochPeers peers = Draw(seed).Peers();
    EXPECT_EQ(RoundTrip<v1::Connect>(peers), peers) << "seed " << seed;
  }
}

TEST(EpochCodecTest, AConfigurationOfDefaultsComesBackWhole) {
  EXPECT_EQ(RoundTrip<v1::Configure>(plan::EpochConfig()), plan::EpochConfig());
}

}  // namespace
}  // namespace lamina::control
