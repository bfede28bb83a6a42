// SPDX-License-Identifier: Apache-2.0
//
// Before data flows, and after: workers, regions, views, sources.
#include "transport/ucx/ucx_transport.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/host_memory.h"
#include "common/port_range.h"
#include "common/status_macros.h"
#include "transport/ucx/ucx_transport_internal.h"

namespace lamina::transport {
namespace {

constexpr Nanos kOpenMax = Seconds(5);
// What a view that is destroyed gives to what is under way, before it cuts it.
constexpr Nanos kDrainMax = Millis(10);

absl::Status CheckOptions(const RegionOptions& options, const DeviceMemory* device) {
  if (options.kind != MemoryKind::kHost && device == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.name, ": this ucx:// was made without a device, and its regions lie in the host's ",
        "memory"));
  }
  if (options.bytes == 0 && options.signal_words == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.name, ": a region needs bytes or signal words; both are 0"));
  }
  if (options.signal_words > kUcxSignalWordsMax) {
    return absl::InvalidArgumentError(absl::StrCat(options.name, ": ", options.signal_words,
                                                   " signal words, at most ", kUcxSignalWordsMax));
  }
  const HostMemory memory = QueryHostMemory();
  const uint64_t bytes = options.kind == MemoryKind::kHost ? options.bytes : 0;
  if (options.bytes > kUcxDataBytesMax ||
      bytes + UcxDataOffset(options.signal_words) > memory.available_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options.name, ": ", FormatBytes(options.bytes), " asked for, ",
                     FormatBytes(memory.available_bytes), " free (", memory.limit, ")"));
  }
  return absl::OkStatus();
}

struct UcxOptions {
  PeerReach reach = PeerReach::kAnyHost;
  PortRange ports;  // Ports of the watch; UCX's own listeners obey its variable UCX_TCP_PORT_RANGE.
};

// "", or "?peers=local&ports=23000-23099" or a part of it.
absl::StatusOr<UcxOptions> ParseOptions(absl::string_view text) {
  UcxOptions options;
  if (!absl::ConsumePrefix(&text, "?")) {
    return options;
  }
  for (absl::string_view option : absl::StrSplit(text, '&')) {
    if (option == "peers=local") {
      options.reach = PeerReach::kThisHost;
    } else if (absl::ConsumePrefix(&option, "ports=")) {
      LAMINA_ASSIGN_OR_RETURN(options.ports, ParsePortRange(option));
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "ucx: unknown option \"", option, "\"; known are peers=local and ports=FIRST-LAST"));
    }
  }
  return options;
}

// Adds the range to an error of workers and of the watch, which listen in it.
absl::Status WithRange(const absl::Status& status, const PortRange& ports) {
  return status.ok() || !ports.is_set()
             ? status
             : absl::Status(status.code(),
                            absl::StrCat(status.message(), " (ports: ", ToString(ports),
                                         ": each node needs two for each network interface of its "
                                         "host, and one)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> UcxTransport::Make(absl::string_view name,
                                                              DeviceMemory* device,
                                                              const ClusterSecret& secret) {
  std::unique_ptr<UcxTransport> made(new UcxTransport(device));
  LAMINA_RETURN_IF_ERROR(made->SetUp(name, secret));
  return made;
}

absl::Status UcxTransport::SetUp(absl::string_view uri_name, const ClusterSecret& secret) {
  const size_t question = std::min(uri_name.find('?'), uri_name.size());
  const absl::string_view name = uri_name.substr(0, question);
  LAMINA_ASSIGN_OR_RETURN(const UcxOptions options, ParseOptions(uri_name.substr(question)));
  LAMINA_ASSIGN_OR_RETURN(context_, MakeUcpContext(name, options.reach));
  LAMINA_ASSIGN_OR_RETURN(knows_cuda_, HasCudaMemory(context_.get()));
  LAMINA_ASSIGN_OR_RETURN(takes_rdma_, TakesRdma(name));
  capabilities_.device_memory = device_ != nullptr;
  capabilities_.device_sources = device_ != nullptr;
  for (UcpWorker* worker : {&receiver_, &sender_}) {
    absl::StatusOr<UcpWorker> made = MakeUcpWorker(context_.get());
    LAMINA_RETURN_IF_ERROR(WithRange(made.status(), options.ports));
    *worker = *std::move(made);
  }
  LAMINA_ASSIGN_OR_RETURN(receiver_address_, AddressOf(receiver_.get()));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> devices, NamedDevices());
  absl::StatusOr<std::unique_ptr<PeerWatch>> watch =
      PeerWatch::Start(options.reach, secret, options.ports, devices);
  LAMINA_RETURN_IF_ERROR(WithRange(watch.status(), options.ports));
  watch_ = *std::move(watch);
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &OnMessage;
  handler.arg = this;
  if (const ucs_status_t status = ucp_worker_set_am_recv_handler(receiver_.get(), &handler);
      status != UCS_OK) {
    return UcsError("setting the handler of messages", status);
  }
  for (Operation& operation : operations_) {
    operation.transport = this;
    free_.push_back(&operation);
  }
  return absl::OkStatus();
}

absl::StatusOr<ucs_memory_type_t> UcxTransport::DeviceType() const {
  if (device_->addresses() == DeviceAddresses::kHost) {
    return UCS_MEMORY_TYPE_HOST;
  }
  if (device_->addresses() == DeviceAddresses::kCuda && knows_cuda_) {
    return UCS_MEMORY_TYPE_CUDA;
  }
  if (device_->addresses() == DeviceAddresses::kOpaque) {
    return absl::FailedPreconditionError(absl::StrCat("UCX knows no memory of ", device_->name()));
  }
  return absl::FailedPreconditionError(
      "this UCX knows no CUDA memory: `ucx_info -d` lists cuda_copy where UCX was built with CUDA "
      "and finds a device; Debian's has none");
}

absl::StatusOr<UcxMemory> UcxTransport::MakeMemory(const RegionOptions& options) const {
  const size_t words = UcxDataOffset(options.signal_words);
  if (options.kind == MemoryKind::kHost || options.bytes == 0) {
    LAMINA_ASSIGN_OR_RETURN(UcpMemory host,
                            UcpMemory::Allocate(context_.get(), words + options.bytes));
    return UcxMemory{.host = std::move(host), .device = {}, .mapped = std::nullopt};
  }
  LAMINA_ASSIGN_OR_RETURN(const ucs_memory_type_t type, DeviceType());
  if (!options.may_stage && !takes_rdma_) {
    return absl::FailedPreconditionError(
        "without RDMA what comes is copied to the device by UCX's receiver; UCX_TLS=rc,self or so "
        "asks for RDMA, where there is a device of it");
  }
  if (const absl::Status flushed = device_->FlushPeerWrites(); !flushed.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("no flush of writes: ", flushed.message()));
  }
  LAMINA_ASSIGN_OR_RETURN(DeviceAllocation device, DeviceAllocation::Make(*device_, options.bytes));
  LAMINA_ASSIGN_OR_RETURN(
      UcpMemory mapped,
      UcpMemory::Register(context_.get(), device.bytes().data(), device.bytes().size(), type));
  LAMINA_ASSIGN_OR_RETURN(UcpMemory host,
                          UcpMemory::Allocate(context_.get(), std::max(words, kUcxSignalStride)));
  return UcxMemory{
      .host = std::move(host), .device = std::move(device), .mapped = std::move(mapped)};
}

absl::StatusOr<std::unique_ptr<Region>> UcxTransport::CreateRegion(const RegionOptions& options) {
  LAMINA_RETURN_IF_ERROR(CheckOptions(options, device_));
  const std::lock_guard lock(set_up_);
  absl::StatusOr<UcxMemory> memory = MakeMemory(options);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(),
                        absl::StrCat(options.name, ": ", memory.status().message()));
  }
  std::byte* const words = memory->host.data();
  std::byte* const data = memory->mapped.has_value() ? memory->mapped->data()
                                                     : words + UcxDataOffset(options.signal_words);
  UcxDescriptor descriptor = {.epoch = options.epoch,
                              .region = DrawWatchId(),
                              .address = reinterpret_cast<uint64_t>(words),
                              .data_bytes = options.bytes,
                              .signal_words = options.signal_words,
                              .data_address = reinterpret_cast<uint64_t>(data),
                              .watch = watch_->address(),
                              .worker = receiver_address_};
  LAMINA_ASSIGN_OR_RETURN(descriptor.key, memory->host.PackRemoteKey());
  if (memory->mapped.has_value()) {
    LAMINA_ASSIGN_OR_RETURN(descriptor.data_key, memory->mapped->PackRemoteKey());
    LAMINA_ASSIGN_OR_RETURN(const ucs_memory_type_t type, DeviceType());
    AddSource(*memory->mapped, type);
  }
  AddSource(memory->host, UCS_MEMORY_TYPE_HOST);
  auto region = std::make_unique<UcxRegion>(
      *std::move(memory), std::move(descriptor),
      [this](UcxRegion& dying, UcxMemory retired) { Retire(dying, std::move(retired)); });
  regions_[region->fields().region] = region.get();
  watch_->Announce(region->fields().region);
  return region;
}

void UcxTransport::Retire(UcxRegion& region, UcxMemory memory) {
  watch_->Withdraw(region.fields().region);
  const std::lock_guard lock(set_up_);
  regions_.erase(region.fields().region);
  // Sources that lie in each other may share a handle, and only the region's own go.
  const auto is_of = [](const UcpMemory& own, const Source& source) {
    return source.handle == own.handle() && source.begin == own.data() &&
           source.end == own.data() + own.size();
  };
  std::erase_if(sources_, [&](const Source& source) {
    return is_of(memory.host, source) ||
           (memory.mapped.has_value() && is_of(*memory.mapped, source));
  });
  memories_.push_back(std::move(memory.host));
  if (memory.mapped.has_value()) {
    allocations_.push_back(std::move(memory.device));
    memories_.push_back(*std::move(memory.mapped));
  }
}

absl::StatusOr<UcxPeer*> UcxTransport::FindPeer(const WatchId& id, const std::string& address) {
  for (const std::unique_ptr<UcxPeer>& peer : peers_) {
    if (peer->id() == id && peer->failure() == UCS_OK) {
      return peer.get();
    }
  }
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<UcxPeer> peer,
                          UcxPeer::Connect(sender_.get(), id, address));
  peers_.push_back(std::move(peer));
  return peers_.back().get();
}

void UcxTransport::ReleasePeer(UcxPeer& peer) {
  if (peer.views == 0) {
    std::erase_if(peers_, [&](const std::unique_ptr<UcxPeer>& one) { return one.get() == &peer; });
  }
}

absl::StatusOr<std::unique_ptr<RemoteRegion>> UcxTransport::OpenRegion(absl::string_view descriptor,
                                                                       uint64_t epoch) {
  LAMINA_ASSIGN_OR_RETURN(const UcxDescriptor decoded, DecodeUcxDescriptor(descriptor));
  if (decoded.epoch != epoch) {
    return absl::AbortedError(absl::StrCat("ucx: descriptor of epoch ", decoded.epoch,
                                           ", this is epoch ", epoch,
                                           ": ask the peer for a new one"));
  }
  LAMINA_ASSIGN_OR_RETURN(const WatchId owner, PeerWatch::OwnerOf(decoded.watch));
  LAMINA_ASSIGN_OR_RETURN(
      auto watched, watch_->Open(decoded.watch, decoded.region, RealClock().Now() + kOpenMax));
  const std::lock_guard lock(set_up_);
  const absl::StatusOr<UcxPeer*> found = FindPeer(owner, decoded.worker);
  if (!found.ok()) {
    watch_->Forget(watched);
    return found.status();
  }
  UcxPeer* const peer = *found;
  absl::StatusOr<UcpRemoteKey> key = UnpackRemoteKey(peer->endpoint(), decoded.key);
  absl::StatusOr<UcpRemoteKey> data_key;
  if (key.ok() && !decoded.data_key.empty()) {
    data_key = UnpackRemoteKey(peer->endpoint(), decoded.data_key);
  } else {
    data_key = UcpRemoteKey();
  }
  if (!key.ok() || !data_key.ok()) {
    watch_->Forget(watched);
    ReleasePeer(*peer);
    return key.ok() ? data_key.status() : key.status();
  }
  ++peer->views;
  return std::make_unique<UcxRemoteRegion>(*this, decoded, std::move(watched), *peer,
                                           *std::move(key), *std::move(data_key));
}

void UcxTransport::AddSource(const UcpMemory& memory, ucs_memory_type_t type) {
  const Source source{memory.data(), memory.data() + memory.size(), memory.handle(), type};
  const auto by_begin = [](const Source& a, const Source& b) { return a.begin < b.begin; };
  sources_.insert(std::upper_bound(sources_.begin(), sources_.end(), source, by_begin), source);
}

absl::Status UcxTransport::RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) {
  if (kind == MemoryKind::kDevice && device_ == nullptr) {
    return absl::InvalidArgumentError(
        "ucx: this transport was made without a device, and puts read the host's memory only");
  }
  if (bytes.empty()) {
    return absl::OkStatus();
  }
  ucs_memory_type_t type = UCS_MEMORY_TYPE_HOST;
  if (kind == MemoryKind::kDevice) {
    LAMINA_ASSIGN_OR_RETURN(type, DeviceType());
  }
  const std::lock_guard lock(set_up_);
  LAMINA_ASSIGN_OR_RETURN(UcpMemory memory,
                          UcpMemory::Register(context_.get(), bytes.data(), bytes.size(), type));
  AddSource(memory, type);
  memories_.push_back(std::move(memory));
  return absl::OkStatus();
}

void UcxTransport::Close(UcxRemoteRegion& view) {
  const std::lock_guard lock(set_up_);
  watch_->Forget(view.watched_);
  const Nanos drained_by = RealClock().Now() + kDrainMax;
  while (view.pending_ > 0 && view.CheckPeer().ok() && RealClock().Now() < drained_by) {
    ucp_worker_progress(sender_.get());
    sched_yield();
  }
  --view.peer_.views;
  if (view.pending_ > 0 && view.peer_.views > 0) {
    // The peer takes nothing: what its other views have under way is lost with this.
    view.peer_.Cut();
  }
  ReleasePeer(view.peer_);
  LAMINA_CHECK(view.pending_ == 0);
}

UcxRemoteRegion::~UcxRemoteRegion() { transport_.Close(*this); }

bool UcxIsBuilt() { return true; }

absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(absl::string_view name,
                                                            DeviceMemory* device,
                                                            const ClusterSecret& secret) {
  return UcxTransport::Make(name, device, secret);
}

}  // namespace lamina::transport
