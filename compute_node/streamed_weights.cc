// SPDX-License-Identifier: Apache-2.0
#include "compute_node/streamed_weights.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "compute_node/weight_sizes.h"

namespace lamina::compute_node {
namespace {

constexpr size_t kLine = 64;  // What packed weights are aligned to.
constexpr Nanos kLookAgain = Micros(20);
// Turn of a transfer on the bus; as memory nodes put at once.
constexpr size_t kTurnBytes = size_t{256} << 10;
constexpr size_t kFeaturesStep = 64;  // Features that products begin with are multiples of it.

size_t Aligned(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// The first line from there on.
std::byte* AtLine(std::byte* data) {
  return data + (kLine - reinterpret_cast<uintptr_t>(data) % kLine) % kLine;
}

std::string SlotsInWords(size_t slots) {
  return slots == 1 ? "one slot" : absl::StrCat(slots, " slots");
}

bool IsFirstOf(absl::Span<const model::OpId> ops, model::OpId op) {
  return !ops.empty() && ops.front() == op;
}

// The feature of the matrix of q, k and v from which on products make k and v.
size_t FirstOfKv(const SliceProgram& program, uint32_t slice) {
  return program.attention(slice).descriptor.q_width() / kFeaturesStep * kFeaturesStep;
}

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
        FormatBytes(fixed), " of embeddings, norms and LM head, which stay, and ",
        SlotsInWords(slots), " of ", FormatBytes(largest), " for slices that come"));
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
    : device_(device),
      options_(std::move(options)),
      transfer_order_(options_.kv_first ? MakeKvFirst() : MakeOpOrder()),
      forms_(options_.form, device.dense()),
      weights_(ModelWeights::None(device)) {}

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
  movable_bytes_ = 0;
  stowed_bytes_ = 0;
  streamed_.clear();
  earliest_ = 0;
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
  std::vector<uint32_t> slice_of(program.graph().ops.size(), UINT32_MAX);
  for (uint32_t slice = 0; slice + 1 < program.slice_count(); ++slice) {  // Not the LM head's.
    for (const model::OpId op : program.split().slices[slice].ops) {
      slice_of[op] = slice;
    }
  }
  LAMINA_RETURN_IF_ERROR(Choose(program, source, ops));
  LAMINA_ASSIGN_OR_RETURN(weights_, ModelWeights::Load(
                                        program.graph(), source, device_, ops, progress,
                                        [&](model::OpId op, kernels::PackedLinear& linear) {
                                          const uint32_t slice = slice_of[op];
                                          if (slice == UINT32_MAX) {
                                            return absl::OkStatus();
                                          }
                                          if (IsFirstOf(program.KvOps(slice), op)) {
                                            slices_[slice].kv =
                                                KvFeatures{.linear = slices_[slice].linears.size(),
                                                           .first = FirstOfKv(program, slice)};
                                          }
                                          return Add(slices_[slice], linear);
                                        },
                                        &forms_));
  LAMINA_RETURN_IF_ERROR(StowMore());
  return MakeSlots();
}

absl::Status StreamedWeights::Choose(const SliceProgram& program, const model::WeightSource& source,
                                     absl::Span<const model::OpId> ops) {
  const WeightSizes sizes = SizesOf(program.graph(), source, ops, device_, forms_);
  std::vector<uint64_t> bytes(program.slice_count(), 0);
  uint64_t fixed = std::accumulate(sizes.matrices.begin(), sizes.matrices.end(), sizes.others);
  for (uint32_t slice = 0; slice + 1 < program.slice_count(); ++slice) {
    for (const model::OpId op : program.split().slices[slice].ops) {
      bytes[slice] += sizes.matrices[op];
    }
    fixed -= bytes[slice];
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<bool> streamed,
                          ChooseStreamed(bytes, fixed, SlotCount(), options_.budget));
  slices_.resize(program.slice_count());
  for (uint32_t slice = 0; slice < slices_.size(); ++slice) {
    slices_[slice].streamed = streamed[slice];
  }
  return absl::OkStatus();
}

absl::Status StreamedWeights::Add(Slice& slice, kernels::PackedLinear& linear) {
  StowedLinear added{.linear = &linear, .pieces = {}};
  for (const absl::Span<std::byte> piece : linear.Pieces()) {
    added.pieces.push_back({.bytes = piece.size(), .at = slice.bytes});
    slice.bytes += Aligned(piece.size());
    movable_bytes_ += piece.size();
  }
  places_.assign(std::max(places_.size(), added.pieces.size()), nullptr);
  slice.linears.push_back(std::move(added));
  return slice.streamed ? Stow(slice.linears.back()) : absl::OkStatus();
}

absl::Status StreamedWeights::Stow(StowedLinear& stowed) {
  if (stowed.pieces.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("weights_budget on ", device_.name(),
                     ": its packed weights cannot be moved; this version streams to processors"));
  }
  if (store_ == nullptr) {
    LAMINA_ASSIGN_OR_RETURN(store_, WeightStore::Create(options_.directory));
  }
  const std::vector<absl::Span<std::byte>> from = stowed.linear->Pieces();
  for (size_t i = 0; i < from.size(); ++i) {
    LAMINA_ASSIGN_OR_RETURN(stowed.pieces[i].stored, store_->Append(from[i]));
    stowed_bytes_ += from[i].size();
  }
  std::fill(places_.begin(), places_.end(), nullptr);
  stowed.linear->Place(absl::MakeSpan(places_).first(from.size()));
  return absl::OkStatus();
}

absl::Status StreamedWeights::StowMore() {
  std::vector<uint64_t> bytes;
  uint64_t largest = 0;
  for (const Slice& slice : slices_) {
    bytes.push_back(slice.linears.empty() ? 0 : slice.bytes + kLine);
    largest = slice.streamed ? std::max(largest, bytes.back()) : largest;
  }
  if (weights_.bytes() - stowed_bytes_ + SlotCount() * largest <= options_.budget) {
    return absl::OkStatus();
  }
  const uint64_t fixed = weights_.bytes() - movable_bytes_;
  LAMINA_ASSIGN_OR_RETURN(const std::vector<bool> streamed,
                          ChooseStreamed(bytes, fixed, SlotCount(), options_.budget));
  for (uint32_t slice = 0; slice < slices_.size(); ++slice) {
    if (!streamed[slice] || slices_[slice].streamed) {
      continue;
    }
    slices_[slice].streamed = true;
    for (StowedLinear& linear : slices_[slice].linears) {
      LAMINA_RETURN_IF_ERROR(Stow(linear));
    }
  }
  return absl::OkStatus();
}

absl::Status StreamedWeights::MakeSlots() {
  size_t largest = 0;
  for (uint32_t slice = 0; slice < slices_.size(); ++slice) {
    if (Slice& streamed = slices_[slice]; streamed.streamed) {
      streamed_.push_back(slice);
      largest = std::max(largest, streamed.bytes);
      streamed.transfers = transfer_order_->Of(streamed.linears, streamed.kv);
    }
  }
  if (streamed_.empty()) {
    return absl::OkStatus();
  }
  const uint32_t count = std::min(SlotCount(), static_cast<uint32_t>(streamed_.size()));
  for (uint32_t i = 0; i < count; ++i) {
    slots_.push_back(std::make_unique<Slot>());
    Slot& slot = *slots_.back();
    LAMINA_ASSIGN_OR_RETURN(slot.buffer, device_.Allocate(largest + kLine));
    slot.data = AtLine(slot.buffer.data);
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
  return streamed_.empty()
             ? DescribeForms(weights_)
             : absl::StrCat(streamed_.size(), " of ", slices_.size(), " slices come from ",
                            options_.directory, ", ", FormatBytes(stowed_bytes_),
                            " in all, through ", SlotsInWords(slots_.size()), "; all are ",
                            DescribeForms(weights_));
}

void StreamedWeights::Place(const StowedLinear& linear, std::byte* begin) {
  for (size_t i = 0; i < linear.pieces.size(); ++i) {
    places_[i] = begin == nullptr ? nullptr : begin + linear.pieces[i].at;
  }
  linear.linear->Place(absl::MakeSpan(places_).first(linear.pieces.size()));
}

void StreamedWeights::Place(const Slice& slice, std::byte* begin) {
  for (const StowedLinear& linear : slice.linears) {
    Place(linear, begin);
  }
}

uint32_t StreamedWeights::StepsAhead(uint32_t slice) const {
  const auto rank = [this](uint32_t of) {
    return std::lower_bound(streamed_.begin(), streamed_.end(), of) - streamed_.begin();
  };
  const auto count = static_cast<std::ptrdiff_t>(streamed_.size());
  return static_cast<uint32_t>((rank(slice) - rank(earliest_) % count + count) % count);
}

uint32_t StreamedWeights::FreeSlot() const {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = *slots_[i];
    const SlotState state = slot.state.load(std::memory_order_acquire);
    if (state == SlotState::kEmpty ||
        (!Comes(state) && slot.holders == 0 && !IsWanted(slot.slice))) {
      return i;
    }
  }
  return kNoSlot;
}

void StreamedWeights::Clear(Slot& slot) {
  if (slot.slice != UINT32_MAX) {
    Place(slices_[slot.slice], nullptr);
    slices_[slot.slice].slot = kNoSlot;
    slot.slice = UINT32_MAX;
  }
  slot.state.store(SlotState::kEmpty, std::memory_order_relaxed);
}

bool StreamedWeights::Order(uint32_t slice) {
  const uint32_t free = FreeSlot();
  if (free == kNoSlot) {
    return false;
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
  return true;
}

void StreamedWeights::OrderWanted() {
  const auto first = std::lower_bound(streamed_.begin(), streamed_.end(), earliest_);
  size_t at = static_cast<size_t>(first - streamed_.begin()) % streamed_.size();
  for (size_t i = 0; i < slots_.size(); ++i, at = (at + 1) % streamed_.size()) {
    if (slices_[streamed_[at]].slot == kNoSlot && !Order(streamed_[at])) {
      return;
    }
  }
}

void StreamedWeights::SetEarliest(uint32_t slice) {
  earliest_ = slice;
  if (!streamed_.empty()) {
    OrderWanted();
  }
}

absl::StatusOr<WeightWait> StreamedWeights::Ask(uint32_t slice) {
  if (options_.lanes == 1) {
    SetEarliest(slice);
  }
  Slice& wanted = slices_[slice];
  if (!wanted.streamed) {
    return WeightWait{};
  }
  if (wanted.slot == kNoSlot) {
    OrderWanted();  // A slot may have become free since the earliest slice was said.
  }
  const WeightWait later{.here = false, .look_again = RealClock().Now() + kLookAgain};
  if (wanted.slot == kNoSlot) {  // It is too far ahead, or others still hold all slots.
    return later;
  }
  Slot& slot = *slots_[wanted.slot];
  const SlotState state = slot.state.load(std::memory_order_acquire);
  if (state == SlotState::kFailed) {
    const absl::Status error = slot.error;
    Clear(slot);  // Whoever asks again has it read again.
    return error;
  }
  if (Comes(state)) {
    return later;
  }
  if (state == SlotState::kLoaded) {
    Place(wanted, slot.data);
    slot.state.store(SlotState::kPlaced, std::memory_order_relaxed);
  }
  ++slot.holders;
  return WeightWait{};
}

bool StreamedWeights::KvHere(uint32_t slice, size_t first_column) {
  const Slice& wanted = slices_[slice];
  if (wanted.slot == kNoSlot || first_column < wanted.kv.value_or(KvFeatures{}).first) {
    return false;
  }
  const Slot& slot = *slots_[wanted.slot];
  if (slot.state.load(std::memory_order_acquire) != SlotState::kKv) {
    return false;  // Where all have come Ask() finds them.
  }
  Place(wanted.linears[wanted.kv->linear], slot.data);
  return true;
}

void StreamedWeights::Release(uint32_t slice) {
  if (!slices_[slice].streamed) {
    return;
  }
  LAMINA_CHECK(slices_[slice].slot != kNoSlot && slots_[slices_[slice].slot]->holders > 0);
  const uint32_t left = --slots_[slices_[slice].slot]->holders;
  if (left == 0 && SlotCount() == 1) {
    SetEarliest(slice + 1);  // The next one need not wait for the attention behind this one.
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
  const Transfers& transfers = slices_[slot.slice].transfers;
  for (size_t i = 0; i < transfers.parts.size(); ++i) {
    LAMINA_RETURN_IF_ERROR(Bring(transfers.parts[i], slot.data + transfers.parts[i].at));
    if (i + 1 == transfers.kv_parts) {
      slot.state.store(SlotState::kKv, std::memory_order_release);
    }
  }
  return absl::OkStatus();
}

// Others' transfers take their turns between.
absl::Status StreamedWeights::Bring(const StowedPiece& part, std::byte* to) {
  for (size_t done = 0; done < part.bytes;) {
    const size_t bytes =
        options_.bus == nullptr ? part.bytes : std::min(kTurnBytes, part.bytes - done);
    const Nanos through =
        options_.bus == nullptr ? 0 : options_.bus->Take(bytes, RealClock().Now());
    LAMINA_RETURN_IF_ERROR(store_->Read(part.stored + done, absl::MakeSpan(to + done, bytes)));
    if (const Nanos early = through - RealClock().Now(); early > 0) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(early));
    }
    if (options_.bus != nullptr) {
      options_.bus->Count(BusKind::kWeights, bytes);
    }
    done += bytes;
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
