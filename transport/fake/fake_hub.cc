// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "transport/fake/fake_hub_internal.h"
#include "transport/put_check.h"

namespace lamina::transport {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr uint64_t kNeverDue = UINT64_MAX;  // No step has this number.

// Not reused within a process, so that a descriptor never means a later region.
uint64_t NextNumber() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

size_t WholePages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

bool Contains(absl::Span<const std::byte> outer, absl::Span<const std::byte> inner) {
  return inner.data() >= outer.data() && inner.data() + inner.size() <= outer.data() + outer.size();
}

}  // namespace

FakeHub::FakeHub(const FakeNetworkOptions& options) : options_(options), prng_(options.seed) {}

size_t FakeHub::DeviceWordsAt(size_t bytes) { return WholePages(bytes); }

size_t FakeHub::DeviceBytes(const RegionOptions& options) {
  return DeviceWordsAt(options.bytes) + options.signal_words * sizeof(uint64_t);
}

uint64_t FakeHub::AddTransport() { return NextNumber(); }

void FakeHub::RemoveTransport(uint64_t transport) {
  const std::lock_guard lock(mutex_);
  Drop(nullptr, transport);
  names_.erase(transport);
  std::erase_if(sources_, [&](const Source& source) { return source.transport == transport; });
}

std::shared_ptr<FakeMemory> FakeHub::AddRegion(uint64_t owner, const RegionOptions& options,
                                               DeviceAllocation device) {
  auto memory = std::make_shared<FakeMemory>();
  memory->id = NextNumber();
  memory->name = options.name;
  memory->owner = owner;
  memory->epoch = options.epoch;
  const size_t words_bytes = WholePages(options.signal_words * sizeof(std::atomic<uint64_t>));
  const size_t total = words_bytes + WholePages(options.bytes);
  memory->storage.resize(total + kPageBytes - 1);
  const size_t skip = -reinterpret_cast<uintptr_t>(memory->storage.data()) % kPageBytes;
  memory->pages = absl::MakeSpan(memory->storage).subspan(skip, total);
  memory->arrived = memory->pages.subspan(words_bytes, options.bytes);
  memory->device = std::move(device);
  memory->bytes = memory->device.memory() == nullptr ? memory->arrived
                                                     : memory->device.bytes().first(options.bytes);
  if (memory->device.memory() != nullptr && options.polled_by_device &&
      memory->device.memory()->OrdersPeerWrites()) {
    memory->device_words = memory->device.bytes().data() + DeviceWordsAt(options.bytes);
  }
  auto* const words = reinterpret_cast<std::atomic<uint64_t>*>(memory->pages.data());
  for (uint32_t word = 0; word < options.signal_words; ++word) {
    new (words + word) std::atomic<uint64_t>(0);
  }
  memory->signals = {words, options.signal_words};
  const std::lock_guard lock(mutex_);
  regions_[memory->id] = memory;
  names_.try_emplace(owner, options.name);
  return memory;
}

void FakeHub::RemoveRegion(FakeMemory& memory) {
  const std::lock_guard lock(mutex_);
  Drop(&memory, 0);
  regions_.erase(memory.id);
  const DeviceAllocation freed = std::move(memory.device);
}

absl::Status FakeHub::Land(const FakeMemory& memory, size_t offset, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (memory.device.memory() == nullptr || bytes == 0) {
    return absl::OkStatus();
  }
  return memory.device.memory()->CopyIn(memory.bytes.data() + offset,
                                        memory.arrived.data() + offset, bytes);
}

// Removes what flies to `target`, or from `sender`.
void FakeHub::Drop(const FakeMemory* target, uint64_t sender) {
  for (Flight& flight : flights_) {
    const bool hit = flight.view->target.get() == target || flight.view->sender == sender;
    if (hit) {
      flight.view->pending -= flight.data_done() ? 0 : 1;
      flight.landed = {true, true};
      flight.signal.reset();
    }
  }
  std::erase_if(flights_, [](const Flight& flight) { return flight.done(); });
}

absl::StatusOr<std::shared_ptr<FakeView>> FakeHub::AddView(uint64_t sender, uint64_t region) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(region);
  if (found == regions_.end()) {
    return absl::UnavailableError(absl::StrCat(
        "fake: no region ", region, " on this network: its owner is gone or on another network"));
  }
  auto view = std::make_shared<FakeView>();
  view->sender = sender;
  view->target = found->second;
  for (const std::atomic<uint64_t>& word : view->target->signals) {
    view->raised.push_back(word.load(std::memory_order_relaxed));
  }
  return view;
}

void FakeHub::RemoveView(const FakeView& view) {
  const std::lock_guard lock(mutex_);
  for (Flight& flight : flights_) {
    if (flight.view.get() == &view) {
      LandData(flight, kNeverDue - 1);
    }
  }
}

void FakeHub::AddSource(uint64_t transport, absl::Span<const std::byte> bytes,
                        DeviceMemory* device) {
  const std::lock_guard lock(mutex_);
  sources_.push_back({.transport = transport, .bytes = bytes, .device = device});
}

std::optional<FakeHub::Source> FakeHub::FindSource(uint64_t transport,
                                                   absl::Span<const std::byte> bytes) const {
  if (bytes.empty()) {
    return Source{.transport = transport};
  }
  for (const Source& source : sources_) {
    if (source.transport == transport && Contains(source.bytes, bytes)) {
      return source;
    }
  }
  for (const auto& [id, memory] : regions_) {
    if (memory->owner == transport && Contains(memory->bytes, bytes)) {
      return Source{
          .transport = transport, .bytes = memory->bytes, .device = memory->device.memory()};
    }
  }
  return std::nullopt;
}

uint32_t FakeHub::InFlight(uint64_t sender) const {
  return static_cast<uint32_t>(
      std::count_if(flights_.begin(), flights_.end(),
                    [&](const Flight& flight) { return flight.view->sender == sender; }));
}

absl::Status FakeHub::CheckPut(const FakeView& view, size_t offset,
                               absl::Span<const std::byte> source,
                               const SignalUpdate* signal) const {
  if (source.size() > options_.put_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("fake: put of ", source.size(), " bytes, at most ", options_.put_bytes_max));
  }
  LAMINA_RETURN_IF_ERROR(CheckPutArguments("fake", view.target->bytes.size(), view.raised, offset,
                                           source.size(), signal));
  if (!FindSource(view.sender, source).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fake: the source of ", source.size(), " bytes was not registered"));
  }
  if (!regions_.contains(view.target->id)) {
    return absl::UnavailableError("fake: the owner has destroyed the region");
  }
  if (InFlight(view.sender) >= options_.in_flight_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("fake: ", options_.in_flight_max, " puts are in flight"));
  }
  return absl::OkStatus();
}

void FakeHub::SetLinks(FakeLinks links) {
  const std::lock_guard lock(mutex_);
  links_ = std::move(links);
}

FakeFate FakeHub::FateOf(const FakeView& view, size_t bytes, bool raises) const {
  if (!links_) {
    return FakeFate::kArrives;
  }
  const auto from = names_.find(view.sender);
  return links_({.from = from == names_.end() ? absl::string_view() : from->second,
                 .to = view.target->name,
                 .epoch = view.target->epoch,
                 .bytes = bytes,
                 .raises = raises});
}

uint64_t FakeHub::DrawDue() {
  return options_.delay_steps_max == 0 ? step_ : step_ + 1 + prng_.Below(options_.delay_steps_max);
}

absl::Status FakeHub::Put(const std::shared_ptr<FakeView>& view, size_t offset,
                          absl::Span<const std::byte> source, const SignalUpdate* signal) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = CheckPut(*view, offset, source, signal); !status.ok()) {
    return status;
  }
  const FakeFate fate = FateOf(*view, source.size(), signal != nullptr);
  if (fate == FakeFate::kIsRefused) {
    return absl::UnavailableError("fake: the link to the peer is cut");
  }
  if (source.empty() && signal == nullptr) {
    return absl::OkStatus();
  }
  Flight flight = {.view = view,
                   .offset = offset,
                   .source = source,
                   .device = FindSource(view->sender, source)->device};
  flight.data_due.first = DrawDue();
  flight.data_due.second = DrawDue();
  flight.signal_due = DrawDue();
  if (fate == FakeFate::kHangs) {
    flight.data_due = {kNeverDue, kNeverDue};
    flight.signal_due = kNeverDue;
  }
  ++view->pending;
  if (signal != nullptr) {
    flight.signal = *signal;
    view->raised[signal->word] = signal->value;
  }
  flights_.push_back(std::move(flight));
  if (fate == FakeFate::kArrives && options_.delay_steps_max == 0 &&
      !options_.target_must_progress) {
    LandData(flights_.back(), step_);
    if (signal != nullptr) {
      Raise(*view->target, *signal);
    }
    flights_.pop_back();
  }
  return absl::OkStatus();
}

void FakeHub::Raise(FakeMemory& memory, const SignalUpdate& signal) {
  if (memory.device_words != nullptr) {
    std::byte* const word = memory.device_words + signal.word * sizeof(uint64_t);
    const auto* const value = reinterpret_cast<const std::byte*>(&signal.value);
    LAMINA_CHECK(memory.device.memory()->CopyIn(word, value, sizeof(uint64_t)).ok());
  }
  // Release: the data that landed before is visible with it.
  memory.signals[signal.word].store(signal.value, std::memory_order_release);
}

void FakeHub::LandData(Flight& flight, uint64_t step) {
  if (flight.data_done()) {
    return;
  }
  const size_t half = flight.source.size() / 2;
  const auto land = [&](bool& landed, uint64_t due, size_t begin, size_t size) {
    if (!landed && due <= step) {
      std::byte* const to = flight.view->target->arrived.data() + flight.offset + begin;
      const std::byte* const from = flight.source.data() + begin;
      if (size > 0 && flight.device == nullptr) {
        std::memcpy(to, from, size);
      } else if (size > 0) {
        LAMINA_CHECK(flight.device->CopyOut(to, from, size).ok());
      }
      const FakeMemory& target = *flight.view->target;
      if (size > 0 && target.device_words != nullptr) {
        std::byte* const place = target.bytes.data() + flight.offset + begin;
        LAMINA_CHECK(target.device.memory()->CopyIn(place, to, size).ok());
      }
      landed = true;
    }
  };
  land(flight.landed.first, flight.data_due.first, 0, half);
  land(flight.landed.second, flight.data_due.second, half, flight.source.size() - half);
  flight.view->pending -= flight.data_done() ? 1 : 0;
}

// Whether all that must be visible before this flight's signal is so.
bool FakeHub::MayRaise(const Flight& flight) const {
  if (!flight.data_done()) {
    return false;
  }
  for (const Flight& earlier : flights_) {
    if (&earlier == &flight) {
      return true;
    }
    const bool same_peer = earlier.view->sender == flight.view->sender &&
                           earlier.view->target->owner == flight.view->target->owner;
    if (same_peer && !earlier.data_done()) {
      return false;
    }
    const bool same_word = earlier.view->target == flight.view->target && earlier.signal &&
                           earlier.signal->word == flight.signal->word;
    if (same_word) {
      return false;
    }
  }
  return true;
}

uint32_t FakeHub::Pending(const FakeView& view) const {
  const std::lock_guard lock(mutex_);
  return view.pending;
}

uint32_t FakeHub::Step(uint64_t transport) {
  const std::lock_guard lock(mutex_);
  ++step_;
  const auto driven = [&](const Flight& flight) {
    return !options_.target_must_progress || flight.view->target->owner == transport;
  };
  for (Flight& flight : flights_) {
    if (driven(flight)) {
      LandData(flight, step_);
    }
  }
  for (Flight& flight : flights_) {
    if (driven(flight) && flight.signal && flight.signal_due <= step_ && MayRaise(flight)) {
      Raise(*flight.view->target, *flight.signal);
      flight.signal.reset();
    }
  }
  const auto completed = static_cast<uint32_t>(std::count_if(
      flights_.begin(), flights_.end(),
      [&](const Flight& flight) { return flight.done() && flight.view->sender == transport; }));
  std::erase_if(flights_, [](const Flight& flight) { return flight.done(); });
  return completed;
}

}  // namespace lamina::transport
