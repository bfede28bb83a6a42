// SPDX-License-Identifier: Apache-2.0
//
// A device, a stream and arenas for the tests of kernels/cuda, with copies to and fro.

#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/device.h"

namespace lamina::kernels::cuda {

class DeviceTest : public testing::Test {
 protected:
  static constexpr uint64_t kArenaBytes = uint64_t{256} << 20;

  void SetUp() override {
    auto device = OpenDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *device;
    auto stream = Stream::Create();
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_.emplace(std::move(*stream));
    auto arena = MemoryArena::Create(ArenaKind::kDevice, kArenaBytes);
    ASSERT_TRUE(arena.ok()) << arena.status();
    arena_.emplace(std::move(*arena));
    auto pinned = MemoryArena::Create(ArenaKind::kPinnedHost, kArenaBytes / 8);
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    pinned_.emplace(std::move(*pinned));
  }

  const Stream& stream() const { return *stream_; }

  // `count` elements of the arena, every byte 0xff: NaN for floats.
  template <typename T>
  T* Make(size_t count) {
    auto place = arena_->Take<T>(count);
    EXPECT_TRUE(place.ok()) << place.status();
    EXPECT_TRUE(FillAsync(*place, 0xff, count * sizeof(T), stream()).ok());
    return *place;
  }

  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* place = Make<T>(values.size());
    EXPECT_TRUE(CopyAsync(place, values.data(), values.size() * sizeof(T), stream()).ok());
    EXPECT_TRUE(stream().Synchronize().ok());
    return place;
  }

  template <typename T>
  std::vector<T> Download(const T* from, size_t count) {
    std::vector<T> values(count);
    EXPECT_TRUE(CopyAsync(values.data(), from, count * sizeof(T), stream()).ok());
    const absl::Status status = stream().Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }

  DeviceInfo device_;
  std::optional<Stream> stream_;
  std::optional<MemoryArena> arena_;
  std::optional<MemoryArena> pinned_;
};

}  // namespace lamina::kernels::cuda
