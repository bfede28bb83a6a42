// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_transport.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "transport/shm/host_memory.h"
#include "transport/ucx/ucx_region_internal.h"

namespace lamina::transport {
namespace {

constexpr uint64_t kPutBytesMax = MiB(64);
constexpr uint32_t kInFlightMax = 1024;
// UCX puts a long message together in memory that it allocates; pieces of this size it gets back
// from the heap without asking the kernel.
constexpr size_t kPieceBytes = KiB(64);
// A Put of the largest size always fits.
constexpr uint32_t kOperationsMax = kInFlightMax + kPutBytesMax / kPieceBytes;
constexpr unsigned kMessageId = 1;

// As in shm_transport.cc; a nap instead of a futex, since nobody wakes us.
constexpr Nanos kSpin = Micros(10);
constexpr Nanos kYield = Micros(100);
constexpr std::chrono::microseconds kNap{50};

constexpr Nanos kOpenMax = Seconds(5);
// What a view that is destroyed gives to what is under way, before it cuts it.
constexpr Nanos kDrainMax = Millis(10);

}  // namespace

class UcxTransport final : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Make(absl::string_view name);
  ~UcxTransport() override { LAMINA_CHECK(peers_.empty() && regions_.empty()); }

  absl::string_view scheme() const override { return "ucx"; }
  const Capabilities& capabilities() const override { return capabilities_; }
  absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) override;
  absl::StatusOr<std::unique_ptr<RemoteRegion>> OpenRegion(absl::string_view descriptor,
                                                           uint64_t epoch) override;
  absl::Status RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) override;
  absl::Status Put(RemoteRegion& target, size_t offset, absl::Span<const std::byte> source,
                   const SignalUpdate* signal) override;
  uint32_t Pending(const RemoteRegion& target) const override {
    return static_cast<const UcxRemoteRegion&>(target).pending_;
  }
  uint32_t Progress() override;
  absl::StatusOr<size_t> Wait(const Region& region, absl::Span<const SignalCondition> conditions,
                              const WaitOptions& options) override;

  // Ends what a view has under way.
  void Close(UcxRemoteRegion& view);

 private:
  // An operation that UCX has not ended, and what it reads besides the source.
  struct Operation {
    UcxTransport* transport = nullptr;
    UcxRemoteRegion* view = nullptr;
    union {
      uint64_t value;      // A signal by put.
      UcxMessage message;  // The head of an active message.
    };
  };
  struct Source {
    const std::byte* begin;
    const std::byte* end;
    ucp_mem_h handle;
  };

  UcxTransport() : operations_(kOperationsMax) {}

  absl::Status SetUp(absl::string_view name);
  void Retire(UcxRegion& region, UcpMemory memory);
  absl::StatusOr<UcxPeer*> FindPeer(const WatchId& id, const std::string& address);
  void ReleasePeer(UcxPeer& peer);
  void AddSource(const UcpMemory& memory);
  const Source* FindSource(absl::Span<const std::byte> bytes) const;
  Operation& Take(UcxRemoteRegion& view);
  void Release(Operation& operation);
  bool Track(Operation& operation, ucs_status_ptr_t request);
  bool PutDirect(UcxRemoteRegion& view, size_t offset, absl::Span<const std::byte> source,
                 ucp_mem_h handle);
  bool RaiseDirect(UcxRemoteRegion& view, const SignalUpdate& signal);
  bool SendMessages(UcxRemoteRegion& view, size_t offset, absl::Span<const std::byte> source,
                    const SignalUpdate* signal);
  static void OnDone(void* request, ucs_status_t status, void* operation);
  static ucs_status_t OnMessage(void* transport, const void* header, size_t header_bytes,
                                void* data, size_t bytes, const ucp_am_recv_param_t* param);

  const Capabilities capabilities_ = {.device_memory = false,
                                      .one_sided = false,  // Depends on the peer; see path().
                                      .local_host_only = false,
                                      .put_bytes_max = kPutBytesMax,
                                      .in_flight_max = kInFlightMax};
  // Order matters: members die last to first.
  UcpContext context_;
  std::unique_ptr<PeerWatch> watch_;
  std::string receiver_address_;
  std::mutex set_up_;                // Of regions, views and sources; not for the data path.
  std::vector<UcpMemory> memories_;  // Registered sources, and regions that were destroyed.
  UcpWorker receiver_;               // Peers connect to it.
  UcpWorker sender_;                 // All endpoints of ours are its.
  std::vector<Source> sources_;      // By `begin`; they may overlap.
  std::map<WatchId, UcxRegion*> regions_;
  std::vector<std::unique_ptr<UcxPeer>> peers_;
  std::vector<Operation> operations_;
  std::vector<Operation*> free_;
  uint32_t completed_ = 0;
  uint64_t refused_ = 0;  // Messages to no region of ours, or outside of it.
};

namespace {

absl::Status CheckOptions(const RegionOptions& options) {
  if (options.kind != MemoryKind::kHost) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.name, ": this build of ucx:// holds host memory only"));
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
  if (options.bytes > kUcxDataBytesMax ||
      options.bytes + UcxDataOffset(options.signal_words) > memory.available_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options.name, ": ", FormatBytes(options.bytes), " asked for, ",
                     FormatBytes(memory.available_bytes), " free (", memory.limit, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> UcxTransport::Make(absl::string_view name) {
  std::unique_ptr<UcxTransport> made(new UcxTransport);
  LAMINA_RETURN_IF_ERROR(made->SetUp(name));
  return made;
}

absl::Status UcxTransport::SetUp(absl::string_view name) {
  LAMINA_ASSIGN_OR_RETURN(context_, MakeUcpContext(name));
  LAMINA_ASSIGN_OR_RETURN(receiver_, MakeUcpWorker(context_.get()));
  LAMINA_ASSIGN_OR_RETURN(sender_, MakeUcpWorker(context_.get()));
  LAMINA_ASSIGN_OR_RETURN(receiver_address_, AddressOf(receiver_.get()));
  LAMINA_ASSIGN_OR_RETURN(watch_, PeerWatch::Start());
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

absl::StatusOr<std::unique_ptr<Region>> UcxTransport::CreateRegion(const RegionOptions& options) {
  LAMINA_RETURN_IF_ERROR(CheckOptions(options));
  const size_t bytes = UcxDataOffset(options.signal_words) + options.bytes;
  const std::lock_guard lock(set_up_);
  absl::StatusOr<UcpMemory> memory = UcpMemory::Allocate(context_.get(), bytes);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(),
                        absl::StrCat(options.name, ": ", memory.status().message()));
  }
  UcxDescriptor descriptor = {.epoch = options.epoch,
                              .region = DrawWatchId(),
                              .address = reinterpret_cast<uint64_t>(memory->data()),
                              .data_bytes = options.bytes,
                              .signal_words = options.signal_words,
                              .watch = watch_->address(),
                              .worker = receiver_address_};
  LAMINA_ASSIGN_OR_RETURN(descriptor.key, memory->PackRemoteKey());
  AddSource(*memory);
  auto region = std::make_unique<UcxRegion>(
      *std::move(memory), std::move(descriptor),
      [this](UcxRegion& dying, UcpMemory retired) { Retire(dying, std::move(retired)); });
  regions_[region->fields().region] = region.get();
  watch_->Announce(region->fields().region);
  return region;
}

void UcxTransport::Retire(UcxRegion& region, UcpMemory memory) {
  watch_->Withdraw(region.fields().region);
  const std::lock_guard lock(set_up_);
  regions_.erase(region.fields().region);
  std::erase_if(sources_, [&](const Source& source) { return source.handle == memory.handle(); });
  memories_.push_back(std::move(memory));
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
  LAMINA_ASSIGN_OR_RETURN(UcxPeer* const peer, FindPeer(owner, decoded.worker));
  absl::StatusOr<UcpRemoteKey> key = UnpackRemoteKey(peer->endpoint(), decoded.key);
  if (!key.ok()) {
    watch_->Forget(watched);
    ReleasePeer(*peer);
    return key.status();
  }
  ++peer->views;
  return std::make_unique<UcxRemoteRegion>(*this, decoded, std::move(watched), *peer,
                                           *std::move(key));
}

void UcxTransport::AddSource(const UcpMemory& memory) {
  const Source source{memory.data(), memory.data() + memory.size(), memory.handle()};
  const auto by_begin = [](const Source& a, const Source& b) { return a.begin < b.begin; };
  sources_.insert(std::upper_bound(sources_.begin(), sources_.end(), source, by_begin), source);
}

absl::Status UcxTransport::RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) {
  if (kind != MemoryKind::kHost) {
    return absl::InvalidArgumentError("ucx: this build reads host memory only");
  }
  if (bytes.empty()) {
    return absl::OkStatus();
  }
  const std::lock_guard lock(set_up_);
  LAMINA_ASSIGN_OR_RETURN(UcpMemory memory,
                          UcpMemory::Register(context_.get(), bytes.data(), bytes.size()));
  AddSource(memory);
  memories_.push_back(std::move(memory));
  return absl::OkStatus();
}

const UcxTransport::Source* UcxTransport::FindSource(absl::Span<const std::byte> bytes) const {
  // From the last that begins at or before the bytes, back: sources may lie in each other.
  auto after = std::upper_bound(
      sources_.begin(), sources_.end(), bytes.data(),
      [](const std::byte* begin, const Source& source) { return begin < source.begin; });
  while (after != sources_.begin()) {
    --after;
    if (bytes.data() + bytes.size() <= after->end) {
      return &*after;
    }
  }
  return nullptr;
}

UcxTransport::Operation& UcxTransport::Take(UcxRemoteRegion& view) {
  Operation& operation = *free_.back();
  free_.pop_back();
  operation.view = &view;
  return operation;
}

void UcxTransport::Release(Operation& operation) { free_.push_back(&operation); }

void UcxTransport::OnDone(void* request, ucs_status_t status, void* done) {
  auto& operation = *static_cast<Operation*>(done);
  UcxRemoteRegion& view = *operation.view;
  if (status != UCS_OK) {
    view.peer_.Fail(status);
  }
  --view.pending_;
  --view.peer_.pending;
  ++operation.transport->completed_;
  operation.transport->Release(operation);
  ucp_request_free(request);
}

// Whether UCX took the operation.
bool UcxTransport::Track(Operation& operation, ucs_status_ptr_t request) {
  UcxRemoteRegion& view = *operation.view;
  if (UCS_PTR_IS_PTR(request)) {
    ++view.pending_;
    ++view.peer_.pending;
    return true;
  }
  Release(operation);
  if (UCS_PTR_IS_ERR(request)) {
    view.peer_.Fail(UCS_PTR_STATUS(request));
  }
  return request == nullptr;
}

bool UcxTransport::PutDirect(UcxRemoteRegion& view, size_t offset,
                             absl::Span<const std::byte> source, ucp_mem_h handle) {
  Operation& operation = Take(view);
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMH;
  params.cb.send = &OnDone;
  params.user_data = &operation;
  params.memh = handle;
  const uint64_t address = view.address_ + UcxDataOffset(view.signal_words()) + offset;
  return Track(operation, ucp_put_nbx(view.peer_.endpoint(), source.data(), source.size(), address,
                                      view.key_.get(), &params));
}

bool UcxTransport::RaiseDirect(UcxRemoteRegion& view, const SignalUpdate& signal) {
  if (const ucs_status_t status = ucp_worker_fence(sender_.get()); status != UCS_OK) {
    view.peer_.Fail(status);
    return false;
  }
  Operation& operation = Take(view);
  operation.value = signal.value;
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &OnDone;
  params.user_data = &operation;
  const uint64_t address = view.address_ + uint64_t{signal.word} * kUcxSignalStride;
  return Track(operation, ucp_put_nbx(view.peer_.endpoint(), &operation.value,
                                      sizeof operation.value, address, view.key_.get(), &params));
}

// The signal travels with the last piece.
bool UcxTransport::SendMessages(UcxRemoteRegion& view, size_t offset,
                                absl::Span<const std::byte> source, const SignalUpdate* signal) {
  do {
    const absl::Span<const std::byte> piece = source.first(std::min(source.size(), kPieceBytes));
    source.remove_prefix(piece.size());
    Operation& operation = Take(view);
    operation.message = {.region = view.region_,
                         .offset = offset,
                         .data_bytes = static_cast<uint32_t>(piece.size())};
    if (source.empty() && signal != nullptr) {
      operation.message.word = signal->word;
      operation.message.value = signal->value;
    }
    ucp_request_param_t params = {};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    params.cb.send = &OnDone;
    params.user_data = &operation;
    // A rendezvous would need answers of the peer.
    params.flags = UCP_AM_SEND_FLAG_EAGER;
    if (!Track(operation,
               ucp_am_send_nbx(view.peer_.endpoint(), kMessageId, &operation.message,
                               sizeof operation.message, piece.data(), piece.size(), &params))) {
      return false;
    }
    offset += piece.size();
  } while (!source.empty());
  return true;
}

ucs_status_t UcxTransport::OnMessage(void* transport, const void* header, size_t header_bytes,
                                     void* data, size_t bytes, const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<UcxTransport*>(transport);
  UcxMessage message;
  const bool whole =
      header_bytes == sizeof message && (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
  if (whole) {
    std::memcpy(&message, header, sizeof message);
    const auto region = self.regions_.find(message.region);
    // Late messages to a region that was destroyed are the usual case.
    if (region != self.regions_.end() && region->second->Deliver(message, data, bytes)) {
      return UCS_OK;
    }
  }
  ++self.refused_;
  return UCS_OK;
}

absl::Status UcxTransport::Put(RemoteRegion& target, size_t offset,
                               absl::Span<const std::byte> source, const SignalUpdate* signal) {
  auto& view = static_cast<UcxRemoteRegion&>(target);
  if (source.size() > kPutBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("ucx: put of ", FormatBytes(source.size()),
                                                   ", at most ", FormatBytes(kPutBytesMax)));
  }
  LAMINA_RETURN_IF_ERROR(view.CheckPut(offset, source.size(), signal));
  const Source* registered = source.empty() ? nullptr : FindSource(source);
  if (registered == nullptr && !source.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ucx: the source of ", source.size(), " bytes was not registered"));
  }
  LAMINA_RETURN_IF_ERROR(view.CheckPeer());
  const size_t in_flight = kOperationsMax - free_.size();
  if (in_flight >= kInFlightMax || free_.size() < source.size() / kPieceBytes + 2) {
    return absl::ResourceExhaustedError(absl::StrCat("ucx: ", in_flight, " puts are in flight"));
  }
  if (source.empty() && signal == nullptr) {
    return absl::OkStatus();
  }
  const bool taken =
      view.direct_ ? (source.empty() || PutDirect(view, offset, source, registered->handle)) &&
                         (signal == nullptr || RaiseDirect(view, *signal))
                   : SendMessages(view, offset, source, signal);
  if (!taken) {
    return view.CheckPeer();
  }
  if (signal != nullptr) {
    view.raised_[signal->word] = signal->value;
  }
  return absl::OkStatus();
}

uint32_t UcxTransport::Progress() {
  ucp_worker_progress(receiver_.get());
  if (!peers_.empty()) {
    ucp_worker_progress(sender_.get());
  }
  return std::exchange(completed_, 0);
}

absl::StatusOr<size_t> UcxTransport::Wait(const Region& region,
                                          absl::Span<const SignalCondition> conditions,
                                          const WaitOptions& options) {
  const auto& own = static_cast<const UcxRegion&>(region);
  for (const SignalCondition& condition : conditions) {
    LAMINA_CHECK(condition.word < own.signal_words());
  }
  const Clock& clock = RealClock();
  Nanos start = 0;
  for (;;) {
    for (size_t i = 0; i < conditions.size(); ++i) {
      if (own.LoadSignal(conditions[i].word) >= conditions[i].at_least) {
        return i;
      }
    }
    // Acquire: what was written before raising it is visible to the caller.
    if (options.abort != nullptr && options.abort->load(std::memory_order_acquire) != 0) {
      return absl::CancelledError("ucx: the wait was aborted");
    }
    const Nanos now = clock.Now();
    start = start == 0 ? now : start;
    if (now >= options.deadline) {
      return absl::DeadlineExceededError("ucx: no signal came by the deadline");
    }
    Progress();
    if (now - start >= kSpin + kYield) {
      std::this_thread::sleep_for(kNap);
    } else if (now - start >= kSpin) {
      sched_yield();
    }
  }
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

absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(absl::string_view name) {
  return UcxTransport::Make(name);
}

}  // namespace lamina::transport
