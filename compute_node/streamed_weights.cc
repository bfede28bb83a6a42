// SPDX-License-Identifier: Apache-2.0
#include "compute_node/streamed_weights.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::compute_node {
namespace {

constexpr size_t kLine = 64;  // What packed weights are aligned to.
constexpr Nanos kLookAgain = Micros(20);
// Turn of a transfer on the bus; as memory nodes put at once.
constexpr size_t kTurnBytes = size_t{256} << 10;

size_t Aligned(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

absl::StatusOr<std::vector<bool>> ChooseStreamed(absl::Span<const uint64_t> bytes, uint64_t fixed,
                                                 uint32_t slots, uint64_t budget) {
  uint64_t all = 0;
  uint64_t largest = 0;
  std::vector<uint32_t> may;  // Slices that may stream.
  for (uint32_t slice = 0; slice < bytes.size(); ++slice) {
    all += bytes[slice];
    largest = std::max(largest, bytes[slice]);
    if (bytes[slice] > 0) {
      may.push_back(slice);
    }
  }
  std::vector<bool> streamed(bytes.size(), false);
  if (fixed + all <= budget) {
    return streamed;
  }
  const uint64_t least = fixed + slots * largest;
  if (least > budget) {
    return absl::FailedPreconditionError(absl::StrCat(
        "weights_budget ", FormatBytes(budget), " is less than ", FormatBytes(least), ": ",
        FormatBytes(fixed), " of embeddings, norms and LM head, which stay, and ", slots,
        " slots of ", FormatBytes(largest), " for slices that come"));
  }
  for (size_t count = 1; count <= may.size(); ++count) {
    streamed.assign(bytes.size(), false);
    uint64_t resident = all;
    for (size_t i = 0; i < may.size(); ++i) {
      if ((i + 1) * count / may.size() != i * count / may.size()) {
        streamed[may[i]] = true;
        resident -= bytes[may[i]];
      }
    }
    if (least + resident <= budget) {
      break;
    }
  }
  return streamed;
}

StreamedWeights::StreamedWeights(kernels::ComputeDevice& device, StreamedWeightsOptions options)
    : device_(device), options_(std::move(options)), weights_(ModelWeights::None(device)) {}

StreamedWeights::~StreamedWeights() { Drop(); }

void StreamedWeights::Drop() {
  end_.store(true);
  ordered_.fetch_add(1);
  ordered_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
  end_.store(false);
  ordered_.store(0);
  weights_ = ModelWeights::None(device_);
  slices_.clear();
  slots_.clear();
  orders_.clear();
  store_.reset();
  stowed_bytes_ = 0;
  streamed_ = 0;
}

absl::Status StreamedWeights::Load(const SliceProgram& program, const model::WeightSource& source,
                                   absl::Span<const model::OpId> ops,
                                   const ModelWeights::Progress& progress) {
  Drop();
  const absl::Status loaded = LoadAll(program, source, ops, progress);
  if (!loaded.ok()) {
    Drop();
  }
  return loaded;
}

absl::Status StreamedWeights::LoadAll(const SliceProgram& program,
                                      const model::WeightSource& source,
                                      absl::Span<const model::OpId> ops,
                                      const ModelWeights::Progress& progress) {
  // Sizes before anything is packed: elements in the compute type.
  const uint64_t element = DTypeBytes(device_.dense().compute_type());
  std::vector<uint64_t> bytes(program.slice_count(), 0);
  std::vector<uint32_t> slice_of(program.graph().ops.size(), UINT32_MAX);
  for (uint32_t slice = 0; slice + 1 < program.slice_count(); ++slice) {  // Not the LM head's.
    for (const model::OpId op : program.split().slices[slice].ops) {
      slice_of[op] = slice;
    }
  }
  uint64_t fixed = 0;
  for (const model::OpId op : ops) {
    const uint64_t packed = PackedElementsOf(program.graph(), op) * element;
    fixed += ElementsOf(program.graph(), op) * element;
    if (slice_of[op] != UINT32_MAX) {
      bytes[slice_of[op]] += packed;
      fixed -= packed;
    }
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<bool> streamed,
                          ChooseStreamed(bytes, fixed, options_.lanes + 1, options_.budget));
  slices_.resize(program.slice_count());
  if (std::find(streamed.begin(), streamed.end(), true) != streamed.end()) {
    LAMINA_ASSIGN_OR_RETURN(store_, WeightStore::Create(options_.directory));
  }
  LAMINA_ASSIGN_OR_RETURN(weights_,
                          ModelWeights::Load(program.graph(), source, device_, ops, progress,
                                             [&](model::OpId op, kernels::PackedLinear& linear) {
                                               const uint32_t slice = slice_of[op];
                                               return slice != UINT32_MAX && streamed[slice]
                                                          ? Stow(slices_[slice], linear)
                                                          : absl::OkStatus();
                                             }));
  streamed_ = static_cast<uint32_t>(std::count(streamed.begin(), streamed.end(), true));
  return MakeSlots();
}

// Into the store, and out of memory.
absl::Status StreamedWeights::Stow(Slice& slice, kernels::PackedLinear& linear) {
  const std::vector<absl::Span<std::byte>> pieces = linear.Pieces();
  if (pieces.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("weights_budget on ", device_.name(),
                     ": its packed weights cannot be moved; this version streams to processors"));
  }
  for (const absl::Span<std::byte> piece : pieces) {
    LAMINA_ASSIGN_OR_RETURN(const uint64_t stored, store_->Append(piece));
    slice.pieces.push_back({.stored = stored, .bytes = piece.size(), .at = slice.bytes});
    slice.bytes += Aligned(piece.size());
  }
  stowed_bytes_ += linear.bytes();
  slice.linears.push_back(&linear);
  slice.piece_counts.push_back(pieces.size());
  places_.assign(std::max(places_.size(), pieces.size()), nullptr);
  linear.Place(absl::MakeSpan(places_).first(pieces.size()));
  return absl::OkStatus();
}

absl::Status StreamedWeights::MakeSlots() {
  if (streamed_ == 0) {
    return absl::OkStatus();
  }
  size_t largest = 0;
  for (const Slice& slice : slices_) {
    largest = std::max(largest, slice.bytes);
  }
  const uint32_t count = std::min(options_.lanes + 1, streamed_);
  for (uint32_t i = 0; i < count; ++i) {
    slots_.push_back(std::make_unique<Slot>());
    LAMINA_ASSIGN_OR_RETURN(slots_.back()->buffer, device_.Allocate(largest + kLine));
  }
  orders_.assign(count, 0);
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

uint64_t StreamedWeights::bytes() const {
  uint64_t bytes = weights_.bytes() - stowed_bytes_;
  for (const auto& slot : slots_) {
    bytes += slot->buffer.bytes;
  }
  return bytes;
}

std::string StreamedWeights::Describe() const {
  return streamed_ == 0 ? ""
                        : absl::StrCat(streamed_, " of ", slices_.size(), " slices come from ",
                                       options_.directory, ", ", FormatBytes(stowed_bytes_),
                                       " in all, through ", slots_.size(), " slots");
}

void StreamedWeights::Place(Slice& slice, std::byte* begin) {
  auto piece = slice.pieces.begin();
  for (size_t i = 0; i < slice.linears.size(); ++i) {
    const size_t count = slice.piece_counts[i];
    for (size_t k = 0; k < count; ++k, ++piece) {
      places_[k] = begin == nullptr ? nullptr : begin + piece->at;
    }
    slice.linears[i]->Place(absl::MakeSpan(places_).first(count));
  }
}

uint32_t StreamedWeights::FreeSlot(bool now) const {
  uint32_t unused = kNoSlot;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const SlotState state = slots_[i]->state.load(std::memory_order_acquire);
    if (state == SlotState::kEmpty || (state == SlotState::kPlaced && slots_[i]->holders == 0)) {
      return i;
    }
    unused = state == SlotState::kOrdered || state == SlotState::kPlaced ? unused : i;
  }
  return now ? unused : kNoSlot;
}

void StreamedWeights::Clear(Slot& slot) {
  if (slot.slice != UINT32_MAX) {
    Place(slices_[slot.slice], nullptr);
    slices_[slot.slice].slot = kNoSlot;
    slot.slice = UINT32_MAX;
  }
  slot.state.store(SlotState::kEmpty, std::memory_order_relaxed);
}

uint32_t StreamedWeights::SlotFor(uint32_t slice, bool now) {
  if (slices_[slice].slot != kNoSlot) {
    return slices_[slice].slot;
  }
  const uint32_t free = FreeSlot(now);
  if (free == kNoSlot) {
    return kNoSlot;
  }
  Slot& slot = *slots_[free];
  Clear(slot);
  slot.slice = slice;
  slices_[slice].slot = free;
  slot.state.store(SlotState::kOrdered, std::memory_order_relaxed);
  // No more are under way than there are slots.
  orders_[ordered_.load(std::memory_order_relaxed) % orders_.size()] = free;
  ordered_.fetch_add(1, std::memory_order_release);
  ordered_.notify_one();
  return free;
}

void StreamedWeights::OrderNext(uint32_t slice) {
  for (uint32_t i = 1; i < slices_.size(); ++i) {
    const auto next = static_cast<uint32_t>((slice + i) % slices_.size());
    if (slices_[next].streamed()) {
      SlotFor(next, /*now=*/false);
      return;
    }
  }
}

absl::StatusOr<WeightWait> StreamedWeights::Ask(uint32_t slice) {
  Slice& wanted = slices_[slice];
  if (wanted.streamed()) {
    const uint32_t index = SlotFor(slice, /*now=*/true);
    const WeightWait later{.here = false, .look_again = RealClock().Now() + kLookAgain};
    if (index == kNoSlot) {
      return later;
    }
    Slot& slot = *slots_[index];
    const SlotState state = slot.state.load(std::memory_order_acquire);
    if (state == SlotState::kFailed) {
      const absl::Status error = slot.error;
      Clear(slot);  // Whoever asks again has it read again.
      return error;
    }
    if (state == SlotState::kOrdered) {
      return later;
    }
    if (state == SlotState::kLoaded) {
      Place(wanted, slot.buffer.data);
      slot.state.store(SlotState::kPlaced, std::memory_order_relaxed);
    }
    ++slot.holders;
  }
  if (streamed_ > 0) {
    OrderNext(slice);
  }
  return WeightWait{};
}

void StreamedWeights::Release(uint32_t slice) {
  if (slices_[slice].streamed()) {
    LAMINA_CHECK(slices_[slice].slot != kNoSlot && slots_[slices_[slice].slot]->holders > 0);
    --slots_[slices_[slice].slot]->holders;
  }
}

void StreamedWeights::Run() {
  for (uint32_t done = 0;; ++done) {
    ordered_.wait(done, std::memory_order_acquire);
    if (end_.load()) {
      return;
    }
    Slot& slot = *slots_[orders_[done % orders_.size()]];
    slot.error = Bring(slot);
    slot.state.store(slot.error.ok() ? SlotState::kLoaded : SlotState::kFailed,
                     std::memory_order_release);
  }
}

absl::Status StreamedWeights::Bring(Slot& slot) {
  for (const Piece& piece : slices_[slot.slice].pieces) {
    // Others' transfers take their turns between.
    for (size_t done = 0; done < piece.bytes;) {
      const size_t bytes =
          options_.bus == nullptr ? piece.bytes : std::min(kTurnBytes, piece.bytes - done);
      const Nanos through =
          options_.bus == nullptr ? 0 : options_.bus->Take(bytes, RealClock().Now());
      LAMINA_RETURN_IF_ERROR(store_->Read(
          piece.stored + done, absl::MakeSpan(slot.buffer.data + piece.at + done, bytes)));
      if (const Nanos early = through - RealClock().Now(); early > 0) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(early));
      }
      if (options_.bus != nullptr) {
        options_.bus->Count(BusKind::kWeights, bytes);
      }
      done += bytes;
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
