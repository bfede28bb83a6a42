// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_region.h"

#include <linux/futex.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "transport/put_check.h"

namespace lamina::transport {
namespace {

constexpr uint64_t kHeaderMagic = 0x3130'6e67'725f'6d6c;
constexpr size_t kPageBytes = 4096;
static_assert(sizeof(ShmHeader) <= kPageBytes);

ShmSignalWord* SignalsOf(const SharedMapping& mapping) {
  return std::launder(reinterpret_cast<ShmSignalWord*>(mapping.data() + kPageBytes));
}

ShmHeader* HeaderOf(const SharedMapping& mapping) {
  return std::launder(reinterpret_cast<ShmHeader*>(mapping.data()));
}

// All but the page of the header, which is the transport's own.
DirectMemory DirectMemoryOf(const SharedMapping& mapping, absl::Span<std::byte> data) {
  return {.bytes = data,
          .words = mapping.data() + kPageBytes,
          .word_stride = sizeof(ShmSignalWord),
          .pages = {mapping.data() + kPageBytes, mapping.size() - kPageBytes}};
}

absl::Status CheckOptions(const RegionOptions& options, const DeviceMemory* device) {
  if (options.kind != MemoryKind::kHost && device == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.name, ": this shm:// was made without a device, and holds host memory only"));
  }
  if (options.bytes == 0 && options.signal_words == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.name, ": a region needs bytes or signal words; both are 0"));
  }
  if (options.signal_words > kShmSignalWordsMax) {
    return absl::InvalidArgumentError(absl::StrCat(options.name, ": ", options.signal_words,
                                                   " signal words, at most ", kShmSignalWordsMax));
  }
  if (options.bytes > kShmDataBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(options.name, ": ", FormatBytes(options.bytes),
                                                     " asked for, a region holds at most ",
                                                     FormatBytes(kShmDataBytesMax)));
  }
  return absl::OkStatus();
}

bool Matches(const ShmHeader& header, const ShmDescriptor& descriptor) {
  return header.magic == kHeaderMagic && header.key[0] == descriptor.key[0] &&
         header.key[1] == descriptor.key[1] && header.epoch == descriptor.epoch &&
         header.data_bytes == descriptor.data_bytes &&
         header.signal_words == descriptor.signal_words &&
         header.handle_checksum == ShmHandleChecksum(descriptor);
}

// Memory of the device for the data, and what peers open it by.
absl::StatusOr<DeviceAllocation> AllocateData(const RegionOptions& options, DeviceMemory& device,
                                              ShmDescriptor& descriptor) {
  absl::StatusOr<DeviceAllocation> data = DeviceAllocation::Make(device, options.bytes);
  if (!data.ok()) {
    return absl::Status(data.status().code(),
                        absl::StrCat(options.name, ": ", data.status().message()));
  }
  absl::StatusOr<PeerHandle> handle = device.ExportToPeers(data->bytes().first(options.bytes));
  if (!handle.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("CUDA IPC: ", handle.status().message()));
  }
  descriptor.handle = *std::move(handle);
  return data;
}

// Not FUTEX_*_PRIVATE: the two ends are two processes.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, Nanos at_most) {
  const timespec timeout = {.tv_sec = at_most / Seconds(1), .tv_nsec = at_most % Seconds(1)};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

ShmLayout MakeShmLayout(uint64_t data_bytes, uint32_t signal_words) {
  const auto round_up = [](size_t n) { return (n + kPageBytes - 1) / kPageBytes * kPageBytes; };
  ShmLayout layout;
  layout.data_offset = kPageBytes + round_up(signal_words * sizeof(ShmSignalWord));
  layout.total_bytes = layout.data_offset + round_up(data_bytes);
  return layout;
}

absl::StatusOr<std::unique_ptr<ShmRegion>> ShmRegion::Create(const RegionOptions& options,
                                                             DeviceWindows* windows) {
  DeviceMemory* const device = windows == nullptr ? nullptr : windows->device();
  LAMINA_RETURN_IF_ERROR(CheckOptions(options, device));
  ShmDescriptor descriptor = {.host = HostFingerprint(),
                              .epoch = options.epoch,
                              .data_bytes = options.bytes,
                              .signal_words = options.signal_words};
  LAMINA_CHECK(getentropy(&descriptor.key, sizeof descriptor.key) == 0);
  LAMINA_ASSIGN_OR_RETURN(descriptor.pid, OwnProcessNumber());
  DeviceAllocation data;
  if (options.kind == MemoryKind::kDevice && !options.may_stage) {
    return absl::FailedPreconditionError(
        absl::StrCat("CUDA IPC: whether a sender can map memory of ", device->name(),
                     " shows when it opens it"));
  }
  if (options.kind == MemoryKind::kDevice && options.bytes > 0) {
    windows->Sweep();
    LAMINA_ASSIGN_OR_RETURN(data, AllocateData(options, *device, descriptor));
  }

  const size_t total = MakeShmLayout(options.bytes, options.signal_words).total_bytes;
  LAMINA_ASSIGN_OR_RETURN(FileDescriptor file, CreateSharedFile(total, options.name));
  LAMINA_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::Map(file, total));
  descriptor.fd = static_cast<uint32_t>(file.get());
  return std::unique_ptr<ShmRegion>(new ShmRegion(std::move(file), std::move(mapping), descriptor,
                                                  options.written_by_devices, std::move(data),
                                                  windows));
}

ShmRegion::ShmRegion(FileDescriptor file, SharedMapping mapping, const ShmDescriptor& descriptor,
                     bool written_by_devices, DeviceAllocation data, DeviceWindows* windows)
    : file_(std::move(file)),
      mapping_(std::move(mapping)),
      descriptor_(descriptor),
      written_by_devices_(written_by_devices),
      header_(new (mapping_.data()) ShmHeader{.magic = kHeaderMagic,
                                              .key = {descriptor.key[0], descriptor.key[1]},
                                              .epoch = descriptor.epoch,
                                              .data_bytes = descriptor.data_bytes,
                                              .signal_words = descriptor.signal_words,
                                              .handle_checksum = ShmHandleChecksum(descriptor)}),
      signals_(SignalsOf(mapping_)),
      shared_(mapping_.data() +
                  MakeShmLayout(descriptor.data_bytes, descriptor.signal_words).data_offset,
              descriptor.data_bytes),
      device_data_(std::move(data)),
      bytes_(device_data_.memory() == nullptr ? shared_
                                              : device_data_.bytes().first(descriptor.data_bytes)),
      windows_(windows) {
  if (device_data_.memory() != nullptr) {
    windows_->AddSource(bytes_);
  }
}

ShmRegion::~ShmRegion() {
  // Release: whatever this process did with the region came before.
  header_->closed.store(1, std::memory_order_release);
  if (device_data_.memory() != nullptr) {
    windows_->RemoveSource(bytes_);
    // A peer takes its lock on the file before it looks at `closed`.
    windows_->Retire(std::move(device_data_), std::move(file_));
  }
}

MemoryChoice ShmRegion::memory() const {
  const bool staged = header_->decision.reach.load(std::memory_order_acquire) == ShmReach::kStaged;
  return {.path = staged ? MemoryPath::kStaging : MemoryPath::kIpc,
          .device = device_data_.memory()->name(),
          .why_not = staged ? header_->decision.Why() : ""};
}

DirectMemory ShmRegion::direct() {
  return device_data_.memory() == nullptr ? DirectMemoryOf(mapping_, bytes_) : DirectMemory{};
}

absl::Status ShmRegion::Land(size_t offset, size_t bytes) const {
  LAMINA_CHECK(offset <= bytes_.size() && bytes <= bytes_.size() - offset);
  // Acquire: as the signal, which came later.
  if (bytes == 0 || header_->decision.reach.load(std::memory_order_acquire) != ShmReach::kStaged) {
    return absl::OkStatus();
  }
  return device_data_.memory()->CopyIn(bytes_.data() + offset, shared_.data() + offset, bytes);
}

uint64_t ShmRegion::LoadSignal(uint32_t word) const {
  LAMINA_CHECK(word < signal_words());
  return signals_[word].value.load(std::memory_order_acquire);
}

void ShmRegion::Sleep(absl::Span<const SignalCondition> conditions, Nanos at_most) const {
  // Pairs with Raise(): flag, fence, signals here; signal, fence, flag there.
  header_->sleeping.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!FirstHolding(conditions)) {
    FutexWait(header_->sleeping, 1, at_most);
  }
  header_->sleeping.store(0, std::memory_order_relaxed);
}

absl::StatusOr<std::unique_ptr<ShmRemoteRegion>> ShmRemoteRegion::Open(
    const ShmDescriptor& descriptor, DeviceMemory* device) {
  if (descriptor.data_bytes > kShmDataBytesMax || descriptor.signal_words > kShmSignalWordsMax) {
    return absl::InvalidArgumentError("shm: descriptor of an impossible size");
  }
  if (const uint64_t host = HostFingerprint(); descriptor.host != host) {
    return absl::UnavailableError(
        "shm: the region lies on another host, or on this one before it was restarted; shm:// "
        "joins processes of one host, use ucx:// between hosts");
  }
  const size_t total = MakeShmLayout(descriptor.data_bytes, descriptor.signal_words).total_bytes;
  LAMINA_ASSIGN_OR_RETURN(FileDescriptor file,
                          OpenSharedFile(descriptor.pid, descriptor.fd, total));
  LAMINA_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::Map(file, total));
  if (!Matches(*HeaderOf(mapping), descriptor)) {
    return absl::UnavailableError(
        absl::StrCat("shm: process ", descriptor.pid,
                     " holds another region in its place: its owner was restarted; ask it for a "
                     "new descriptor"));
  }
  std::unique_ptr<ShmRemoteRegion> remote(
      new ShmRemoteRegion(std::move(mapping), descriptor, device));
  if (descriptor.on_device() && !remote->closed()) {
    LAMINA_ASSIGN_OR_RETURN(remote->window_, PeerWindow::Open(descriptor, std::move(file), device,
                                                              remote->header_->decision));
  }
  if (remote->closed()) {
    return absl::UnavailableError(
        absl::StrCat("shm: process ", descriptor.pid, " has destroyed the region"));
  }
  return remote;
}

ShmRemoteRegion::ShmRemoteRegion(SharedMapping mapping, const ShmDescriptor& descriptor,
                                 DeviceMemory* device)
    : mapping_(std::move(mapping)),
      header_(HeaderOf(mapping_)),
      signals_(SignalsOf(mapping_)),
      data_(mapping_.data() +
            MakeShmLayout(descriptor.data_bytes, descriptor.signal_words).data_offset),
      data_bytes_(descriptor.data_bytes),
      on_device_(descriptor.on_device()),
      device_(device),
      raised_(descriptor.signal_words) {
  for (size_t word = 0; word < raised_.size(); ++word) {
    raised_[word] = signals_[word].value.load(std::memory_order_relaxed);
  }
}

std::string ShmRemoteRegion::path() const {
  return !on_device_ ? "shm" : window_.mapped() != nullptr ? "shm (CUDA IPC)" : "shm (staged)";
}

DirectMemory ShmRemoteRegion::direct() {
  if (on_device_) {
    return {};
  }
  raised_elsewhere_ = true;
  return DirectMemoryOf(mapping_, {data_, data_bytes_});
}

absl::Status ShmRemoteRegion::CheckPut(size_t offset, size_t bytes,
                                       const SignalUpdate* signal) const {
  LAMINA_RETURN_IF_ERROR(CheckPutArguments("shm", data_bytes_, raised_, offset, bytes, signal));
  if (closed()) {
    return absl::UnavailableError("shm: the owner has destroyed the region");
  }
  if (owner_gone_) {
    return absl::UnavailableError("shm: the process that made the region is gone");
  }
  return absl::OkStatus();
}

absl::Status ShmRemoteRegion::Copy(size_t offset, absl::Span<const std::byte> source,
                                   bool from_device) const {
  std::byte* const mapped = window_.mapped();
  if (mapped == nullptr && !from_device) {
    std::memcpy(data_ + offset, source.data(), source.size());
    return absl::OkStatus();
  }
  if (mapped == nullptr) {
    return device_->CopyOut(data_ + offset, source.data(), source.size());
  }
  return from_device ? device_->CopyAcross(mapped + offset, source.data(), source.size())
                     : device_->CopyIn(mapped + offset, source.data(), source.size());
}

absl::Status ShmRemoteRegion::Put(size_t offset, absl::Span<const std::byte> source,
                                  const SignalUpdate* signal, bool from_device) {
  if (window_.mapped() != nullptr && window_.OwnerIsGone()) {
    window_ = PeerWindow();
    owner_gone_ = true;
  }
  if (raised_elsewhere_ && signal != nullptr && signal->word < raised_.size()) {
    raised_[signal->word] = signals_[signal->word].value.load(std::memory_order_relaxed);
  }
  LAMINA_RETURN_IF_ERROR(CheckPut(offset, source.size(), signal));
  if (!source.empty()) {
    LAMINA_RETURN_IF_ERROR(Copy(offset, source, from_device));
  }
  if (signal != nullptr) {
    Raise(*signal);
  }
  return absl::OkStatus();
}

void ShmRemoteRegion::Raise(const SignalUpdate& signal) {
  raised_[signal.word] = signal.value;
  // Release: this Put's bytes, and those of all earlier ones, come first.
  signals_[signal.word].value.store(signal.value, std::memory_order_release);
  // Pairs with Sleep().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (header_->sleeping.load(std::memory_order_relaxed) != 0) {
    // Lowered here, so that the next senders need not call the kernel for the same sleeper.
    header_->sleeping.store(0, std::memory_order_relaxed);
    FutexWakeAll(header_->sleeping);
  }
}

}  // namespace lamina::transport
