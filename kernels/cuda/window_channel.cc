// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/window_channel.h"

#include <atomic>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/cuda/memory_pair_internal.h"
#include "kernels/cuda/registered_memory.h"
#include "kernels/cuda/wait.h"

namespace lamina::kernels::cuda {
namespace {

// Looks at a take that has not ended, for each look at whether the stream still runs.
constexpr uint32_t kLooksPerQuery = 64;

// What the device writes and the host reads, or the other way round, in pinned memory.
struct alignas(64) LaneRecord {
  WaitRecord wait;
};
struct PeerTimes {
  uint64_t polled[2] = {0, 0};  // From, until.
};
struct Words {
  alignas(64) uint32_t abort = 0;
  alignas(64) uint64_t heartbeat = 0;
};
// For kernels that run once before they are needed.
struct alignas(64) Trial {
  uint64_t word = 0;
  WaitRecord record;
  UnitRecord unit;
  alignas(kChannelAlignment) std::byte from[kChannelAlignment] = {};
  alignas(kChannelAlignment) std::byte to[kChannelAlignment] = {};
};

// Windows as kernels call them.
class DeviceWindows {
 public:
  static absl::StatusOr<DeviceWindows> Create(const HostWindows& windows) {
    if (windows.words == nullptr ||
        reinterpret_cast<uintptr_t>(windows.bytes.data()) % kChannelAlignment != 0) {
      return absl::InvalidArgumentError("windows that a device cannot reach");
    }
    std::optional<RegisteredMemory> memory;
    if (!windows.pages.empty()) {
      LAMINA_ASSIGN_OR_RETURN(memory, RegisteredMemory::Create(windows.pages));
    }
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
  Outbox* outbox() const { return outbox_; }

 private:
  DeviceWindows(const HostWindows& windows, std::optional<RegisteredMemory> memory)
      : bytes_(OnDevice(memory, windows.bytes.data())),
        size_(windows.bytes.size()),
        words_(OnDevice(memory, windows.words)),
        word_stride_(windows.word_stride),
        outbox_(windows.outbox),
        memory_(std::move(memory)) {}

  // What is not the host's is the device's already.
  static std::byte* OnDevice(const std::optional<RegisteredMemory>& memory, std::byte* place) {
    return memory.has_value() && memory->Holds(place) ? memory->OnDevice(place) : place;
  }

  std::byte* bytes_;
  size_t size_;
  std::byte* words_;
  size_t word_stride_;
  Outbox* outbox_;                          // Null: the memory is shared with the peer.
  std::optional<RegisteredMemory> memory_;  // None: all of it is the device's.
};

class CudaWindowChannel final : public WindowChannel {
 public:
  CudaWindowChannel(const ChannelOptions& options, absl::Span<const Stream* const> streams,
                    std::atomic<bool>* usable, DeviceWindows own, MemoryArena arena,
                    MemoryArena device_arena)
      : options_(options),
        usable_(usable),
        own_(std::move(own)),
        arena_(std::move(arena)),
        device_arena_(std::move(device_arena)) {
    for (const Stream* const stream : streams) {
      lanes_.push_back({.stream = stream});
    }
  }
  CudaWindowChannel(const CudaWindowChannel&) = delete;
  CudaWindowChannel& operator=(const CudaWindowChannel&) = delete;
  ~CudaWindowChannel() override { CudaWindowChannel::Close(); }

  static uint64_t ArenaBytes(const ChannelOptions& options) {
    const uint64_t lanes = options.lanes;
    return BytesOf<LaneRecord>(lanes) + BytesOf<UnitRecord>(lanes * options.sends_kept) +
           BytesOf<PeerTimes>(lanes * options.peers) + BytesOf<Words>(1) + BytesOf<Trial>(1);
  }

  static uint64_t DeviceArenaBytes(const ChannelOptions& options) {
    return BytesOf<LaneState>(options.lanes);
  }

  absl::Status TakeWords() {
    LAMINA_ASSIGN_OR_RETURN(LaneRecord* const records, TakeNew<LaneRecord>(options_.lanes));
    LAMINA_ASSIGN_OR_RETURN(UnitRecord* const sent,
                            TakeNew<UnitRecord>(uint64_t{options_.lanes} * options_.sends_kept));
    LAMINA_ASSIGN_OR_RETURN(PeerTimes* const times,
                            TakeNew<PeerTimes>(uint64_t{options_.lanes} * options_.peers));
    LAMINA_ASSIGN_OR_RETURN(words_, TakeNew<Words>(1));
    LAMINA_ASSIGN_OR_RETURN(LaneState* const states, device_arena_.Take<LaneState>(options_.lanes));
    const Stream& stream = *lanes_.front().stream;
    LAMINA_RETURN_IF_ERROR(FillAsync(states, 0, options_.lanes * sizeof(LaneState), stream));
    LAMINA_RETURN_IF_ERROR(stream.Synchronize());
    for (uint32_t lane = 0; lane < options_.lanes; ++lane) {
      lanes_[lane].record = &records[lane].wait;
      lanes_[lane].state = states + lane;
      lanes_[lane].sent = sent + size_t{lane} * options_.sends_kept;
      lanes_[lane].times = times + size_t{lane} * options_.peers;
    }
    return absl::OkStatus();
  }

  // Loading a kernel may wait for those that run, a wait among them: so each is loaded now.
  absl::Status LoadKernels() {
    LAMINA_ASSIGN_OR_RETURN(Trial* const trial, TakeNew<Trial>(1));
    const Stream& stream = *lanes_.front().stream;
    LAMINA_RETURN_IF_ERROR(
        PutBytes({.to = trial->to, .from = trial->from, .bytes = sizeof(trial->to)}, stream));
    LAMINA_RETURN_IF_ERROR(RaiseSignal({.signal = &trial->word,
                                        .value = 1,
                                        .record = &trial->record,
                                        .unit = &trial->unit,
                                        .sequence = 1},
                                       stream));
    LAMINA_RETURN_IF_ERROR(WaitForWindow({.signal = &trial->word,
                                          .at_least = 1,
                                          .timeout_nanos = static_cast<uint64_t>(options_.timeout),
                                          .abort = &words_->abort,
                                          .record = &trial->record,
                                          .sequence = 1},
                                         stream));
    LAMINA_RETURN_IF_ERROR(stream.Synchronize());
    const auto outcome = static_cast<WaitOutcome>(trial->record.outcome);
    return outcome == WaitOutcome::kOk
               ? absl::OkStatus()
               : absl::InternalError(absl::StrCat("a trial of a device's wait ended with outcome ",
                                                  trial->record.outcome));
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
    if (Outbox* const outbox = peers_[out.peer].outbox(); outbox != nullptr) {
      LAMINA_RETURN_IF_ERROR(outbox->Announce({.offset = out.window,
                                               .bytes = kWindowHeaderBytes + out.bytes,
                                               .word = out.word,
                                               .value = out.value}));
    }
    return Noted(TrySend(lanes_[lane], unit, out));
  }

  absl::Status Take(uint32_t lane, uint64_t unit, absl::Span<const RowsIn> in) override {
    return Noted(TryTake(lanes_[lane], unit, in));
  }

  absl::StatusOr<bool> HasTaken(uint32_t lane) override {
    const Lane& own = lanes_[lane];
    if (HasEnded(own)) {
      return true;
    }
    if (++looks_ % kLooksPerQuery != 0) {
      return false;
    }
    const absl::StatusOr<bool> done = own.stream->IsDone();
    LAMINA_RETURN_IF_ERROR(Noted(done.status()));
    if (!*done || HasEnded(own)) {
      return *done;
    }
    return absl::InternalError("the device is done with a wait whose end it did not tell");
  }

  std::optional<FailedTake> FailureOf(uint32_t lane) const override {
    WaitRecord& record = *lanes_[lane].record;
    // Acquire: which wait it was is written before.
    const uint32_t failed =
        std::atomic_ref<uint32_t>(record.failed).load(std::memory_order_acquire);
    if (failed == 0) {
      return std::nullopt;
    }
    return FailedTake{.outcome = static_cast<WaitOutcome>(failed),
                      .peer = static_cast<uint32_t>(record.failed_sequence % options_.peers),
                      .unit = record.failed_sequence / options_.peers,
                      .stamp = record.refused};
  }

  std::optional<Nanos> SentAfter(uint32_t lane, uint64_t unit) const override {
    UnitRecord& record = lanes_[lane].sent[unit % options_.sends_kept];
    // Acquire: the time is written before.
    if (std::atomic_ref<uint64_t>(record.sequence).load(std::memory_order_acquire) != unit) {
      return std::nullopt;
    }
    return static_cast<Nanos>(record.nanos);
  }

  Nanos WaitedBefore(uint32_t lane, uint64_t unit) const override {
    return static_cast<Nanos>(lanes_[lane].sent[unit % options_.sends_kept].waited);
  }

  Nanos WaitedFor(uint32_t lane, uint32_t peer) const override {
    const PeerTimes& times = lanes_[lane].times[peer];
    return static_cast<Nanos>(times.polled[1] - times.polled[0]);
  }

  void Beat() override {
    // One thread writes it.
    std::atomic_ref(words_->heartbeat).store(words_->heartbeat + 1, std::memory_order_relaxed);
  }

  absl::Status Check(uint32_t lane) override {
    return Noted(lanes_[lane].stream->IsDone().status());
  }

  void Abort() override {
    // Release: the device looks at nothing else on the strength of it.
    std::atomic_ref<uint32_t>(words_->abort).store(1, std::memory_order_release);
  }

  void Close() override {
    if (!own_.has_value()) {
      return;
    }
    // Where the words were refused nothing was enqueued.
    if (words_ != nullptr) {
      Abort();
      for (const Lane& lane : lanes_) {
        if (const absl::Status status = Noted(lane.stream->Synchronize()); !status.ok()) {
          LogWarning("closing the windows of a device: ", status.message());
        }
      }
    }
    for (const DeviceWindows& peer : peers_) {
      if (peer.outbox() != nullptr) {
        peer.outbox()->Forget();
      }
    }
    peers_.clear();
    own_.reset();
  }

 private:
  struct Lane {
    const Stream* stream = nullptr;
    WaitRecord* record = nullptr;
    LaneState* state = nullptr;  // In the device's memory.
    UnitRecord* sent = nullptr;  // [sends_kept], by the unit's number.
    PeerTimes* times = nullptr;  // [peers]: of the lane's last take.
    uint64_t sequence = 0;       // The last wait that was enqueued.
  };

  // Pinned memory, each element as it begins.
  template <typename T>
  absl::StatusOr<T*> TakeNew(uint64_t count) {
    LAMINA_ASSIGN_OR_RETURN(T* const place, arena_.Take<T>(count));
    for (uint64_t i = 0; i < count; ++i) {
      new (place + i) T;
    }
    return place;
  }

  absl::Status TrySend(const Lane& lane, uint64_t unit, const RowsOut& out) {
    const DeviceWindows& peer = peers_[out.peer];
    LAMINA_RETURN_IF_ERROR(PutBytes({.to = peer.At(out.window, kWindowHeaderBytes + out.bytes),
                                     .from = out.rows,
                                     .bytes = out.bytes,
                                     .record = lane.record,
                                     .state = lane.state,
                                     .stamped = true,
                                     .stamp = out.stamp,
                                     .behind_kernel = true},
                                    *lane.stream));
    return RaiseSignal({.signal = peer.Word(out.word),
                        .value = out.value,
                        .record = lane.record,
                        .state = lane.state,
                        .unit = &lane.sent[unit % options_.sends_kept],
                        .sequence = unit,
                        .behind_kernel = true},
                       *lane.stream);
  }

  absl::Status TryTake(Lane& lane, uint64_t unit, absl::Span<const RowsIn> in) {
    for (const RowsIn& rows : in) {
      const std::byte* const window = own_->At(rows.window, kWindowHeaderBytes + rows.bytes);
      lane.sequence = unit * options_.peers + rows.peer;
      LAMINA_RETURN_IF_ERROR(
          WaitForWindow({.signal = own_->Word(rows.word),
                         .at_least = rows.value,
                         .window = reinterpret_cast<const WindowStamp*>(window),
                         .expected = rows.stamp,
                         .heartbeat = options_.counts_beats ? &words_->heartbeat : nullptr,
                         .timeout_nanos = static_cast<uint64_t>(options_.timeout),
                         .abort = &words_->abort,
                         .record = lane.record,
                         .state = lane.state,
                         .sequence = lane.sequence,
                         .times = lane.times[rows.peer].polled},
                        *lane.stream));
    }
    bool behind_wait = true;
    for (const RowsIn& rows : in) {
      LAMINA_RETURN_IF_ERROR(
          PutBytes({.to = rows.rows,
                    .from = own_->At(rows.window, kWindowHeaderBytes) + kWindowHeaderBytes,
                    .bytes = rows.bytes,
                    .record = lane.record,
                    .state = lane.state,
                    .behind_kernel = !behind_wait},
                   *lane.stream));
      behind_wait = behind_wait && rows.bytes == 0;  // Then nothing was launched.
    }
    return absl::OkStatus();
  }

  // Acquire: the record's other words, and times, are written before.
  static bool HasEnded(const Lane& lane) {
    return std::atomic_ref<uint64_t>(lane.record->sequence).load(std::memory_order_acquire) >=
           lane.sequence;
  }

  absl::Status Noted(absl::Status status) const {
    if (!status.ok() && usable_ != nullptr) {
      usable_->store(false, std::memory_order_relaxed);
    }
    return status;
  }

  const ChannelOptions options_;
  std::atomic<bool>* const usable_;
  std::optional<DeviceWindows> own_;  // None: closed.
  std::vector<DeviceWindows> peers_;
  MemoryArena arena_;
  MemoryArena device_arena_;
  std::vector<Lane> lanes_;
  Words* words_ = nullptr;
  uint32_t looks_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WindowChannel>> MakeCudaWindowChannel(
    const ChannelOptions& options, absl::Span<const Stream* const> streams,
    std::atomic<bool>* usable) {
  if (options.peers == 0 || options.lanes == 0 || options.timeout <= 0 || options.sends_kept == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a channel of ", options.peers, " peers and ", options.lanes, " lanes with a timeout of ",
        options.timeout, " ns, which keeps ", options.sends_kept, " sends"));
  }
  if (streams.size() != options.lanes) {
    return absl::InvalidArgumentError(absl::StrCat("a channel of ", options.lanes,
                                                   " lanes over the streams of ", streams.size()));
  }
  LAMINA_ASSIGN_OR_RETURN(DeviceWindows own, DeviceWindows::Create(options.own));
  LAMINA_ASSIGN_OR_RETURN(
      MemoryArena arena,
      MemoryArena::Create(ArenaKind::kPinnedHost, CudaWindowChannel::ArenaBytes(options)));
  LAMINA_ASSIGN_OR_RETURN(
      MemoryArena device_arena,
      MemoryArena::Create(ArenaKind::kDevice, CudaWindowChannel::DeviceArenaBytes(options)));
  auto channel = std::make_unique<CudaWindowChannel>(options, streams, usable, std::move(own),
                                                     std::move(arena), std::move(device_arena));
  LAMINA_RETURN_IF_ERROR(channel->TakeWords());
  LAMINA_RETURN_IF_ERROR(channel->LoadKernels());
  return channel;
}

}  // namespace lamina::kernels::cuda
