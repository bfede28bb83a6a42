// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/window_exchange.h"

#include <atomic>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/cuda/registered_memory.h"
#include "kernels/cuda/wait.h"

namespace lamina::kernels::cuda {
namespace {

// Looks at a take that has not ended, for each look at whether the stream still runs.
constexpr uint32_t kLooksPerQuery = 64;
constexpr uint64_t kPieceAlignment = 256;  // Of MemoryArena.

// What the device writes and the host reads, or the other way round, in pinned memory.
struct alignas(64) LaneWords {
  WaitRecord record;
  UnitRecord sent[2];  // By the unit's parity.
};
struct PeerTimes {
  uint64_t polled[2] = {0, 0};  // From, until.
};
struct alignas(64) AbortWord {
  uint32_t raised = 0;
};
// For kernels that run once before they are needed.
struct alignas(64) Trial {
  uint64_t word = 0;
  WaitRecord record;
  UnitRecord unit;
  alignas(kExchangeAlignment) std::byte from[kExchangeAlignment] = {};
  alignas(kExchangeAlignment) std::byte to[kExchangeAlignment] = {};
};

// Windows as kernels call them.
class DeviceWindows {
 public:
  static absl::StatusOr<DeviceWindows> Create(const HostWindows& windows) {
    if (windows.pages.empty() || windows.words == nullptr ||
        reinterpret_cast<uintptr_t>(windows.bytes.data()) % kExchangeAlignment != 0) {
      return absl::InvalidArgumentError("windows that a device cannot reach");
    }
    LAMINA_ASSIGN_OR_RETURN(RegisteredMemory memory, RegisteredMemory::Create(windows.pages));
    return DeviceWindows(windows, std::move(memory));
  }

  // Requires: inside.
  std::byte* At(size_t offset, size_t bytes) const {
    LAMINA_CHECK(offset <= size_ && bytes <= size_ - offset);
    return bytes_ + offset;
  }
  uint64_t* Word(uint32_t word) const {
    return reinterpret_cast<uint64_t*>(words_ + word * word_stride_);
  }

 private:
  DeviceWindows(const HostWindows& windows, RegisteredMemory memory)
      : bytes_(memory.OnDevice(windows.bytes.data())),
        size_(windows.bytes.size()),
        words_(memory.OnDevice(windows.words)),
        word_stride_(windows.word_stride),
        memory_(std::move(memory)) {}

  std::byte* bytes_;
  size_t size_;
  std::byte* words_;
  size_t word_stride_;
  RegisteredMemory memory_;
};

class CudaWindowExchange final : public WindowExchange {
 public:
  CudaWindowExchange(const ExchangeOptions& options, DeviceWindows own, MemoryArena arena,
                     const Stream& stream)
      : options_(options),
        own_(std::move(own)),
        arena_(std::move(arena)),
        stream_(stream),
        lanes_(options.lanes) {}

  static uint64_t ArenaBytes(const ExchangeOptions& options) {
    const uint64_t lanes = options.lanes;
    return lanes * sizeof(LaneWords) + lanes * options.peers * sizeof(PeerTimes) +
           sizeof(AbortWord) + sizeof(Trial) + 4 * kPieceAlignment;
  }

  absl::Status TakeWords() {
    LAMINA_ASSIGN_OR_RETURN(LaneWords* const words, arena_.Take<LaneWords>(options_.lanes));
    const size_t count = size_t{options_.lanes} * options_.peers;
    LAMINA_ASSIGN_OR_RETURN(times_, arena_.Take<PeerTimes>(count));
    LAMINA_ASSIGN_OR_RETURN(AbortWord* const abort, arena_.Take<AbortWord>(1));
    for (size_t i = 0; i < count; ++i) {
      new (&times_[i]) PeerTimes;
    }
    for (uint32_t lane = 0; lane < options_.lanes; ++lane) {
      lanes_[lane].words = new (&words[lane]) LaneWords;
    }
    abort_ = new (abort) AbortWord;
    return absl::OkStatus();
  }

  // Loading a kernel may wait for those that run, a wait among them: so each is loaded now.
  absl::Status LoadKernels() {
    LAMINA_ASSIGN_OR_RETURN(Trial* const place, arena_.Take<Trial>(1));
    Trial* const trial = new (place) Trial;
    LAMINA_RETURN_IF_ERROR(
        PutBytes({.to = trial->to, .from = trial->from, .bytes = sizeof(trial->to)}, stream_));
    LAMINA_RETURN_IF_ERROR(RaiseSignal({.signal = &trial->word,
                                        .value = 1,
                                        .record = &trial->record,
                                        .unit = &trial->unit,
                                        .sequence = 1},
                                       stream_));
    LAMINA_RETURN_IF_ERROR(WaitForWindow({.signal = &trial->word,
                                          .at_least = 1,
                                          .timeout_nanos = static_cast<uint64_t>(options_.timeout),
                                          .abort = &abort_->raised,
                                          .record = &trial->record,
                                          .sequence = 1},
                                         stream_));
    return stream_.Synchronize();
  }

  absl::Status SetPeers(absl::Span<const HostWindows> windows) override {
    if (windows.size() != options_.peers) {
      return absl::InvalidArgumentError(
          absl::StrCat("windows of ", windows.size(), " peers; there are ", options_.peers));
    }
    std::vector<DeviceWindows> peers;
    for (const HostWindows& of_peer : windows) {
      LAMINA_ASSIGN_OR_RETURN(DeviceWindows peer, DeviceWindows::Create(of_peer));
      peers.push_back(std::move(peer));
    }
    peers_ = std::move(peers);
    return absl::OkStatus();
  }

  absl::Status Send(uint32_t lane, uint64_t unit, const RowsOut& out) override {
    const DeviceWindows& peer = peers_[out.peer];
    LaneWords& words = *lanes_[lane].words;
    LAMINA_RETURN_IF_ERROR(PutBytes({.to = peer.At(out.window, kWindowHeaderBytes + out.bytes),
                                     .from = out.rows,
                                     .bytes = out.bytes,
                                     .record = &words.record,
                                     .stamped = true,
                                     .stamp = out.stamp},
                                    stream_));
    return RaiseSignal({.signal = peer.Word(out.word),
                        .value = out.value,
                        .record = &words.record,
                        .unit = &words.sent[unit % 2],
                        .sequence = unit},
                       stream_);
  }

  absl::Status Take(uint32_t lane, uint64_t unit, absl::Span<const RowsIn> in) override {
    Lane& own = lanes_[lane];
    WaitRecord& record = own.words->record;
    own.unit = unit;
    for (const RowsIn& rows : in) {
      const std::byte* const window = own_.At(rows.window, kWindowHeaderBytes + rows.bytes);
      own.sequence = unit * options_.peers + rows.peer;
      LAMINA_RETURN_IF_ERROR(
          WaitForWindow({.signal = own_.Word(rows.word),
                         .at_least = rows.value,
                         .window = reinterpret_cast<const WindowStamp*>(window),
                         .expected = rows.stamp,
                         .timeout_nanos = static_cast<uint64_t>(options_.timeout),
                         .abort = &abort_->raised,
                         .record = &record,
                         .sequence = own.sequence,
                         .times = TimesWith(lane, rows.peer).polled},
                        stream_));
    }
    for (const RowsIn& rows : in) {
      LAMINA_RETURN_IF_ERROR(
          PutBytes({.to = rows.rows,
                    .from = own_.At(rows.window, kWindowHeaderBytes) + kWindowHeaderBytes,
                    .bytes = rows.bytes,
                    .record = &record},
                   stream_));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> HasTaken(uint32_t lane) override {
    if (HasEnded(lanes_[lane])) {
      return true;
    }
    if (++looks_ % kLooksPerQuery != 0) {
      return false;
    }
    LAMINA_ASSIGN_OR_RETURN(const bool done, stream_.IsDone());
    if (!done || HasEnded(lanes_[lane])) {
      return done;
    }
    return absl::InternalError("the device is done with a wait whose end it did not tell");
  }

  std::optional<FailedTake> FailureOf(uint32_t lane) const override {
    WaitRecord& record = lanes_[lane].words->record;
    // Acquire: which wait it was is written before.
    const uint32_t failed =
        std::atomic_ref<uint32_t>(record.failed).load(std::memory_order_acquire);
    if (failed == 0) {
      return std::nullopt;
    }
    return FailedTake{.outcome = static_cast<WaitOutcome>(failed),
                      .peer = static_cast<uint32_t>(record.failed_sequence % options_.peers),
                      .unit = record.failed_sequence / options_.peers};
  }

  Nanos WaitedFor(uint32_t lane, uint32_t peer) const override {
    const PeerTimes& times = TimesWith(lane, peer);
    return static_cast<Nanos>(times.polled[1] - times.polled[0]);
  }

  Nanos SentAfter(uint32_t lane) const override {
    const Lane& own = lanes_[lane];
    return static_cast<Nanos>(own.words->sent[own.unit % 2].nanos);
  }

  void Abort() override {
    // Release: the device looks at nothing else on the strength of it.
    std::atomic_ref<uint32_t>(abort_->raised).store(1, std::memory_order_release);
  }

 private:
  struct Lane {
    LaneWords* words = nullptr;
    uint64_t sequence = 0;  // Of the last wait that was ordered,
    uint64_t unit = 0;      // which was of this unit's take.
  };

  // Acquire: the record's other words, and times, are written before.
  static bool HasEnded(const Lane& lane) {
    return std::atomic_ref<uint64_t>(lane.words->record.sequence).load(std::memory_order_acquire) >=
           lane.sequence;
  }
  PeerTimes& TimesWith(uint32_t lane, uint32_t peer) const {
    return times_[size_t{lane} * options_.peers + peer];
  }

  const ExchangeOptions options_;
  const DeviceWindows own_;
  std::vector<DeviceWindows> peers_;
  MemoryArena arena_;
  const Stream& stream_;
  std::vector<Lane> lanes_;
  PeerTimes* times_ = nullptr;  // [lanes][peers]: of the lane's last take.
  AbortWord* abort_ = nullptr;
  uint32_t looks_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WindowExchange>> MakeCudaWindowExchange(
    const ExchangeOptions& options, const Stream& stream) {
  if (options.peers == 0 || options.lanes == 0 || options.timeout <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("an exchange of ", options.peers, " peers and ",
                                                   options.lanes, " lanes with a timeout of ",
                                                   options.timeout, " ns"));
  }
  LAMINA_ASSIGN_OR_RETURN(DeviceWindows own, DeviceWindows::Create(options.own));
  LAMINA_ASSIGN_OR_RETURN(
      MemoryArena arena,
      MemoryArena::Create(ArenaKind::kPinnedHost, CudaWindowExchange::ArenaBytes(options)));
  auto exchange =
      std::make_unique<CudaWindowExchange>(options, std::move(own), std::move(arena), stream);
  LAMINA_RETURN_IF_ERROR(exchange->TakeWords());
  LAMINA_RETURN_IF_ERROR(exchange->LoadKernels());
  return exchange;
}

}  // namespace lamina::kernels::cuda
