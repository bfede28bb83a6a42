// SPDX-License-Identifier: Apache-2.0
#include "coordinator/late_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ClockByHand final : public Clock {
 public:
  Nanos Now() const override { return now; }
  Nanos now = 0;
};

// Two nodes over ports that are compared and never called.
class LateStreamsTest : public ::testing::Test {
 protected:
  static const NodePort* PortOf(size_t node) {
    static const char kPlaces[2] = {};
    return reinterpret_cast<const NodePort*>(&kPlaces[node]);
  }
  void Heard(size_t node, double busy_share) {
    streams_.Heard({.source = {.name = node == 0 ? "c0" : "m0", .port = PortOf(node)},
                    .peer = node == 0 ? "peer of c0" : "peer of m0",
                    .busy_share = busy_share,
                    .counters = {.activity = ThreadActivity::kWorking}});
  }
  // Whom it repeats at a time.
  std::vector<std::string> Look(Nanos now) {
    repeated_.clear();
    clock_.now = now;
    streams_.Look();
    return repeated_;
  }

  ClockByHand clock_;
  std::optional<Nanos> since_ = Millis(400);  // The last byte of c0; of m0 nobody knows.
  std::vector<std::string> repeated_;
  LateStreams streams_{
      [this](const std::string& peer) { return peer == "peer of c0" ? since_ : std::nullopt; },
      [this](const NodeWord& word) {
        repeated_.push_back(word.source.name);
        EXPECT_EQ(word.counters.activity, ThreadActivity::kNone) << "or it would count as stuck";
      },
      clock_};
};

TEST_F(LateStreamsTest, WhoseBytesComeIsHeardThoughItsWordsAreNotHandedOn) {
  Heard(0, 0.5);
  Heard(1, 0.5);
  EXPECT_THAT(Look(LateStreams::kLate), IsEmpty()) << "nobody is late";
  EXPECT_THAT(Look(LateStreams::kLate + 1), ElementsAre("c0"));
  EXPECT_THAT(Look(Seconds(60)), ElementsAre("c0")) << "as long as it takes";
  Heard(0, 0.5);
  EXPECT_THAT(Look(Seconds(61)), IsEmpty());
}

TEST_F(LateStreamsTest, WhoSaysNothingIsNotHeard) {
  Heard(0, 0.5);
  since_ = LateStreams::kLate + 1;
  EXPECT_THAT(Look(Seconds(5)), IsEmpty());
}

TEST_F(LateStreamsTest, WhoHasLeftIsNotHeard) {
  Heard(0, 0.5);
  streams_.Forget(PortOf(0));
  EXPECT_THAT(Look(Seconds(5)), IsEmpty());
}

}  // namespace
}  // namespace lamina::coordinator
