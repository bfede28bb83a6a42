// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host_memory.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "transport/verbs/verbs_descriptor.h"
#include "transport/verbs/verbs_region_internal.h"

namespace lamina::transport {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr uint32_t kSignalWordsMax = 1u << 20;

size_t WholePages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

absl::Status CheckOptions(const RegionOptions& options, const DeviceMemory* device) {
  if (options.kind != MemoryKind::kHost && device == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.name, ": this verbs:// was made without a device, and holds host memory only"));
  }
  if (options.bytes == 0 && options.signal_words == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.name, ": a region needs bytes or signal words; both are 0"));
  }
  if (options.signal_words > kSignalWordsMax) {
    return absl::InvalidArgumentError(absl::StrCat(options.name, ": ", options.signal_words,
                                                   " signal words, at most ", kSignalWordsMax));
  }
  if (options.bytes > kVerbsDataBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(options.name, ": ", FormatBytes(options.bytes),
                                                     " asked for, at most ",
                                                     FormatBytes(kVerbsDataBytesMax)));
  }
  // Registered memory is pinned: the kernel would take it page by page, and end a process when
  // there is no more.
  const HostMemory memory = QueryHostMemory();
  const uint64_t host_bytes = options.kind == MemoryKind::kHost ? options.bytes : 0;
  if (host_bytes + RegionMemory::DataOffset(options.signal_words) > memory.available_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options.name, ": ", FormatBytes(options.bytes), " asked for, ", memory.limit,
                     " leaves ", FormatBytes(memory.available_bytes),
                     "; free memory, raise that limit, or configure smaller windows"));
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t RegionMemory::DataOffset(uint32_t signal_words) {
  return WholePages(signal_words * kVerbsSignalStride);
}

absl::StatusOr<std::unique_ptr<RegionMemory>> RegionMemory::Create(ibv_pd* domain,
                                                                   const RegionOptions& options,
                                                                   DeviceMemory* device) {
  LAMINA_RETURN_IF_ERROR(CheckOptions(options, device));
  std::unique_ptr<RegionMemory> memory(new RegionMemory);
  memory->signal_words_ = options.signal_words;
  const size_t data_offset = DataOffset(options.signal_words);
  if (options.kind == MemoryKind::kHost || options.bytes == 0) {
    LAMINA_RETURN_IF_ERROR(memory->MapHost(domain, options.name, data_offset + options.bytes));
    memory->data_ = {memory->base_ + data_offset, options.bytes};
    return memory;
  }
  LAMINA_RETURN_IF_ERROR(memory->MapHost(domain, options.name, std::max(data_offset, kPageBytes)));
  const bool has_words = options.polled_by_device && device->OrdersPeerWrites();
  const size_t words_at = WholePages(options.bytes);
  LAMINA_ASSIGN_OR_RETURN(
      memory->device_,
      DeviceAllocation::Make(*device, has_words ? words_at + data_offset : options.bytes));
  memory->data_ = memory->device_.bytes().first(options.bytes);
  memory->device_words_ = has_words ? memory->device_.bytes().data() + words_at : nullptr;
  LAMINA_ASSIGN_OR_RETURN(
      memory->device_memory_,
      RegisterVerbsDeviceMemory(domain, *device, memory->device_.bytes(),
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  return memory;
}

DirectMemory RegionMemory::direct() const {
  if (device() != nullptr) {
    return device_words_ == nullptr ? DirectMemory{}
                                    : DirectMemory{.bytes = data_,
                                                   .words = device_words_,
                                                   .word_stride = kVerbsSignalStride,
                                                   .pages = {}};
  }
  return {
      .bytes = data_, .words = base_, .word_stride = kVerbsSignalStride, .pages = {base_, total_}};
}

absl::Status RegionMemory::MapHost(ibv_pd* domain, const std::string& name, size_t bytes) {
  total_ = WholePages(bytes);
  void* base = mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name, ": ", FormatBytes(total_), " asked for: ", std::strerror(errno)));
  }
  base_ = static_cast<std::byte*>(base);
  LAMINA_ASSIGN_OR_RETURN(
      memory_, RegisterVerbsMemory(domain, base, total_,
                                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, name));
  return absl::OkStatus();
}

RegionMemory::~RegionMemory() {
  device_memory_.memory.reset();
  memory_.reset();
  if (base_ != nullptr) {
    munmap(base_, total_);
  }
}

void SourceTable::Add(absl::Span<const std::byte> bytes, uint32_t lkey, VerbsMemory keeps) {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  entries_.push_back({begin, begin + bytes.size(), lkey, std::move(keeps)});
}

void SourceTable::Remove(absl::Span<const std::byte> bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  std::erase_if(entries_,
                [&](const Entry& entry) { return entry.begin == begin && entry.keeps == nullptr; });
  last_ = 0;
}

std::optional<uint32_t> SourceTable::Find(absl::Span<const std::byte> bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const auto holds = [&](const Entry& entry) {
    return begin >= entry.begin && begin <= entry.end && bytes.size() <= entry.end - begin;
  };
  if (last_ < entries_.size() && holds(entries_[last_])) {
    return entries_[last_].lkey;
  }
  const auto found = std::find_if(entries_.begin(), entries_.end(), holds);
  if (found == entries_.end()) {
    return std::nullopt;
  }
  last_ = static_cast<size_t>(found - entries_.begin());
  return found->lkey;
}

}  // namespace lamina::transport
