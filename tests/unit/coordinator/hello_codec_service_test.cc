// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hello_codec_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

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

TEST(LayersLoadedTest, HasWhatWasMeasuredAtBothEndsOfReads) {
  v1::LayersLoaded loaded;
  v1::PolicyTimes* proto = loaded.mutable_policy_times();
  proto->set_reads_low(37);
  proto->set_reads_high(63);
  for (const uint32_t rows : {1u, 2u}) {
    v1::PolicyTimes* end = proto->add_ends();
    AddSlice(end->mutable_local(), rows);
    end->set_attention_local(10 * rows);
    end->add_ends();
  }
  const absl::StatusOr<plan::PolicyTimes> times = FromProto(loaded);
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(times->reads_low, 37);
  EXPECT_EQ(times->reads_high, 63);
  ASSERT_EQ(times->ends.size(), 2u);
  EXPECT_EQ(times->ends[0].local[0].rows, 1u);
  EXPECT_EQ(times->ends[1].attention_local, 20);
  EXPECT_TRUE(times->ends[1].ends.empty()) << "they have none themselves";
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

TEST(LayersLoadedTest, MoreTimesThanCanBeAtAnEndAreRefused) {
  v1::LayersLoaded loaded;
  v1::PolicyTimes* end = loaded.mutable_policy_times()->add_ends();
  for (uint32_t rows = 1; rows <= 1025; ++rows) {
    AddSlice(end->mutable_pools(), rows);
  }
  EXPECT_EQ(FromProto(loaded).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HelloTest, RatesThatNothingCanHaveAreRefused) {
  const double infinite = std::numeric_limits<double>::infinity();
  for (const auto& [set, named] :
       std::vector<std::pair<std::function<void(v1::Hello&)>, std::string>>{
           {[](v1::Hello& hello) { hello.set_bandwidth_bytes_per_second(-1); },
            "bandwidth_bytes_per_second -1"},
           {[&](v1::Hello& hello) { hello.set_dense_speed(infinite); }, "dense_speed inf"},
           {[&](v1::Hello& hello) { hello.mutable_spill()->set_write_bytes_per_second(infinite); },
            "spill.write_bytes_per_second inf"},
           {[&](v1::Hello& hello) { hello.mutable_spill()->set_read_bytes_per_second(-infinite); },
            "spill.read_bytes_per_second -inf"}}) {
    v1::Hello hello;
    EXPECT_EQ(ProblemOf(hello), "");
    set(hello);
    EXPECT_THAT(ProblemOf(hello), HasSubstr("a Hello with " + named + ": "));
  }
}

// What lanes, splits and policies are computed from.
TEST(NodeStatusTest, TimesThatCannotBeCountAsNotMeasured) {
  v1::NodeStatus status;
  status.set_units(3);
  status.set_unit_seconds_fixed(std::numeric_limits<double>::quiet_NaN());
  status.set_unit_seconds_slope(0.5);
  status.mutable_detail()->mutable_making()->set_slope(-1);
  control::ReportedFigures figures;

  const telemetry::NodeCounters counters = FromProto(status, figures);

  EXPECT_EQ(counters.units, 3u);
  EXPECT_EQ(counters.unit_seconds_fixed, 0);
  EXPECT_EQ(counters.unit_seconds_slope, 0.5);
  EXPECT_FALSE(counters.making.fitted());
  EXPECT_EQ(figures.refused(), "unit_seconds_fixed nan") << "the first";
}

TEST(NodeLinksTest, FiguresThatCannotBeCountAsNotMeasured) {
  v1::NodeLinks links;
  v1::NodeLink& link = *links.add_links();
  link.set_peer("m0\n");
  link.set_latency_seconds(1e-5);
  link.set_bytes_per_second(2e9);
  link.set_r_squared(-0.5);
  *links.add_links() = link;
  links.mutable_links(1)->set_latency_seconds(-1);
  links.mutable_links(1)->set_bytes_per_second(std::numeric_limits<double>::quiet_NaN());
  links.mutable_links(1)->set_r_squared(-std::numeric_limits<double>::infinity());
  control::ReportedFigures figures;

  const std::vector<control::LinkReport> reports = FromProto(links, figures);

  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].peer, "m0\\n");
  EXPECT_EQ(reports[0].latency_seconds, 1e-5);
  EXPECT_EQ(reports[0].bytes_per_second, 2e9);
  EXPECT_EQ(reports[0].r_squared, -0.5);
  EXPECT_EQ(reports[1].latency_seconds, 0);
  EXPECT_EQ(reports[1].bytes_per_second, 0);
  EXPECT_EQ(reports[1].r_squared, 0);
  EXPECT_EQ(figures.refused(), "latency_seconds -1");
}

}  // namespace
}  // namespace lamina::coordinator
