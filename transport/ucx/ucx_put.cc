// SPDX-License-Identifier: Apache-2.0
//
// While data flows: puts where UCX writes the peer's memory itself, messages elsewhere (ADR 0020),
// and the wait for what comes.
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/crowded_core.h"
#include "common/status_macros.h"
#include "transport/ucx/ucx_transport_internal.h"

namespace lamina::transport {
namespace {

// As in shm_transport.cc; then naps instead of a futex, since nobody wakes us.
constexpr Nanos kSpin = Micros(10);
// The clock costs about as much as looking at twenty words.
constexpr int kPollsPerClockRead = 4;

// Parameters of an operation whose end `done` is told, with `operation`. `more` says what the
// caller fills in.
ucp_request_param_t Asynchronous(void* operation, ucp_send_nbx_callback_t done, uint32_t more = 0) {
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | more;
  params.cb.send = done;
  params.user_data = operation;
  return params;
}

}  // namespace

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
                             absl::Span<const std::byte> source, const Source& registered) {
  Operation& operation = Take(view);
  ucp_request_param_t params =
      Asynchronous(&operation, &OnDone, UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE);
  params.memh = registered.handle;
  params.memory_type = registered.type;
  ucp_rkey_h const key = view.data_key_ == nullptr ? view.key_.get() : view.data_key_.get();
  return Track(operation, ucp_put_nbx(view.peer_.endpoint(), source.data(), source.size(),
                                      view.data_address_ + offset, key, &params));
}

bool UcxTransport::RaiseDirect(UcxRemoteRegion& view, const SignalUpdate& signal) {
  if (const ucs_status_t status = ucp_worker_fence(sender_.get()); status != UCS_OK) {
    view.peer_.Fail(status);
    return false;
  }
  Operation& operation = Take(view);
  operation.value = signal.value;
  const ucp_request_param_t params = Asynchronous(&operation, &OnDone);
  const uint64_t address = view.address_ + uint64_t{signal.word} * kUcxSignalStride;
  return Track(operation, ucp_put_nbx(view.peer_.endpoint(), &operation.value,
                                      sizeof operation.value, address, view.key_.get(), &params));
}

// The signal travels with the last piece.
bool UcxTransport::SendMessages(UcxRemoteRegion& view, size_t offset,
                                absl::Span<const std::byte> source, ucs_memory_type_t type,
                                const SignalUpdate* signal) {
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
    ucp_request_param_t params =
        Asynchronous(&operation, &OnDone, UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE);
    params.memory_type = type;
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
      view.direct_ ? (source.empty() || PutDirect(view, offset, source, *registered)) &&
                         (signal == nullptr || RaiseDirect(view, *signal))
                   : SendMessages(view, offset, source,
                                  source.empty() ? UCS_MEMORY_TYPE_HOST : registered->type, signal);
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
  Nanos idle_since = 0;
  Nanos yield = 0;
  for (;;) {
    unsigned moved = 0;
    for (int poll = 0; poll < kPollsPerClockRead; ++poll) {
      for (size_t i = 0; i < conditions.size(); ++i) {
        if (own.LoadSignal(conditions[i].word) >= conditions[i].at_least) {
          naps_.Came();
          return i;
        }
      }
      moved += ucp_worker_progress(receiver_.get());
    }
    if (!peers_.empty()) {
      moved += ucp_worker_progress(sender_.get());
    }
    // Acquire: what was written before raising it is visible to the caller.
    if (options.abort != nullptr && options.abort->load(std::memory_order_acquire) != 0) {
      return absl::CancelledError("ucx: the wait was aborted");
    }
    const Nanos now = clock.Now();
    // A long message comes in many pieces: no nap between them.
    if (moved > 0) {
      naps_.Came();
    }
    if (idle_since == 0 || moved > 0) {
      idle_since = now;
      yield = YieldTime(now);
    }
    if (now >= options.deadline) {
      return absl::DeadlineExceededError("ucx: no signal came by the deadline");
    }
    if (now - idle_since >= kSpin + yield) {
      std::this_thread::sleep_for(naps_.Next(now));
    } else if (now - idle_since >= kSpin) {
      sched_yield();
    }
  }
}

}  // namespace lamina::transport
