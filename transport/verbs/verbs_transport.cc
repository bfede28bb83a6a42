// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_transport.h"

#include <sched.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/crowded_core.h"
#include "common/idle_naps.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "transport/outbox/landing_proxy.h"
#include "transport/outbox/outboxes.h"
#include "transport/put_check.h"
#include "transport/verbs/control_thread_internal.h"

namespace lamina::transport {
namespace {

// As in shm_transport.cc: a message crosses a good network in 1 to 2 us.
constexpr Nanos kSpin = Micros(3);
constexpr int kPollsPerClockRead = 4;

constexpr uint64_t kPutBytesMax = GiB(1);
// A Put takes at most this many work requests, and a queue has room for twice as many.
constexpr uint64_t kPiecesMax = 62;  // And two signals.
// Who posts on a link: the owner's polling thread, or the proxy of outboxes.
constexpr uint32_t kPollingUser = 0;
constexpr uint32_t kProxyUser = 1;
// For what is in flight when a view is destroyed; then its queue pair goes.
constexpr Nanos kDrainWait = Seconds(2);

class VerbsRegion final : public Region, private DeviceRegion {
 public:
  VerbsRegion(ControlThread& control, SourceTable& sources, const RegionMemory& memory,
              const VerbsDescriptor& descriptor)
      : control_(control), sources_(sources), memory_(memory), descriptor_(descriptor) {}
  ~VerbsRegion() override {
    landing_.reset();
    sources_.Remove(memory_.bytes());
    control_.CloseRegion(descriptor_.region);
  }
  VerbsRegion(const VerbsRegion&) = delete;
  VerbsRegion& operator=(const VerbsRegion&) = delete;

  absl::Span<std::byte> bytes() override { return memory_.bytes(); }
  uint32_t signal_words() const override { return memory_.signal_words(); }
  const DeviceRegion* device() const override {
    return memory_.device() == nullptr ? nullptr : this;
  }
  DirectMemory direct() override {
    return landing_ != nullptr ? landing_->memory() : memory_.direct();
  }
  uint64_t LoadSignal(uint32_t word) const override {
    LAMINA_CHECK(word < signal_words());
    // Acquire: the device wrote the data before.
    return memory_.word(word).load(std::memory_order_acquire);
  }
  std::string Descriptor() const override { return EncodeVerbsDescriptor(descriptor_); }

  // For a device that is to wait, and does not order the writes of NICs.
  absl::Status StartLanding() {
    LAMINA_ASSIGN_OR_RETURN(landing_, LandingProxy::Start(*this));
    return absl::OkStatus();
  }

 private:
  MemoryChoice memory() const override { return memory_.choice(); }
  absl::Status Land(size_t, size_t bytes) const override {
    return bytes == 0 ? absl::OkStatus() : memory_.device()->FlushPeerWrites();
  }

  ControlThread& control_;
  SourceTable& sources_;
  const RegionMemory& memory_;  // The control thread's; lasts at least until CloseRegion().
  const VerbsDescriptor descriptor_;
  std::unique_ptr<LandingProxy> landing_;
};

class VerbsTransport;

class VerbsRemoteRegion final : public RemoteRegion {
 public:
  VerbsRemoteRegion(VerbsTransport& transport, ControlThread& control,
                    std::shared_ptr<VerbsLink> link, ControlThread::OpenedView view,
                    const VerbsDescriptor& descriptor, std::string path)
      : transport_(transport),
        control_(control),
        link_(std::move(link)),
        view_(std::move(view)),
        descriptor_(descriptor),
        path_(std::move(path)),
        raised_(descriptor.signal_words) {}
  ~VerbsRemoteRegion() override {
    for (const Nanos end = RealClock().Now() + kDrainWait; pending() > 0;) {
      if (link_->gone.load() || RealClock().Now() >= end || !link_->queue->Poll().ok()) {
        link_->gone.store(true);
        link_->queue->Destroy();
      }
    }
    control_.DropView(*link_, view_.number);
  }
  VerbsRemoteRegion(const VerbsRemoteRegion&) = delete;
  VerbsRemoteRegion& operator=(const VerbsRemoteRegion&) = delete;

  size_t size_bytes() const override { return descriptor_.data_bytes; }
  uint32_t signal_words() const override { return descriptor_.signal_words; }
  std::string path() const override { return path_; }
  DirectMemory direct() override;

  VerbsLink& link() const { return *link_; }
  ViewState& state() const { return *view_.state; }
  uint32_t pending() const { return state().pending.load(std::memory_order_relaxed); }
  void set_raised(const SignalUpdate& signal) { raised_[signal.word] = signal.value; }

  // Whether the arguments are right, and the peer is there as far as one knows.
  absl::Status CheckPut(size_t offset, size_t bytes, const SignalUpdate* signal) const;

  VerbsQueue::Write DataWrite(size_t offset, absl::Span<const std::byte> source,
                              uint32_t lkey) const {
    return {.remote_address = descriptor_.data_address + offset,
            .rkey = descriptor_.data_rkey,
            .source = source,
            .lkey = lkey};
  }
  // A word in the device's memory goes first: it is a step nearer to who waits for it.
  using SignalWrites = absl::InlinedVector<VerbsQueue::Signal, 2>;
  SignalWrites WritesOf(const SignalUpdate* signal) const {
    SignalWrites writes;
    if (signal != nullptr && descriptor_.device_words != 0) {
      writes.push_back(
          {.remote_address = descriptor_.device_words + signal->word * kVerbsSignalStride,
           .rkey = descriptor_.data_rkey,
           .value = signal->value});
    }
    if (signal != nullptr) {
      writes.push_back({.remote_address = descriptor_.address + signal->word * kVerbsSignalStride,
                        .rkey = descriptor_.rkey,
                        .value = signal->value});
    }
    return writes;
  }

 private:
  VerbsTransport& transport_;
  ControlThread& control_;
  const std::shared_ptr<VerbsLink> link_;
  const ControlThread::OpenedView view_;
  const VerbsDescriptor descriptor_;
  const std::string path_;
  std::vector<uint64_t> raised_;
  std::unique_ptr<RegionOutbox> outbox_;  // For devices, once somebody has asked.
};

absl::Status VerbsRemoteRegion::CheckPut(size_t offset, size_t bytes,
                                         const SignalUpdate* signal) const {
  LAMINA_RETURN_IF_ERROR(CheckPutArguments("verbs", size_bytes(), raised_, offset, bytes, signal));
  if (state().closed.load(std::memory_order_relaxed)) {
    return absl::UnavailableError("verbs: the owner has destroyed the region");
  }
  if (link_->gone.load(std::memory_order_relaxed)) {
    return absl::UnavailableError("verbs: the peer is gone: its connection ended");
  }
  return absl::OkStatus();
}

class VerbsTransport final : public Transport {
 public:
  // `user` tells apart the transports that share `control`.
  VerbsTransport(std::shared_ptr<VerbsLocal> local, std::shared_ptr<ControlThread> control,
                 DeviceMemory* device, uint32_t user)
      : local_(std::move(local)),
        device_(device),
        capabilities_{
            .device_memory = device != nullptr,
            .device_sources = device != nullptr,
            .one_sided = true,
            .put_bytes_max = std::min(kPutBytesMax, kPiecesMax * local_->message_bytes_max),
            .in_flight_max = local_->options.queue},
        user_(user),
        control_(std::move(control)) {}

  absl::string_view scheme() const override { return "verbs"; }
  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) override;
  absl::StatusOr<std::unique_ptr<RemoteRegion>> OpenRegion(absl::string_view descriptor,
                                                           uint64_t epoch) override;
  absl::Status RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) override;
  absl::Status Put(RemoteRegion& target, size_t offset, absl::Span<const std::byte> source,
                   const SignalUpdate* signal) override;
  uint32_t Pending(const RemoteRegion& target) const override {
    return static_cast<const VerbsRemoteRegion&>(target).pending();
  }
  uint32_t Progress() override;
  absl::StatusOr<size_t> Wait(const Region& region, absl::Span<const SignalCondition> conditions,
                              const WaitOptions& options) override;

  // Those of devices, whose proxy has queue pairs of its own.
  Outboxes& outboxes() {
    if (outboxes_ == nullptr) {
      outboxes_ = std::make_unique<Outboxes>(
          std::make_unique<VerbsTransport>(local_, control_, device_, kProxyUser));
    }
    return *outboxes_;
  }

 private:
  // Takes completions; a queue pair that failed is destroyed.
  static uint32_t Reap(VerbsLink& link);

  // In the order of destruction, reversed: queue pairs go before the domain and the context.
  const std::shared_ptr<VerbsLocal> local_;
  DeviceMemory* const device_;  // Null where there is none.
  const Capabilities capabilities_;
  SourceTable sources_;
  std::mutex opening_;
  std::vector<std::shared_ptr<VerbsLink>> links_;  // Written by OpenRegion().
  IdleNaps naps_;                                  // Those of Wait().
  const uint32_t user_;
  const std::shared_ptr<ControlThread> control_;
  std::unique_ptr<Outboxes> outboxes_;
};

DirectMemory VerbsRemoteRegion::direct() {
  if (outbox_ == nullptr) {
    auto opened = transport_.outboxes().Open(EncodeVerbsDescriptor(descriptor_), descriptor_.epoch);
    if (!opened.ok()) {
      LogWarning("verbs: no outbox for devices: ", opened.status().message());
      return {};
    }
    outbox_ = *std::move(opened);
  }
  return outbox_->memory();
}

absl::StatusOr<std::unique_ptr<Region>> VerbsTransport::CreateRegion(const RegionOptions& options) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<RegionMemory> memory,
                          RegionMemory::Create(local_->domain.get(), options, device_));
  const RegionMemory& kept = *memory;
  VerbsDescriptor descriptor = control_->self();
  descriptor.epoch = options.epoch;
  descriptor.data_bytes = options.bytes;
  descriptor.signal_words = options.signal_words;
  descriptor.address = reinterpret_cast<uint64_t>(kept.registration().addr);
  descriptor.rkey = kept.registration().rkey;
  descriptor.data_address = reinterpret_cast<uint64_t>(kept.bytes().data());
  descriptor.data_rkey = kept.data_registration().rkey;
  descriptor.device_words = reinterpret_cast<uint64_t>(kept.device_words());
  const std::lock_guard lock(opening_);
  sources_.Add(kept.bytes(), kept.data_registration().lkey, nullptr);
  descriptor.region = control_->AddRegion(std::move(memory));
  auto region = std::make_unique<VerbsRegion>(*control_, sources_, kept, descriptor);
  if (options.polled_by_device && kept.device() != nullptr && kept.device_words() == nullptr) {
    LAMINA_RETURN_IF_ERROR(region->StartLanding());
  }
  return region;
}

absl::StatusOr<std::unique_ptr<RemoteRegion>> VerbsTransport::OpenRegion(
    absl::string_view descriptor, uint64_t epoch) {
  LAMINA_ASSIGN_OR_RETURN(const VerbsDescriptor decoded, DecodeVerbsDescriptor(descriptor));
  if (decoded.epoch != epoch) {
    return absl::AbortedError(absl::StrCat("verbs: descriptor of epoch ", decoded.epoch,
                                           ", this is epoch ", epoch,
                                           ": ask the peer for a new one"));
  }
  const std::lock_guard lock(opening_);
  LAMINA_ASSIGN_OR_RETURN(std::shared_ptr<VerbsLink> link, control_->Connect(decoded, user_));
  LAMINA_ASSIGN_OR_RETURN(ControlThread::OpenedView view,
                          control_->OpenView(*link, decoded.region));
  if (std::find(links_.begin(), links_.end(), link) == links_.end()) {
    std::erase_if(links_, [](const auto& old) { return old.use_count() == 1; });
    links_.push_back(link);
  }
  return std::make_unique<VerbsRemoteRegion>(*this, *control_, std::move(link), std::move(view),
                                             decoded,
                                             absl::StrCat("verbs ", local_->choice.port.device));
}

absl::Status VerbsTransport::RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) {
  if (kind != MemoryKind::kHost && device_ == nullptr) {
    return absl::InvalidArgumentError(
        "verbs: this transport was made without a device, and puts read host memory only");
  }
  if (bytes.empty()) {
    return absl::OkStatus();
  }
  // Only read: it may be memory that this process cannot write.
  VerbsMemory memory;
  if (kind == MemoryKind::kDevice) {
    LAMINA_ASSIGN_OR_RETURN(
        VerbsDeviceMemory registered,
        RegisterVerbsDeviceMemory(local_->domain.get(), *device_, bytes, /*access=*/0));
    LogInfo("source of puts: ", DescribeMemory(registered.choice));
    memory = std::move(registered.memory);
  } else {
    LAMINA_ASSIGN_OR_RETURN(
        memory, RegisterVerbsMemory(local_->domain.get(), const_cast<std::byte*>(bytes.data()),
                                    bytes.size(), 0, "source of puts"));
  }
  const uint32_t lkey = memory->lkey;
  const std::lock_guard lock(opening_);
  sources_.Add(bytes, lkey, std::move(memory));
  return absl::OkStatus();
}

absl::Status VerbsTransport::Put(RemoteRegion& target, size_t offset,
                                 absl::Span<const std::byte> source, const SignalUpdate* signal) {
  auto& remote = static_cast<VerbsRemoteRegion&>(target);
  if (source.size() > capabilities_.put_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat("verbs: put of ", FormatBytes(source.size()),
                                                   ", at most ",
                                                   FormatBytes(capabilities_.put_bytes_max)));
  }
  LAMINA_RETURN_IF_ERROR(remote.CheckPut(offset, source.size(), signal));
  VerbsQueue& queue = *remote.link().queue;
  const VerbsRemoteRegion::SignalWrites signals = remote.WritesOf(signal);
  const uint32_t cost = queue.Cost(source.size(), static_cast<uint32_t>(signals.size()));
  if (cost == 0) {
    return absl::OkStatus();
  }
  uint32_t lkey = 0;
  if (!source.empty()) {
    const std::optional<uint32_t> found = sources_.Find(source);
    if (!found) {
      return absl::InvalidArgumentError(
          absl::StrCat("verbs: a source of ", source.size(), " bytes that was not registered"));
    }
    lkey = *found;
  }
  if (!queue.HasRoom(cost)) {
    Reap(remote.link());  // Much of it may be complete, if the caller waited by other means.
    LAMINA_RETURN_IF_ERROR(remote.CheckPut(offset, source.size(), signal));
  }
  if (!queue.HasRoom(cost)) {
    return absl::ResourceExhaustedError("verbs: the queue to the peer is full");
  }
  std::atomic<uint32_t>& pending = remote.state().pending;
  pending.store(pending.load(std::memory_order_relaxed) + 1);
  absl::Status status;
  if (remote.state().closed.load()) {
    status = absl::UnavailableError("verbs: the owner has destroyed the region");
  } else {
    status = queue.Post(remote.DataWrite(offset, source, lkey), signals, &remote.state());
  }
  if (!status.ok()) {
    remote.link().gone.store(remote.link().gone.load() || queue.destroyed());
    // Not what it was before: the others' writes ended with a queue pair that was destroyed.
    pending.store(pending.load(std::memory_order_relaxed) - 1);
    return status;
  }
  if (signal != nullptr) {
    remote.set_raised(*signal);
  }
  return absl::OkStatus();
}

uint32_t VerbsTransport::Reap(VerbsLink& link) {
  if (link.queue->idle()) {
    return 0;
  }
  if (link.gone.load(std::memory_order_relaxed)) {
    link.queue->Destroy();
    return 0;
  }
  const absl::StatusOr<uint32_t> done = link.queue->Poll();
  if (!done.ok()) {
    LogWarning(done.status().message());
    link.gone.store(true);
    link.queue->Destroy();
    return 0;
  }
  return *done;
}

uint32_t VerbsTransport::Progress() {
  uint32_t completed = 0;
  for (const std::shared_ptr<VerbsLink>& link : links_) {
    completed += Reap(*link);
  }
  return completed;
}

absl::StatusOr<size_t> VerbsTransport::Wait(const Region& region,
                                            absl::Span<const SignalCondition> conditions,
                                            const WaitOptions& options) {
  for (const SignalCondition& condition : conditions) {
    LAMINA_CHECK(condition.word < region.signal_words());
  }
  const Clock& clock = RealClock();
  Nanos start = 0;
  Nanos yield = 0;
  for (;;) {
    for (int poll = 0; poll < kPollsPerClockRead; ++poll) {
      for (size_t i = 0; i < conditions.size(); ++i) {
        if (region.LoadSignal(conditions[i].word) >= conditions[i].at_least) {
          naps_.Came();
          return i;
        }
      }
    }
    Progress();
    // Acquire: what was written before raising it is visible to the caller.
    if (options.abort != nullptr && options.abort->load(std::memory_order_acquire) != 0) {
      return absl::CancelledError("verbs: the wait was aborted");
    }
    const Nanos now = clock.Now();
    if (start == 0) {
      start = now;
      yield = YieldTime(now);
    }
    if (now >= options.deadline) {
      return absl::DeadlineExceededError("verbs: no signal came by the deadline");
    }
    if (now - start >= kSpin + yield) {
      std::this_thread::sleep_for(naps_.Next(now));
    } else if (now - start >= kSpin) {
      sched_yield();
    }
  }
}

}  // namespace

bool VerbsIsBuilt() { return true; }

absl::StatusOr<std::unique_ptr<Transport>> MakeVerbsTransport(absl::string_view name,
                                                              DeviceMemory* device,
                                                              const ClusterSecret& secret) {
  LAMINA_ASSIGN_OR_RETURN(const VerbsOptions options, ParseVerbsOptions(name));
  LAMINA_ASSIGN_OR_RETURN(std::shared_ptr<VerbsLocal> local, VerbsLocal::Open(options));
  LAMINA_ASSIGN_OR_RETURN(std::shared_ptr<ControlThread> control,
                          ControlThread::Start(*local, secret));
  LogInfo("verbs: ", local->choice.reason, "; host memory by ibv_reg_mr");
  return std::make_unique<VerbsTransport>(std::move(local), std::move(control), device,
                                          kPollingUser);
}

}  // namespace lamina::transport
