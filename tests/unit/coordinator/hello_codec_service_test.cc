// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hello_codec_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace lamina::coordinator {
namespace {

using ::testing::HasSubstr;

void AddSlice(google::protobuf::RepeatedPtrField<v1::PolicyTimes::Slice>* times, uint32_t rows) {
  v1::PolicyTimes::Slice* slice = times->Add();
  slice->set_rows(rows);
  slice->set_slice_seconds(rows);
  slice->set_tail_seconds(2.0 * rows);
}

TEST(LayersLoadedTest, HasWhatWasMeasured) {
  v1::LayersLoaded loaded;
  AddSlice(loaded.mutable_policy_times()->mutable_local(), 1);
  AddSlice(loaded.mutable_policy_times()->mutable_local(), 4);
  AddSlice(loaded.mutable_policy_times()->mutable_pools(), 8);
  loaded.mutable_policy_times()->set_attention_local(3);
  loaded.mutable_policy_times()->set_read_bandwidth(5);
  const absl::StatusOr<plan::PolicyTimes> times = FromProto(loaded);
  ASSERT_TRUE(times.ok()) << times.status();
  ASSERT_EQ(times->local.size(), 2u);
  EXPECT_EQ(times->local[1].rows, 4u);
  EXPECT_EQ(times->local[1].slice_seconds, 4);
  EXPECT_EQ(times->local[1].tail_seconds, 8);
  ASSERT_EQ(times->pools.size(), 1u);
  EXPECT_EQ(times->attention_local, 3);
  EXPECT_EQ(times->read_bandwidth, 5);
}

TEST(LayersLoadedTest, WithoutTimesNothingIsMeasured) {
  const absl::StatusOr<plan::PolicyTimes> times = FromProto(v1::LayersLoaded());
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_FALSE(times->measured());
}

TEST(LayersLoadedTest, SaysWhyLayersCouldNotBeLoaded) {
  v1::LayersLoaded loaded;
  loaded.set_code(static_cast<int>(absl::StatusCode::kDataLoss));
  loaded.set_message("a damaged\nfile");
  const absl::Status status = FromProto(loaded).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a damaged"));
  EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos);
}

TEST(LayersLoadedTest, MoreTimesThanCanBeAreRefused) {
  for (const bool local : {true, false}) {
    v1::LayersLoaded loaded;
    v1::PolicyTimes* times = loaded.mutable_policy_times();
    for (uint32_t rows = 1; rows <= 1025; ++rows) {
      AddSlice(local ? times->mutable_local() : times->mutable_pools(), rows);
    }
    EXPECT_EQ(FromProto(loaded).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace lamina::coordinator
