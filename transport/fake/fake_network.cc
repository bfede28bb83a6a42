// SPDX-License-Identifier: Apache-2.0
#include "transport/fake/fake_network.h"

#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "transport/descriptor_frame.h"
#include "transport/fake/fake_hub_internal.h"
#include "transport/outbox/landing_proxy.h"
#include "transport/outbox/outboxes.h"

namespace lamina::transport {
namespace {

constexpr absl::string_view kMagic = "LMNAFAK1";
using DescriptorFields = std::array<uint64_t, 2>;  // Region, epoch.

// A Wait naps after this long, so that a test with many threads gets on.
constexpr Nanos kYield = Micros(200);
constexpr std::chrono::microseconds kNap{50};

absl::StatusOr<DescriptorFields> Decode(absl::string_view bytes) {
  LAMINA_ASSIGN_OR_RETURN(absl::string_view body, DescriptorBody("fake", kMagic, bytes));
  DescriptorFields fields;
  if (!TakeField(body, fields) || !body.empty()) {
    return absl::InvalidArgumentError("fake: descriptor of an impossible length");
  }
  return fields;
}

std::string Encode(const FakeMemory& memory) {
  std::string body;
  AppendField(body, DescriptorFields{memory.id, memory.epoch});
  return FrameDescriptor(kMagic, body);
}

class FakeRegion final : public Region, private DeviceRegion {
 public:
  FakeRegion(std::shared_ptr<FakeHub> hub, std::shared_ptr<FakeMemory> memory)
      : hub_(std::move(hub)), memory_(std::move(memory)) {}
  ~FakeRegion() override {
    landing_.reset();
    hub_->RemoveRegion(*memory_);
  }
  FakeRegion(const FakeRegion&) = delete;
  FakeRegion& operator=(const FakeRegion&) = delete;

  absl::Span<std::byte> bytes() override { return memory_->bytes; }
  const DeviceRegion* device() const override {
    return memory_->device.memory() == nullptr ? nullptr : this;
  }
  DirectMemory direct() override {
    if (landing_ != nullptr) {
      return landing_->memory();
    }
    if (memory_->device_words != nullptr) {
      return {.bytes = memory_->bytes,
              .words = memory_->device_words,
              .word_stride = sizeof(uint64_t),
              .pages = {}};
    }
    if (!hub_->options().shows_memory || device() != nullptr) {
      return {};
    }
    return {.bytes = memory_->bytes,
            .words = memory_->pages.data(),
            .word_stride = sizeof(std::atomic<uint64_t>),
            .pages = memory_->pages};
  }
  uint32_t signal_words() const override { return static_cast<uint32_t>(memory_->signals.size()); }
  uint64_t LoadSignal(uint32_t word) const override {
    LAMINA_CHECK(word < signal_words());
    return memory_->signals[word].load(std::memory_order_acquire);
  }
  std::string Descriptor() const override { return Encode(*memory_); }

  // A device that is to wait itself has these.
  absl::Status LetDevicePoll() {
    if (device() != nullptr && memory_->device_words == nullptr) {
      LAMINA_ASSIGN_OR_RETURN(landing_, LandingProxy::Start(*this));
    }
    return absl::OkStatus();
  }

 private:
  MemoryChoice memory() const override {
    return {
        .path = MemoryPath::kPeermem, .device = memory_->device.memory()->name(), .why_not = ""};
  }
  absl::Status Land(size_t offset, size_t bytes) const override {
    LAMINA_CHECK(offset <= memory_->bytes.size() && bytes <= memory_->bytes.size() - offset);
    return hub_->Land(*memory_, offset, bytes);
  }

  const std::shared_ptr<FakeHub> hub_;
  const std::shared_ptr<FakeMemory> memory_;
  std::unique_ptr<LandingProxy> landing_;
};

class FakeTransport;

class FakeRemoteRegion final : public RemoteRegion {
 public:
  FakeRemoteRegion(FakeTransport& transport, std::shared_ptr<FakeHub> hub,
                   std::shared_ptr<FakeView> view)
      : transport_(transport), hub_(std::move(hub)), view_(std::move(view)) {}
  ~FakeRemoteRegion() override { hub_->RemoveView(*view_); }
  FakeRemoteRegion(const FakeRemoteRegion&) = delete;
  FakeRemoteRegion& operator=(const FakeRemoteRegion&) = delete;

  size_t size_bytes() const override { return view_->target->bytes.size(); }
  uint32_t signal_words() const override {
    return static_cast<uint32_t>(view_->target->signals.size());
  }
  std::string path() const override { return "fake"; }
  DirectMemory direct() override;
  const std::shared_ptr<FakeView>& view() const { return view_; }

 private:
  FakeTransport& transport_;
  const std::shared_ptr<FakeHub> hub_;
  const std::shared_ptr<FakeView> view_;
  std::unique_ptr<RegionOutbox> outbox_;
};

class FakeTransport final : public Transport {
 public:
  FakeTransport(std::shared_ptr<FakeHub> hub, DeviceMemory* device)
      : hub_(std::move(hub)),
        device_(hub_->options().reaches_devices ? device : nullptr),
        number_(hub_->AddTransport()),
        capabilities_{.device_memory = device_ != nullptr,
                      .device_sources = device_ != nullptr,
                      .one_sided = !hub_->options().target_must_progress,
                      .local_host_only = true,
                      .put_bytes_max = hub_->options().put_bytes_max,
                      .in_flight_max = hub_->options().in_flight_max} {}
  ~FakeTransport() override { hub_->RemoveTransport(number_); }
  FakeTransport(const FakeTransport&) = delete;
  FakeTransport& operator=(const FakeTransport&) = delete;

  absl::string_view scheme() const override { return "fake"; }
  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) override {
    LAMINA_RETURN_IF_ERROR(CheckOptions(options));
    DeviceAllocation device;
    if (options.kind == MemoryKind::kDevice && options.bytes > 0) {
      LAMINA_ASSIGN_OR_RETURN(
          device,
          DeviceAllocation::Make(
              *device_, options.polled_by_device ? FakeHub::DeviceBytes(options) : options.bytes));
    }
    auto region =
        std::make_unique<FakeRegion>(hub_, hub_->AddRegion(number_, options, std::move(device)));
    if (options.polled_by_device) {
      LAMINA_RETURN_IF_ERROR(region->LetDevicePoll());
    }
    return region;
  }

  absl::StatusOr<std::unique_ptr<RemoteRegion>> OpenRegion(absl::string_view descriptor,
                                                           uint64_t epoch) override {
    LAMINA_ASSIGN_OR_RETURN(const DescriptorFields body, Decode(descriptor));
    if (body[1] != epoch) {
      return absl::AbortedError(
          absl::StrCat("fake: descriptor of epoch ", body[1], ", this is epoch ", epoch));
    }
    LAMINA_ASSIGN_OR_RETURN(std::shared_ptr<FakeView> view, hub_->AddView(number_, body[0]));
    return std::make_unique<FakeRemoteRegion>(*this, hub_, std::move(view));
  }

  absl::Status RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) override {
    if (kind != MemoryKind::kHost && device_ == nullptr) {
      return absl::InvalidArgumentError("fake: host memory only");
    }
    hub_->AddSource(number_, bytes, kind == MemoryKind::kHost ? nullptr : device_);
    return absl::OkStatus();
  }

  absl::Status Put(RemoteRegion& target, size_t offset, absl::Span<const std::byte> source,
                   const SignalUpdate* signal) override {
    const auto& remote = static_cast<FakeRemoteRegion&>(target);
    LAMINA_CHECK(remote.view()->sender == number_);
    return hub_->Put(remote.view(), offset, source, signal);
  }

  uint32_t Pending(const RemoteRegion& target) const override {
    return hub_->Pending(*static_cast<const FakeRemoteRegion&>(target).view());
  }

  uint32_t Progress() override { return hub_->Step(number_); }

  absl::StatusOr<size_t> Wait(const Region& region, absl::Span<const SignalCondition> conditions,
                              const WaitOptions& options) override;

  Outboxes& outboxes() {
    if (outboxes_ == nullptr) {
      outboxes_ = std::make_unique<Outboxes>(std::make_unique<FakeTransport>(hub_, device_));
    }
    return *outboxes_;
  }

 private:
  absl::Status CheckOptions(const RegionOptions& options) const {
    if (options.kind != MemoryKind::kHost && device_ == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(options.name, ": fake:// has no GPU"));
    }
    if (options.bytes == 0 && options.signal_words == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.name, ": a region needs bytes or signal words; both are 0"));
    }
    constexpr uint32_t kWordsMax = 1u << 20;
    if (options.signal_words > kWordsMax) {
      return absl::InvalidArgumentError(absl::StrCat(options.name, ": ", options.signal_words,
                                                     " signal words, at most ", kWordsMax));
    }
    // A region is zeroed when it is made: asking for more would try to take it all.
    constexpr size_t kBytesMax = GiB(1);
    if (options.bytes > kBytesMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat(options.name, ": ", FormatBytes(options.bytes), " asked for, fake:// holds ",
                       FormatBytes(kBytesMax), " at most"));
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<FakeHub> hub_;
  DeviceMemory* const device_;  // Null where it is not reached, or not there.
  const uint64_t number_;
  const Capabilities capabilities_;
  std::unique_ptr<Outboxes> outboxes_;
};

DirectMemory FakeRemoteRegion::direct() {
  if (!hub_->options().shows_memory) {
    return {};
  }
  if (outbox_ == nullptr) {
    auto opened = transport_.outboxes().Open(Encode(*view_->target), view_->target->epoch);
    if (!opened.ok()) {
      LogWarning("fake: no outbox for devices: ", opened.status().message());
      return {};
    }
    outbox_ = *std::move(opened);
  }
  return outbox_->memory();
}

absl::StatusOr<size_t> FakeTransport::Wait(const Region& region,
                                           absl::Span<const SignalCondition> conditions,
                                           const WaitOptions& options) {
  const Nanos start = RealClock().Now();
  for (;;) {
    for (size_t i = 0; i < conditions.size(); ++i) {
      if (region.LoadSignal(conditions[i].word) >= conditions[i].at_least) {
        return i;
      }
    }
    if (options.abort != nullptr && options.abort->load(std::memory_order_acquire) != 0) {
      return absl::CancelledError("fake: the wait was aborted");
    }
    const Nanos now = RealClock().Now();
    if (now >= options.deadline) {
      return absl::DeadlineExceededError("fake: no signal came by the deadline");
    }
    hub_->Step(number_);
    if (now - start < kYield) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

// The networks of this process, by name.
struct Networks {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<FakeHub>> hubs;  // Guarded by mutex.
};

Networks& AllNetworks() {
  static auto* const networks = new Networks;  // Never destroyed: other statics may use it.
  return *networks;
}

}  // namespace

FakeNetwork::FakeNetwork(const FakeNetworkOptions& options)
    : hub_(std::make_shared<FakeHub>(options)) {}

FakeNetwork::FakeNetwork(std::shared_ptr<FakeHub> hub) : hub_(std::move(hub)) {}

FakeNetwork::~FakeNetwork() = default;

std::shared_ptr<FakeNetwork> FakeNetwork::Named(absl::string_view name,
                                                const FakeNetworkOptions& options) {
  Networks& networks = AllNetworks();
  const std::lock_guard lock(networks.mutex);
  std::weak_ptr<FakeHub>& known = networks.hubs[std::string(name)];
  std::shared_ptr<FakeHub> hub = known.lock();
  if (hub == nullptr) {
    hub = std::make_shared<FakeHub>(options);
    known = hub;
  }
  return std::shared_ptr<FakeNetwork>(new FakeNetwork(std::move(hub)));
}

void FakeNetwork::SetLinks(FakeLinks links) { hub_->SetLinks(std::move(links)); }

std::unique_ptr<Transport> FakeNetwork::MakeTransport(DeviceMemory* device) {
  return std::make_unique<FakeTransport>(hub_, device);
}

}  // namespace lamina::transport
