// SPDX-License-Identifier: Apache-2.0
#include "transport/decorators/decorated_transport.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "transport/put_check.h"

namespace lamina::transport {
namespace {

constexpr uint32_t kInFlightMax = 256;
constexpr size_t kHeadBytes = 16;
// How long a Wait below may keep what has become due.
constexpr Nanos kLook = Micros(50);

class DecoratedTransport;

class DecoratedRegion final : public Region {
 public:
  DecoratedRegion(DecoratedTransport& transport, std::unique_ptr<Region> inner)
      : transport_(transport), inner_(std::move(inner)) {}
  ~DecoratedRegion() override;
  DecoratedRegion(const DecoratedRegion&) = delete;
  DecoratedRegion& operator=(const DecoratedRegion&) = delete;

  absl::Span<std::byte> bytes() override { return inner_->bytes(); }
  uint32_t signal_words() const override { return inner_->signal_words(); }
  uint64_t LoadSignal(uint32_t word) const override { return inner_->LoadSignal(word); }
  std::string Descriptor() const override { return inner_->Descriptor(); }
  // Nobody goes past what the link does to data.
  const DeviceRegion* device() const override { return nullptr; }
  DirectMemory direct() override { return {}; }

  const Region& inner() const { return *inner_; }

 private:
  DecoratedTransport& transport_;
  const std::unique_ptr<Region> inner_;
};

class DecoratedRemoteRegion final : public RemoteRegion {
 public:
  DecoratedRemoteRegion(DecoratedTransport& transport, std::unique_ptr<RemoteRegion> inner)
      : transport_(transport), inner_(std::move(inner)), raised_(inner_->signal_words()) {}
  ~DecoratedRemoteRegion() override;
  DecoratedRemoteRegion(const DecoratedRemoteRegion&) = delete;
  DecoratedRemoteRegion& operator=(const DecoratedRemoteRegion&) = delete;

  size_t size_bytes() const override { return inner_->size_bytes(); }
  uint32_t signal_words() const override { return inner_->signal_words(); }
  std::string path() const override { return absl::StrCat(inner_->path(), " (decorated)"); }
  DirectMemory direct() override { return {}; }

 private:
  friend class DecoratedTransport;

  DecoratedTransport& transport_;
  const std::unique_ptr<RemoteRegion> inner_;
  std::vector<uint64_t> raised_;  // As put to this end; the link below may know of more.
  uint32_t queued_ = 0;
  bool blocked_ = false;  // While Advance() runs: an earlier Put has not left.
  absl::Status failure_;
};

class DecoratedTransport final : public Transport {
 public:
  DecoratedTransport(std::unique_ptr<Transport> inner, std::unique_ptr<LinkModel> model,
                     const Clock& clock)
      : inner_(std::move(inner)),
        model_(std::move(model)),
        clock_(clock),
        capabilities_(Capabilities{.device_memory = false,
                                   .one_sided = false,
                                   .local_host_only = inner_->capabilities().local_host_only,
                                   .put_bytes_max = inner_->capabilities().put_bytes_max,
                                   .in_flight_max = kInFlightMax}) {
    queue_.reserve(kInFlightMax);
    heads_.resize(kHeadBytes * kInFlightMax);
    heads_registered_ = inner_->RegisterSource(heads_, MemoryKind::kHost).ok();
  }

  absl::string_view scheme() const override { return inner_->scheme(); }
  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) override {
    LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, inner_->CreateRegion(options));
    sources_.emplace_back(region->bytes());
    return std::make_unique<DecoratedRegion>(*this, std::move(region));
  }

  absl::StatusOr<std::unique_ptr<RemoteRegion>> OpenRegion(absl::string_view descriptor,
                                                           uint64_t epoch) override {
    LAMINA_ASSIGN_OR_RETURN(auto remote, inner_->OpenRegion(descriptor, epoch));
    return std::make_unique<DecoratedRemoteRegion>(*this, std::move(remote));
  }

  absl::Status RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) override {
    if (kind != MemoryKind::kHost) {
      return absl::InvalidArgumentError("decorated transports hold host memory only");
    }
    LAMINA_RETURN_IF_ERROR(inner_->RegisterSource(bytes, kind));
    sources_.push_back(bytes);
    return absl::OkStatus();
  }

  absl::Status Put(RemoteRegion& target, size_t offset, absl::Span<const std::byte> source,
                   const SignalUpdate* signal) override;
  uint32_t Pending(const RemoteRegion& target) const override {
    const auto& view = static_cast<const DecoratedRemoteRegion&>(target);
    return view.queued_ + inner_->Pending(*view.inner_);
  }
  uint32_t Progress() override {
    Advance();
    return inner_->Progress();
  }
  absl::StatusOr<size_t> Wait(const Region& region, absl::Span<const SignalCondition> conditions,
                              const WaitOptions& options) override;

  void Forget(absl::Span<const std::byte> bytes) {
    const auto one = std::find_if(sources_.begin(), sources_.end(), [&](const auto& source) {
      return source.data() == bytes.data() && source.size() == bytes.size();
    });
    if (one != sources_.end()) {
      sources_.erase(one);
    }
  }
  void Forget(const DecoratedRemoteRegion& view) {
    std::erase_if(queue_, [&](const Queued& put) { return put.view == &view; });
  }

 private:
  struct Queued {
    DecoratedRemoteRegion* view;
    size_t offset;
    absl::Span<const std::byte> source;
    std::optional<SignalUpdate> signal;
    PutFate fate;
    bool head_sent = false;  // A corrupt Put has sent its head.
  };

  absl::Status CheckPut(DecoratedRemoteRegion& view, size_t offset,
                        absl::Span<const std::byte> source, const SignalUpdate* signal);
  void Advance();
  bool HandOn(Queued& put);
  bool SendBrokenHead(Queued& put);

  const std::unique_ptr<Transport> inner_;
  const std::unique_ptr<LinkModel> model_;
  const Clock& clock_;
  const Capabilities capabilities_;
  std::vector<absl::Span<const std::byte>> sources_;
  std::vector<std::byte> heads_;  // Ring of the heads of corrupt Puts.
  size_t next_head_ = 0;
  bool heads_registered_ = false;
  std::vector<Queued> queue_;  // In the order of their Puts.
  // What the link below made of a Put that had been accepted here: the peer waits for it in vain.
  absl::Status refused_;
};

DecoratedRegion::~DecoratedRegion() { transport_.Forget(inner_->bytes()); }

DecoratedRemoteRegion::~DecoratedRemoteRegion() { transport_.Forget(*this); }

absl::Status DecoratedTransport::CheckPut(DecoratedRemoteRegion& view, size_t offset,
                                          absl::Span<const std::byte> source,
                                          const SignalUpdate* signal) {
  if (source.size() > capabilities_.put_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat("put of ", FormatBytes(source.size()),
                                                   ", at most ",
                                                   FormatBytes(capabilities_.put_bytes_max)));
  }
  LAMINA_RETURN_IF_ERROR(
      CheckPutArguments(scheme(), view.size_bytes(), view.raised_, offset, source.size(), signal));
  const bool registered =
      std::any_of(sources_.begin(), sources_.end(), [&](absl::Span<const std::byte> known) {
        return source.data() >= known.data() &&
               source.data() + source.size() <= known.data() + known.size();
      });
  if (!source.empty() && !registered) {
    return absl::InvalidArgumentError(
        absl::StrCat("the source of ", source.size(), " bytes was not registered"));
  }
  LAMINA_RETURN_IF_ERROR(view.failure_);
  // A Put of nothing says whether the peer is gone.
  if (absl::Status peer = inner_->Put(*view.inner_, 0, {}, nullptr); absl::IsUnavailable(peer)) {
    view.failure_ = peer;
    Advance();  // What is queued for it goes with it.
    return peer;
  }
  return absl::OkStatus();
}

absl::Status DecoratedTransport::Put(RemoteRegion& target, size_t offset,
                                     absl::Span<const std::byte> source,
                                     const SignalUpdate* signal) {
  auto& view = static_cast<DecoratedRemoteRegion&>(target);
  LAMINA_RETURN_IF_ERROR(CheckPut(view, offset, source, signal));
  if (source.empty() && signal == nullptr) {
    return absl::OkStatus();
  }
  if (queue_.size() >= kInFlightMax) {
    return absl::ResourceExhaustedError(absl::StrCat(kInFlightMax, " puts are in flight"));
  }
  Queued put{.view = &view, .offset = offset, .source = source};
  put.fate = model_->Judge(source.size(), clock_.Now());
  if (signal != nullptr) {
    put.signal = *signal;
    view.raised_[signal->word] = signal->value;
  }
  if (!put.fate.dropped) {
    queue_.push_back(put);
    ++view.queued_;
    Advance();
  }
  return absl::OkStatus();
}

// The head goes by itself, out of a copy with a bit flipped; the rest follows with the signal.
bool DecoratedTransport::SendBrokenHead(Queued& put) {
  const size_t bytes = std::min(kHeadBytes, put.source.size());
  const absl::Span<std::byte> head = absl::MakeSpan(heads_).subspan(next_head_, bytes);
  std::copy_n(put.source.begin(), bytes, head.begin());
  head[bytes / 2] ^= std::byte{1};
  const absl::Status status = inner_->Put(*put.view->inner_, put.offset, head, nullptr);
  if (absl::IsResourceExhausted(status)) {
    return false;
  }
  next_head_ = (next_head_ + kHeadBytes) % heads_.size();
  put.offset += bytes;
  put.source.remove_prefix(bytes);
  put.head_sent = true;
  return true;
}

// Whether it left, or never will.
bool DecoratedTransport::HandOn(Queued& put) {
  if (put.fate.corrupt && !put.head_sent && heads_registered_ && !put.source.empty() &&
      !SendBrokenHead(put)) {
    return false;
  }
  const absl::Status status =
      inner_->Put(*put.view->inner_, put.offset, put.source, put.signal ? &*put.signal : nullptr);
  if (absl::IsResourceExhausted(status)) {
    return false;
  }
  if (!status.ok()) {
    put.view->failure_ = status;
    if (!absl::IsUnavailable(status)) {
      refused_ = status;
    }
  }
  return true;
}

void DecoratedTransport::Advance() {
  if (queue_.empty()) {
    return;
  }
  const Nanos now = clock_.Now();
  for (Queued& put : queue_) {
    put.view->blocked_ = false;
  }
  bool any_left = false;
  std::erase_if(queue_, [&](Queued& put) {
    const bool barrier = put.signal && any_left;
    const bool lost = !put.view->failure_.ok();
    const bool leaves =
        lost || (put.fate.due <= now && !put.view->blocked_ && !barrier && HandOn(put));
    if (leaves) {
      --put.view->queued_;
    } else {
      put.view->blocked_ = true;
      any_left = true;
    }
    return leaves;
  });
}

absl::StatusOr<size_t> DecoratedTransport::Wait(const Region& region,
                                                absl::Span<const SignalCondition> conditions,
                                                const WaitOptions& options) {
  const Region& inner = static_cast<const DecoratedRegion&>(region).inner();
  for (;;) {
    Advance();
    LAMINA_RETURN_IF_ERROR(refused_);
    WaitOptions step = options;
    if (!queue_.empty()) {
      step.deadline = std::min(options.deadline, RealClock().Now() + kLook);
    }
    absl::StatusOr<size_t> result = inner_->Wait(inner, conditions, step);
    if (!absl::IsDeadlineExceeded(result.status()) || step.deadline == options.deadline) {
      return result;
    }
  }
}

}  // namespace

std::unique_ptr<Transport> Decorate(std::unique_ptr<Transport> inner,
                                    std::unique_ptr<LinkModel> model, const Clock& clock) {
  return std::make_unique<DecoratedTransport>(std::move(inner), std::move(model), clock);
}

}  // namespace lamina::transport
