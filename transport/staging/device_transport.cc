// SPDX-License-Identifier: Apache-2.0
#include "transport/staging/device_transport.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace lamina::transport {
namespace {

constexpr size_t kAlignment = 64;

// Memory of the device, and as much of the host's that the transport below may put from.
struct Mirror {
  absl::Span<const std::byte> device;
  absl::Span<std::byte> host;

  bool Holds(absl::Span<const std::byte> bytes) const {
    return bytes.data() >= device.data() && bytes.size() <= device.size() &&
           static_cast<size_t>(bytes.data() - device.data()) <= device.size() - bytes.size();
  }
};

class DeviceTransport;

// In the host's memory, or in the device's and registered as such: the region below does it all.
class PlainRegion : public Region {
 public:
  explicit PlainRegion(std::unique_ptr<Region> inner) : inner_(std::move(inner)) {}

  absl::Span<std::byte> bytes() override { return inner_->bytes(); }
  uint32_t signal_words() const override { return inner_->signal_words(); }
  const DeviceRegion* device() const override { return inner_->device(); }
  DirectMemory direct() override { return inner_->direct(); }
  uint64_t LoadSignal(uint32_t word) const override { return inner_->LoadSignal(word); }
  std::string Descriptor() const override { return inner_->Descriptor(); }

  Region& inner() const { return *inner_; }

 private:
  const std::unique_ptr<Region> inner_;
};

class StagedRegion final : public PlainRegion, private DeviceRegion {
 public:
  StagedRegion(DeviceTransport& transport, DeviceAllocation device, std::unique_ptr<Region> landing,
               std::unique_ptr<Region> mirror, size_t bytes, std::string why_not)
      : PlainRegion(std::move(landing)),
        transport_(transport),
        device_(std::move(device)),
        mirror_(std::move(mirror)),
        bytes_(device_.bytes().first(bytes)),
        choice_{.path = MemoryPath::kStaging,
                .device = device_.memory()->name(),
                .why_not = std::move(why_not)} {}
  ~StagedRegion() override;
  StagedRegion(const StagedRegion&) = delete;
  StagedRegion& operator=(const StagedRegion&) = delete;

  absl::Span<std::byte> bytes() override { return bytes_; }
  const DeviceRegion* device() const override { return this; }
  DirectMemory direct() override { return {}; }

 private:
  MemoryChoice memory() const override { return choice_; }
  absl::Status Land(size_t offset, size_t bytes) const override {
    LAMINA_CHECK(offset <= bytes_.size() && bytes <= bytes_.size() - offset);
    if (bytes == 0) {
      return absl::OkStatus();
    }
    return device_.memory()->CopyIn(bytes_.data() + offset, inner().bytes().data() + offset, bytes);
  }

  DeviceTransport& transport_;
  const DeviceAllocation device_;
  const std::unique_ptr<Region> mirror_;  // For puts that read this region.
  const absl::Span<std::byte> bytes_;
  const MemoryChoice choice_;
};

class DeviceTransport final : public Transport {
 public:
  DeviceTransport(std::unique_ptr<Transport> inner, DeviceMemory& device)
      : device_(device), inner_(std::move(inner)), capabilities_(inner_->capabilities()) {
    capabilities_.device_memory = true;
    capabilities_.device_sources = true;
  }

  absl::string_view scheme() const override { return inner_->scheme(); }
  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) override;
  absl::StatusOr<std::unique_ptr<RemoteRegion>> OpenRegion(absl::string_view descriptor,
                                                           uint64_t epoch) override {
    return inner_->OpenRegion(descriptor, epoch);
  }
  absl::Status RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) override;
  absl::Status Put(RemoteRegion& target, size_t offset, absl::Span<const std::byte> source,
                   const SignalUpdate* signal) override;
  uint32_t Pending(const RemoteRegion& target) const override { return inner_->Pending(target); }
  uint32_t Progress() override { return inner_->Progress(); }
  absl::StatusOr<size_t> Wait(const Region& region, absl::Span<const SignalCondition> conditions,
                              const WaitOptions& options) override {
    return inner_->Wait(static_cast<const PlainRegion&>(region).inner(), conditions, options);
  }

  void Forget(absl::Span<const std::byte> device) {
    const std::lock_guard lock(set_up_);
    std::erase_if(mirrors_, [&](const Mirror& one) { return one.device.data() == device.data(); });
  }

 private:
  absl::StatusOr<std::unique_ptr<Region>> CreateStaged(const RegionOptions& options,
                                                       std::string why_not);

  DeviceMemory& device_;
  // Mirrors of sources; the transport below reads them.
  std::vector<std::vector<std::byte>> buffers_;
  const std::unique_ptr<Transport> inner_;
  Capabilities capabilities_;
  std::mutex set_up_;            // Guards mirrors while they are made; not on the data path.
  std::vector<Mirror> mirrors_;  // One for each source and own region.
};

StagedRegion::~StagedRegion() { transport_.Forget(bytes_); }

absl::StatusOr<std::unique_ptr<Region>> DeviceTransport::CreateRegion(
    const RegionOptions& options) {
  std::string why_not = absl::StrCat(scheme(), ":// reaches the host's memory only");
  if (options.kind == MemoryKind::kHost || inner_->capabilities().device_memory) {
    absl::StatusOr<std::unique_ptr<Region>> region = inner_->CreateRegion(options);
    if (region.ok()) {
      if (options.kind == MemoryKind::kDevice) {
        LogInfo(options.name, ": ", DescribeMemory((*region)->memory()));
      }
      return std::make_unique<PlainRegion>(*std::move(region));
    }
    if (options.kind == MemoryKind::kHost || !absl::IsFailedPrecondition(region.status())) {
      return region.status();
    }
    why_not = std::string(region.status().message());
  }
  if (!options.may_stage) {
    return absl::FailedPreconditionError(why_not);
  }
  return CreateStaged(options, std::move(why_not));
}

absl::StatusOr<std::unique_ptr<Region>> DeviceTransport::CreateStaged(const RegionOptions& options,
                                                                      std::string why_not) {
  RegionOptions host = options;
  host.kind = MemoryKind::kHost;
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<Region> landing, inner_->CreateRegion(host));
  if (options.bytes == 0) {
    return std::make_unique<PlainRegion>(std::move(landing));
  }
  host.name += " mirror";
  host.signal_words = 0;
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<Region> mirror, inner_->CreateRegion(host));
  absl::StatusOr<DeviceAllocation> device = DeviceAllocation::Make(device_, options.bytes);
  if (!device.ok()) {
    return absl::Status(device.status().code(),
                        absl::StrCat(options.name, ": ", device.status().message()));
  }
  const absl::Span<std::byte> mirrored = mirror->bytes();
  auto region =
      std::make_unique<StagedRegion>(*this, *std::move(device), std::move(landing),
                                     std::move(mirror), options.bytes, std::move(why_not));
  LogWarning(options.name, ": ", DescribeMemory(region->device()->memory()));
  const std::lock_guard lock(set_up_);
  mirrors_.push_back({.device = region->bytes(), .host = mirrored});
  return region;
}

absl::Status DeviceTransport::RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) {
  std::string why_not = absl::StrCat(scheme(), ":// reads the host's memory only");
  if (kind == MemoryKind::kHost || inner_->capabilities().device_sources) {
    const absl::Status registered = inner_->RegisterSource(bytes, kind);
    if (kind == MemoryKind::kHost || !absl::IsFailedPrecondition(registered)) {
      return registered;
    }
    why_not = std::string(registered.message());
  }
  if (bytes.empty()) {
    return absl::OkStatus();
  }
  std::vector<std::byte> buffer(bytes.size() + kAlignment - 1);
  const size_t skip = -reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment;
  const absl::Span<std::byte> host = absl::MakeSpan(buffer).subspan(skip, bytes.size());
  LAMINA_RETURN_IF_ERROR(inner_->RegisterSource(host, MemoryKind::kHost));
  LogWarning("source of puts: ", DescribeMemory({.path = MemoryPath::kStaging,
                                                 .device = device_.name(),
                                                 .why_not = std::move(why_not)}));
  const std::lock_guard lock(set_up_);
  buffers_.push_back(std::move(buffer));
  mirrors_.push_back({.device = bytes, .host = host});
  return absl::OkStatus();
}

absl::Status DeviceTransport::Put(RemoteRegion& target, size_t offset,
                                  absl::Span<const std::byte> source, const SignalUpdate* signal) {
  const auto mirror = source.empty()
                          ? mirrors_.end()
                          : std::find_if(mirrors_.begin(), mirrors_.end(),
                                         [&](const Mirror& one) { return one.Holds(source); });
  if (mirror == mirrors_.end()) {
    return inner_->Put(target, offset, source, signal);
  }
  std::byte* const host = mirror->host.data() + (source.data() - mirror->device.data());
  LAMINA_RETURN_IF_ERROR(device_.CopyOut(host, source.data(), source.size()));
  return inner_->Put(target, offset, {host, source.size()}, signal);
}

}  // namespace

std::unique_ptr<Transport> OverDevice(std::unique_ptr<Transport> inner, DeviceMemory& device) {
  return std::make_unique<DeviceTransport>(std::move(inner), device);
}

}  // namespace lamina::transport
