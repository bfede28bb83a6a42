// SPDX-License-Identifier: Apache-2.0
#include "compute_node/own_windows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "plan/epoch_shape.h"
#include "tests/support/emulated_device_memory.h"
#include "transport/fake/fake_network.h"

namespace lamina::compute_node {
namespace {

using test_support::EmulatedDeviceMemory;
using transport::FakeNetwork;

constexpr char kUri[] = "fake://own_windows";

class OwnWindowsTest : public testing::Test {
 protected:
  OwnWindowsTest() {
    config_ = {.epoch = 3,
               .lanes = 2,
               .rows_max = 2,
               .layers = {{.query_heads = 2, .kv_heads = 1, .head_dim = 16},
                          {.query_heads = 2, .kv_heads = 1, .head_dim = 16}},
               .compute_nodes = {"c0"},
               .memory_nodes = {"m0"},
               .slots = {64},
               .transport = kUri,
               .compute_waits = true};
  }

  // Whether they lie in the device's memory.
  bool OnDevice(const plan::EpochConfig& config, DeviceMemory* memory) {
    const auto made =
        MakeOwnWindows(config, 0, plan::WindowLayout(plan::WindowShapeOf(config)),
                       {.node = "c0", .transport_uri = config.transport, .memory = memory});
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() && made->region->device() != nullptr;
  }

  plan::EpochConfig config_;
  EmulatedDeviceMemory memory_{{.ordered = true}};
};

TEST_F(OwnWindowsTest, LieWhereTheDevicePollsThem) {
  const auto network =
      FakeNetwork::Named("own_windows", {.reaches_devices = true, .shows_memory = true});
  EXPECT_TRUE(OnDevice(config_, &memory_));
  EXPECT_FALSE(OnDevice(config_, nullptr)) << "no device";
  config_.compute_waits = false;
  EXPECT_FALSE(OnDevice(config_, &memory_)) << "the device waits for nothing";
}

TEST_F(OwnWindowsTest, LieInTheHostsMemoryWhereTheTransportDoesNotReachTheDevices) {
  const auto network = FakeNetwork::Named("own_windows", {.shows_memory = true});
  EXPECT_FALSE(OnDevice(config_, &memory_));
  config_.transport = "shm://";
  EXPECT_FALSE(OnDevice(config_, &memory_)) << "reached, but not polled there";
}

enum class Place { kHost, kOrdered, kFlushed };

class WindowReaderTest : public testing::TestWithParam<Place> {
 protected:
  WindowReaderTest() {
    EXPECT_TRUE(sender_->RegisterSource(source_, transport::MemoryKind::kHost).ok());
  }

  // The whole region, raised to `value`.
  void Put(uint64_t value) {
    const transport::SignalUpdate signal{.word = 0, .value = value};
    ASSERT_TRUE(sender_->Put(*remote_, 0, source_, &signal).ok());
    while (region_->LoadSignal(0) < value) {
      sender_->Progress();
    }
  }

  const bool on_device_ = GetParam() != Place::kHost;
  EmulatedDeviceMemory memory_{{.ordered = GetParam() == Place::kOrdered}};
  FakeNetwork network_{{.seed = 5, .delay_steps_max = 6, .reaches_devices = true}};
  const std::unique_ptr<transport::Transport> sender_ = network_.MakeTransport();
  const std::unique_ptr<transport::Transport> receiver_ = network_.MakeTransport(&memory_);
  const std::unique_ptr<transport::Region> region_ =
      receiver_
          ->CreateRegion(
              {.name = "replies",
               .bytes = 4096,
               .signal_words = 1,
               .kind = on_device_ ? transport::MemoryKind::kDevice : transport::MemoryKind::kHost,
               .may_stage = false,
               .polled_by_device = on_device_})
          .value();
  const std::unique_ptr<transport::RemoteRegion> remote_ =
      sender_->OpenRegion(region_->Descriptor(), 0).value();
  std::vector<std::byte> source_ = std::vector<std::byte>(4096);
  WindowReader reader_{*region_, on_device_ ? &memory_ : nullptr};
};

TEST_P(WindowReaderTest, ReadsWhatSignalsCover) {
  EXPECT_EQ(reader_.on_device(), on_device_);
  EXPECT_EQ(reader_.mirror().size(), on_device_ ? 4096u : 0u);
  for (const uint64_t value : {1, 2}) {
    for (size_t i = 0; i < source_.size(); ++i) {
      source_[i] = static_cast<std::byte>(i * value);
    }
    const plan::WindowHeader header{.epoch = 7, .step = value};
    std::memcpy(source_.data() + 1024, &header, sizeof(header));
    Put(value);

    const absl::StatusOr<const std::byte*> read = reader_.Read(100, 500);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(std::memcmp(*read, source_.data() + 100, 500), 0);
    const absl::StatusOr<plan::WindowHeader> found = reader_.ReadHeader(1024, 2048);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->step, value);
    if (on_device_) {  // The rest of the window is there for the device.
      EXPECT_EQ(
          std::memcmp(memory_.Seen(region_->bytes()).data() + 1024, source_.data() + 1024, 2048),
          0);
    }
  }
}

TEST_P(WindowReaderTest, ADeviceThatFailsIsAnError) {
  Put(1);
  memory_.Break();
  EXPECT_EQ(reader_.Read(0, 64).ok(), !on_device_);
  EXPECT_EQ(reader_.ReadHeader(0, 64).ok(), !on_device_);
}

INSTANTIATE_TEST_SUITE_P(Places, WindowReaderTest,
                         testing::Values(Place::kHost, Place::kOrdered, Place::kFlushed),
                         [](const auto& test) {
                           return test.param == Place::kHost      ? "Host"
                                  : test.param == Place::kOrdered ? "Ordered"
                                                                  : "Flushed";
                         });

}  // namespace
}  // namespace lamina::compute_node
