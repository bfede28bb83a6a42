// SPDX-License-Identifier: Apache-2.0
#include "transport/outbox/outboxes.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace lamina::transport {
namespace {

constexpr char kThreadName[] = "lamina-outbox";
// While sends are announced and the device raises none: about the time of a short layer without a
// pause, then yielding, then naps.
constexpr Nanos kSpin = Micros(20);
constexpr Nanos kYield = Millis(1);
constexpr auto kNap = std::chrono::microseconds(50);

// Acquire: what the device wrote before it raised the word is visible.
uint64_t LoadWord(const DirectMemory& memory, uint32_t word) {
  const auto* const place =
      reinterpret_cast<const uint64_t*>(memory.words + word * memory.word_stride);
  return __atomic_load_n(place, __ATOMIC_ACQUIRE);
}

}  // namespace

class Outboxes::Pause {
 public:
  explicit Pause(Outboxes& outboxes) : outboxes_(outboxes) {
    if (outboxes_.proxy_.joinable()) {
      outboxes_.stop_.store(true, std::memory_order_relaxed);
      outboxes_.Announced();
      outboxes_.proxy_.join();
    }
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
  ~Pause() {
    outboxes_.stop_.store(false, std::memory_order_relaxed);
    if (!outboxes_.open_.empty()) {
      outboxes_.proxy_ = std::thread([raw = &outboxes_] { raw->Run(); });
      pthread_setname_np(outboxes_.proxy_.native_handle(), kThreadName);
    }
  }

 private:
  Outboxes& outboxes_;
};

RegionOutbox::~RegionOutbox() {
  const Outboxes::Pause pause(outboxes_);
  SendRaised(*outboxes_.transport_);
  std::erase(outboxes_.open_, this);
  peer_.reset();  // While the proxy stands still.
  region_.reset();
}

absl::Status RegionOutbox::Announce(const OutboxSend& send) {
  if (send.word >= sends_.size() || send.offset > peer_->size_bytes() ||
      send.bytes > peer_->size_bytes() - send.offset) {
    return absl::InvalidArgumentError(absl::StrCat("outbox: ", send.bytes, " bytes at ",
                                                   send.offset, " of ", peer_->size_bytes(),
                                                   " and word ", send.word, " of ", sends_.size()));
  }
  Sends& sends = sends_[send.word];
  if (send.value <= sends.last_value) {
    return absl::InvalidArgumentError(
        absl::StrCat("outbox: word ", send.word, " := ", send.value, " behind ", sends.last_value));
  }
  if (failed_.load(std::memory_order_relaxed)) {
    return absl::UnavailableError("outbox: the peer is gone: an earlier send failed");
  }
  const uint64_t announced = sends.announced.load(std::memory_order_relaxed);
  if (announced - sends.sent.load(std::memory_order_acquire) == kOutboxSendsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("outbox: ", kOutboxSendsMax, " sends of word ", send.word, " have not left"));
  }
  sends.ring[announced % kOutboxSendsMax] = send;
  sends.announced_at[announced % kOutboxSendsMax] =
      times_.wanted() ? outboxes_.clock_.Now() : Nanos{0};
  sends.last_value = send.value;
  if (!sends.listed) {
    sends.listed = true;
    const uint32_t count = used_count_.load(std::memory_order_relaxed);
    used_[count] = send.word;
    // Release: the proxy sees the entry.
    used_count_.store(count + 1, std::memory_order_release);
  }
  // Release: the proxy sees the send.
  sends.announced.store(announced + 1, std::memory_order_release);
  outboxes_.Announced();
  return absl::OkStatus();
}

void RegionOutbox::Forget() {
  const Outboxes::Pause pause(outboxes_);
  SendRaised(*outboxes_.transport_);
  for (Sends& sends : sends_) {
    sends.sent.store(sends.announced.load(std::memory_order_relaxed), std::memory_order_relaxed);
    sends.last_value = 0;
  }
}

uint32_t RegionOutbox::SendRaised(Transport& transport) {
  uint32_t sent = 0;
  const Nanos now = times_.wanted() ? outboxes_.clock_.Now() : 0;
  // Acquire: the entries are written before.
  const uint32_t count = used_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    sent += SendRaisedOf(used_[i], now, transport);
  }
  return sent;
}

// `now` is before all looks of this turn, 0 if times are not wanted.
uint32_t RegionOutbox::SendRaisedOf(uint32_t word, Nanos now, Transport& transport) {
  Sends& sends = sends_[word];
  uint64_t next = sends.sent.load(std::memory_order_relaxed);
  const uint64_t first = next;
  // Acquire: the sends are written before.
  for (const uint64_t end = sends.announced.load(std::memory_order_acquire); next < end; ++next) {
    const OutboxSend& send = sends.ring[next % kOutboxSendsMax];
    if (LoadWord(memory_, word) < send.value) {
      sends.unraised = now;
      break;
    }
    const SignalUpdate signal{.word = word, .value = send.value};
    const absl::Status put =
        transport.Put(*peer_, send.offset, memory_.bytes.subspan(send.offset, send.bytes), &signal);
    if (absl::IsResourceExhausted(put)) {
      break;  // Until something is complete.
    }
    if (!put.ok() && !failed_.exchange(true, std::memory_order_relaxed)) {
      LogWarning("what a device sends is lost: ", put.message());
    }
    if (put.ok()) {
      NotePosted(sends, next);
    }
  }
  // Release: the place in the ring has been read.
  sends.sent.store(next, std::memory_order_release);
  return static_cast<uint32_t>(next - first);
}

// A word whose send was announced later than it was last looked at was not raised at that time.
void RegionOutbox::NotePosted(const Sends& sends, uint64_t number) {
  ++puts_;
  const OutboxSend& send = sends.ring[number % kOutboxSendsMax];
  const Nanos announced = sends.announced_at[number % kOutboxSendsMax];
  if (announced != 0 && times_.wanted()) {
    times_.Posted(puts_, {.word = send.word,
                          .value = send.value,
                          .bytes = send.bytes,
                          .unraised = std::max(announced, sends.unraised),
                          .posted = outboxes_.clock_.Now()});
  }
}

void RegionOutbox::NoteComplete(const Transport& transport) {
  if (times_.in_flight()) {
    times_.Complete(puts_ - transport.Pending(*peer_), outboxes_.clock_.Now());
  }
}

bool RegionOutbox::IsBusy(const Transport& transport) const {
  const uint32_t count = used_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const Sends& sends = sends_[used_[i]];
    if (sends.sent.load(std::memory_order_relaxed) !=
        sends.announced.load(std::memory_order_acquire)) {
      return true;
    }
  }
  return times_.in_flight() || transport.Pending(*peer_) > 0;
}

Outboxes::Outboxes(std::unique_ptr<Transport> transport, const Clock& clock)
    : transport_(std::move(transport)), clock_(clock) {}

Outboxes::~Outboxes() {
  LAMINA_CHECK(open_.empty());
  const Pause pause(*this);
}

absl::StatusOr<std::unique_ptr<RegionOutbox>> Outboxes::Open(absl::string_view descriptor,
                                                             uint64_t epoch) {
  const Pause pause(*this);
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<RemoteRegion> peer,
                          transport_->OpenRegion(descriptor, epoch));
  if (peer->signal_words() > kOutboxWordsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("outbox: ", peer->signal_words(), " signal words, at most ", kOutboxWordsMax));
  }
  LAMINA_ASSIGN_OR_RETURN(
      std::unique_ptr<Region> region,
      transport_->CreateRegion(
          {.name = "outbox", .bytes = peer->size_bytes(), .signal_words = peer->signal_words()}));
  if (region->direct().empty()) {
    return absl::UnimplementedError(
        absl::StrCat(transport_->scheme(), ":// does not show its memory to devices"));
  }
  std::unique_ptr<RegionOutbox> outbox(new RegionOutbox(*this, std::move(region), std::move(peer)));
  open_.push_back(outbox.get());
  return outbox;
}

void Outboxes::Announced() {
  // Release: who wakes for it sees what was announced, or asked.
  events_.fetch_add(1, std::memory_order_release);
  events_.notify_one();
}

bool Outboxes::IsBusy() const {
  return std::any_of(open_.begin(), open_.end(),
                     [this](const RegionOutbox* outbox) { return outbox->IsBusy(*transport_); });
}

void Outboxes::Run() {
  Nanos idle_since = clock_.Now();
  for (;;) {
    // Acquire: before what is looked at below, so that nothing is slept over.
    const uint32_t events = events_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) {
      return;
    }
    uint32_t did = 0;
    for (RegionOutbox* const outbox : open_) {
      did += outbox->SendRaised(*transport_);
    }
    did += transport_->Progress();
    for (RegionOutbox* const outbox : open_) {
      outbox->NoteComplete(*transport_);
    }
    if (did > 0) {
      idle_since = clock_.Now();
      continue;
    }
    if (!IsBusy()) {
      events_.wait(events, std::memory_order_acquire);
      idle_since = clock_.Now();
      continue;
    }
    const Nanos idle = clock_.Now() - idle_since;
    if (idle >= kYield) {
      std::this_thread::sleep_for(kNap);
    } else if (idle >= kSpin) {
      sched_yield();
    }
  }
}

}  // namespace lamina::transport
