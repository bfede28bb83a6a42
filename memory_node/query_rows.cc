// SPDX-License-Identifier: Apache-2.0
#include "memory_node/query_rows.h"

#include <array>
#include <cstring>

#include "common/status_macros.h"

namespace lamina::memory_node {
namespace {

static_assert(sizeof(plan::WindowHeader) <= kernels::KvDeviceRows::kPeekBytesMax);

plan::WindowHeader HeaderAt(const std::byte* from) {
  plan::WindowHeader header;
  std::memcpy(&header, from, sizeof(header));
  return header;
}

class HostRows final : public QueryRows {
 public:
  explicit HostRows(transport::Region& region) : region_(region) {}

  bool header_comes_with_rows() const override { return false; }
  absl::StatusOr<plan::WindowHeader> ReadHeader(size_t window) override {
    return HeaderAt(region_.bytes().data() + window);
  }
  absl::Status Land(size_t, size_t) override { return absl::OkStatus(); }
  absl::Status Settle() override { return absl::OkStatus(); }
  plan::WindowHeader settled_header() const override { return {}; }
  absl::Span<std::byte> replies() const override { return {}; }

 private:
  transport::Region& region_;
};

class DeviceRows final : public QueryRows {
 public:
  DeviceRows(const NodeEpoch& epoch, absl::Span<std::byte> replies)
      : region_(epoch.region),
        device_(*epoch.device.device_rows()),
        window_bytes_(epoch.layout.query_window_bytes()),
        replies_(replies) {}

  bool header_comes_with_rows() const override { return true; }

  absl::StatusOr<plan::WindowHeader> ReadHeader(size_t window) override {
    LAMINA_RETURN_IF_ERROR(region_.Land(window, sizeof(plan::WindowHeader)));
    LAMINA_RETURN_IF_ERROR(PeekHeader(window));
    LAMINA_RETURN_IF_ERROR(device_.Settle());
    return settled_header();
  }

  absl::Status Land(size_t window, size_t from) override {
    LAMINA_RETURN_IF_ERROR(region_.Land(window + from, window_bytes_ - from));
    return from == 0 ? PeekHeader(window) : absl::OkStatus();
  }

  absl::Status Settle() override { return device_.Settle(); }
  plan::WindowHeader settled_header() const override { return HeaderAt(device_.peeked()); }
  absl::Span<std::byte> replies() const override { return replies_; }

 private:
  absl::Status PeekHeader(size_t window) {
    return device_.Peek(region_.bytes().data() + window, sizeof(plan::WindowHeader));
  }

  transport::Region& region_;
  kernels::KvDeviceRows& device_;
  const size_t window_bytes_;
  const absl::Span<std::byte> replies_;
};

}  // namespace

std::unique_ptr<QueryRows> RowsInHostMemory(const NodeEpoch& epoch) {
  return std::make_unique<HostRows>(epoch.region);
}

absl::StatusOr<std::unique_ptr<QueryRows>> RowsInDeviceMemory(const NodeEpoch& epoch,
                                                              absl::Span<std::byte> replies) {
  const std::array<absl::Span<const std::byte>, 2> ranges = {epoch.region.bytes(), replies};
  LAMINA_RETURN_IF_ERROR(epoch.device.UseMemory(ranges));
  return std::make_unique<DeviceRows>(epoch, replies);
}

}  // namespace lamina::memory_node
