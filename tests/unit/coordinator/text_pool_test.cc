// SPDX-License-Identifier: Apache-2.0
#include "coordinator/text_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr TextPoolOptions kOptions{
    .threads = 2, .jobs_max = 3, .bytes_max = 1000, .short_bytes_max = 10};

// Jobs that write down what became of them. The first occupies the thread for long texts.
class TextPoolTest : public ::testing::Test {
 protected:
  TextPoolTest() {
    EXPECT_TRUE(Add("first", 100, [this] {
                  begun_.set_value();
                  release_.get_future().wait();
                }).ok());
    begun_.get_future().wait();
  }

  absl::Status Add(
      const std::string& name, size_t bytes, std::function<void()> work = nullptr,
      std::function<bool()> gone = [] { return false; }) {
    return pool_->Add({.bytes = bytes,
                       .run =
                           [this, name, work] {
                             if (work != nullptr) {
                               work();
                             }
                             Note(name);
                           },
                       .gone = std::move(gone),
                       .drop = [this, name] { Note("dropped " + name); }});
  }
  void Note(const std::string& what) {
    {
      const std::lock_guard lock(mutex_);
      done_.push_back(what);
    }
    noted_.notify_all();
  }
  void AwaitNotes(size_t count) {
    std::unique_lock lock(mutex_);
    noted_.wait(lock, [this, count] { return done_.size() >= count; });
  }
  void Finish() {
    std::promise<void> last;
    release_.set_value();
    while (!Add("last", 100, [&last] { last.set_value(); }).ok()) {
    }
    last.get_future().wait();
    pool_.reset();
  }

  std::promise<void> begun_;
  std::promise<void> release_;
  std::mutex mutex_;
  std::condition_variable noted_;
  std::vector<std::string> done_;
  std::unique_ptr<TextPool> pool_ = std::make_unique<TextPool>(kOptions);
};

TEST_F(TextPoolTest, RunsLongTextsInOrder) {
  EXPECT_TRUE(Add("second", 100).ok());
  EXPECT_TRUE(Add("third", 100).ok());
  Finish();
  EXPECT_THAT(done_, ElementsAre("first", "second", "third", "last"));
}

TEST_F(TextPoolTest, AShortTextDoesNotWaitForLongOnes) {
  EXPECT_TRUE(Add("second", 100).ok());
  EXPECT_TRUE(Add("short", 10).ok());
  AwaitNotes(1);  // The first still runs.
  Finish();
  EXPECT_THAT(done_, ElementsAre("short", "first", "second", "last"));
}

TEST_F(TextPoolTest, RefusesMoreThanItsLimits) {
  EXPECT_EQ(Add("too long", 1001).code(), absl::StatusCode::kResourceExhausted);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Add("waits", 100).ok());
  }
  const absl::Status refused = Add("a fourth", 100);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("3 texts of 300 bytes wait to be tokenized, and one of 100 bytes would "
                        "exceed the limit of 3 texts and 1000 bytes"));
  Finish();
  EXPECT_THAT(done_, ElementsAre("first", "waits", "waits", "waits", "last"));
}

TEST_F(TextPoolTest, JobsThatNobodyWaitsForMakeRoomAndAreNotRun) {
  bool gone = false;
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_TRUE(Add(name, 300, nullptr, [&gone, name] { return gone && *name != 'b'; }).ok());
  }
  EXPECT_FALSE(Add("d", 300).ok());
  gone = true;
  EXPECT_TRUE(Add("d", 300).ok());
  Finish();
  EXPECT_THAT(done_, ElementsAre("dropped a", "dropped c", "first", "b", "d", "last"));
}

TEST_F(TextPoolTest, DropsWhatWaitsWhenItEnds) {
  EXPECT_TRUE(Add("second", 100).ok());
  std::thread end([this] { pool_.reset(); });
  release_.set_value();
  end.join();
  EXPECT_THAT(done_, ::testing::Contains("first"));
  EXPECT_EQ(done_.size(), 2u);  // The second ran, or was dropped.
}

}  // namespace
}  // namespace lamina::coordinator
