// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "transport/shm/device_windows_internal.h"

namespace lamina::transport {
namespace {

bool Lies(absl::Span<const std::byte> bytes, absl::Span<const std::byte> in) {
  return bytes.data() >= in.data() && bytes.size() <= in.size() &&
         static_cast<size_t>(bytes.data() - in.data()) <= in.size() - bytes.size();
}

}  // namespace

void DeviceWindows::AddSource(absl::Span<const std::byte> bytes) {
  const std::lock_guard lock(set_up_);
  sources_.push_back(bytes);
}

void DeviceWindows::RemoveSource(absl::Span<const std::byte> bytes) {
  const std::lock_guard lock(set_up_);
  std::erase_if(sources_, [&](const auto& one) { return one.data() == bytes.data(); });
}

bool DeviceWindows::Holds(absl::Span<const std::byte> bytes) const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [&](const auto& one) { return Lies(bytes, one); });
}

void DeviceWindows::Retire(DeviceAllocation data, FileDescriptor file) {
  {
    const std::lock_guard lock(set_up_);
    retired_.push_back({.data = std::move(data), .file = std::move(file)});
  }
  Sweep();
}

void DeviceWindows::Sweep() {
  const std::lock_guard lock(set_up_);
  std::erase_if(retired_, [](const Window& one) { return LockAlone(one.file); });
}

size_t DeviceWindows::retired() const {
  const std::lock_guard lock(set_up_);
  return retired_.size();
}

}  // namespace lamina::transport
