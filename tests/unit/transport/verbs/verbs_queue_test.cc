// SPDX-License-Identifier: Apache-2.0
//
// What becomes of a Put of which the device takes a part.

#include <gtest/gtest.h>

#include <array>

#include "tests/unit/transport/verbs/fake_verbs.h"
#include "transport/verbs/verbs_queue_internal.h"

namespace lamina::transport {
namespace {

class VerbsQueueTest : public testing::Test {
 protected:
  static constexpr size_t kMessage = 8;
  static constexpr size_t kBytes = 3 * kMessage;

  void SetUp() override {
    fake_verbs().posts_left = 1 << 20;
    fake_verbs().posted = 0;
    queue_ = *VerbsQueue::Create(FakeLocal(kMessage), /*sends=*/true);
  }

  // As a transport does it.
  absl::Status Post() {
    view_.pending.fetch_add(1);
    const absl::Status status = queue_->Post({.source = source_}, {}, &view_);
    if (!status.ok()) {
      view_.pending.fetch_sub(1);
    }
    return status;
  }

  std::array<std::byte, kBytes> source_ = {};
  ViewState view_;
  std::unique_ptr<VerbsQueue> queue_;
};

TEST_F(VerbsQueueTest, APutThatIsRefusedAsAWholeLeavesTheQueueAsItWas) {
  ASSERT_TRUE(Post().ok());
  fake_verbs().posts_left = 0;

  EXPECT_FALSE(Post().ok());

  EXPECT_FALSE(queue_->destroyed());
  EXPECT_EQ(view_.pending, 1u);
  fake_verbs().posts_left = 3;
  EXPECT_TRUE(Post().ok());
  EXPECT_EQ(view_.pending, 2u);
}

// The device would read the source, and write the target, after the view is told to be drained.
TEST_F(VerbsQueueTest, APutThatIsTakenInPartEndsTheQueuePair) {
  ASSERT_TRUE(Post().ok());
  const int pairs = fake_verbs().pairs;
  fake_verbs().posts_left = 1;

  EXPECT_FALSE(Post().ok());

  EXPECT_EQ(fake_verbs().posted, 4);
  EXPECT_TRUE(queue_->destroyed());
  EXPECT_EQ(fake_verbs().pairs, pairs - 1);
  EXPECT_TRUE(queue_->idle());
  EXPECT_EQ(view_.pending, 0u);
}

}  // namespace
}  // namespace lamina::transport
