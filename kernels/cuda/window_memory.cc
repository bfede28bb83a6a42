// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/window_memory.h"

#include <cuda_runtime_api.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/peer_mappings.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "kernels/cuda/cuda_status_internal.h"
#include "kernels/cuda/device.h"

namespace lamina::kernels::cuda {
namespace {

// What cudaMalloc gives whole, on a page of the host.
constexpr size_t kAllocationBytes = MiB(2);
constexpr size_t kPageBytes = KiB(4);

// cuMemGetHandleForAddressRange of the driver, which this program finds when it runs: it links the
// runtime alone. Since CUDA 11.7.
using ExportFunction = int (*)(void* handle, unsigned long long address, size_t bytes, int type,
                               unsigned long long flags);
constexpr char kExportName[] = "cuMemGetHandleForAddressRange";
constexpr unsigned kExportVersion = 11070;
constexpr int kDmabuf = 1;  // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

// Tells this process from others, also from those that had its number before.
struct ProcessMark {
  int64_t number = 0;
  uint64_t random = 0;

  friend bool operator==(const ProcessMark&, const ProcessMark&) = default;
};

uint64_t Random() {
  uint64_t random = 0;
  LAMINA_CHECK(getentropy(&random, sizeof random) == 0);
  return random;
}

ProcessMark ThisProcess() {
  static const uint64_t random = Random();
  return {.number = getpid(), .random = random};
}

// CUDA opens no handle in the process that made it, which uses the address; and it may give the
// next allocation the handle of one that was freed: `allocation` tells them apart, so that who
// still has the old one open does not take its mapping for the new one's.
struct IpcHandle {
  cudaIpcMemHandle_t memory = {};
  ProcessMark process;
  uint64_t allocation = 0;
  std::byte* base = nullptr;
};

absl::StatusOr<IpcHandle> ReadHandle(const PeerHandle& peer) {
  IpcHandle handle;
  if (peer.bytes.size() != sizeof handle) {
    return absl::UnavailableError("not a handle of CUDA's IPC");
  }
  std::memcpy(&handle, peer.bytes.data(), sizeof handle);
  return handle;
}

// All devices of this process share it: a handle is opened once for each.
PeerMappings& Peers() {
  static auto* const mappings = new PeerMappings;  // Lives as long as any thread.
  return *mappings;
}

class CudaWindowMemory final : public DeviceMemory {
 public:
  CudaWindowMemory(int index, Stream stream, ExportFunction exports, bool ordered, bool flushes,
                   std::string modules)
      : index_(index),
        name_(absl::StrCat("cuda:", index)),
        stream_(std::move(stream)),
        export_(exports),
        ordered_(ordered),
        flushes_(flushes),
        modules_(std::move(modules)) {}

  const std::string& name() const override { return name_; }
  DeviceAddresses addresses() const override { return DeviceAddresses::kCuda; }

  absl::StatusOr<absl::Span<std::byte>> Allocate(size_t bytes) override {
    LAMINA_RETURN_IF_ERROR(Select());
    const size_t whole = (bytes + kAllocationBytes - 1) / kAllocationBytes * kAllocationBytes;
    void* data = nullptr;
    LAMINA_RETURN_IF_ERROR(CudaToStatus(
        cudaMalloc(&data, whole), absl::StrCat(name_, ": cudaMalloc(", FormatBytes(whole), ")")));
    const absl::Span<std::byte> allocated(static_cast<std::byte*>(data), whole);
    absl::Status filled = FillAsync(data, 0, whole, stream_);
    filled.Update(stream_.Synchronize());
    if (!filled.ok()) {
      FreeWhole(allocated.data());
      return filled;
    }
    const std::lock_guard lock(mutex_);
    allocations_[allocated.data()] = Random();
    return allocated;
  }

  void Free(absl::Span<std::byte> allocated) override {
    {
      const std::lock_guard lock(mutex_);
      allocations_.erase(allocated.data());
    }
    FreeWhole(allocated.data());
  }

  absl::StatusOr<int> ExportDmabuf(absl::Span<const std::byte> pages) override {
    const auto address = reinterpret_cast<uintptr_t>(pages.data());
    if (address % kPageBytes != 0 || pages.size() % kPageBytes != 0) {
      return absl::UnimplementedError(absl::StrCat(name_, " exports whole pages"));
    }
    if (export_ == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("the driver of ", name_, " has no ", kExportName));
    }
    LAMINA_RETURN_IF_ERROR(Select());
    int file = -1;
    if (const int error = export_(&file, address, pages.size(), kDmabuf, 0); error != 0) {
      return absl::UnimplementedError(
          absl::StrCat(kExportName, " of ", name_, ": CUDA error ", error,
                       "; it wants NVIDIA's open kernel modules, and Linux 5.12"));
    }
    return file;
  }

  absl::Status CheckPeerAccess() override {
    std::error_code error;
    for (const char* module : {"/nvidia_peermem", "/nv_peer_mem"}) {
      if (std::filesystem::exists(modules_ + module, error)) {
        return absl::OkStatus();
      }
    }
    return absl::UnimplementedError("nvidia_peermem is not loaded (modprobe nvidia_peermem)");
  }

  absl::StatusOr<PeerHandle> ExportToPeers(absl::Span<const std::byte> bytes) override {
    const auto [base, allocation] = AllocationOf(bytes.data());
    LAMINA_RETURN_IF_ERROR(Select());
    IpcHandle handle = {.process = ThisProcess(), .allocation = allocation, .base = base};
    if (const absl::Status got =
            CudaToStatus(cudaIpcGetMemHandle(&handle.memory, base), "cudaIpcGetMemHandle");
        !got.ok()) {
      return absl::UnimplementedError(absl::StrCat(name_, ": ", got.message()));
    }
    return PeerHandle{.bytes = std::string(reinterpret_cast<const char*>(&handle), sizeof handle),
                      .offset = static_cast<uint64_t>(bytes.data() - base)};
  }

  absl::StatusOr<std::byte*> OpenPeer(const PeerHandle& peer) override {
    LAMINA_ASSIGN_OR_RETURN(const IpcHandle handle, ReadHandle(peer));
    if (handle.process == ThisProcess()) {
      return handle.base + peer.offset;
    }
    LAMINA_RETURN_IF_ERROR(Select());
    const auto open = [&]() -> absl::StatusOr<std::byte*> {
      void* data = nullptr;
      const absl::Status opened =
          CudaToStatus(cudaIpcOpenMemHandle(&data, handle.memory, cudaIpcMemLazyEnablePeerAccess),
                       "cudaIpcOpenMemHandle");
      if (!opened.ok()) {
        return absl::UnavailableError(absl::StrCat(name_, ": ", opened.message()));
      }
      return static_cast<std::byte*>(data);
    };
    LAMINA_ASSIGN_OR_RETURN(std::byte* const base, Peers().Open(KeyOf(peer), open));
    return base + peer.offset;
  }

  void ClosePeer(const PeerHandle& peer) override {
    if (ReadHandle(peer)->process == ThisProcess()) {
      return;
    }
    Peers().Close(KeyOf(peer), [&](std::byte* data) {
      absl::Status closed = Select();
      closed.Update(CudaToStatus(cudaIpcCloseMemHandle(data), "cudaIpcCloseMemHandle"));
      if (!closed.ok()) {
        LogWarning(name_, ": ", closed.message());
      }
    });
  }

  absl::Status CopyIn(std::byte* device, const std::byte* host, size_t bytes) override {
    return Copy(device, host, bytes);
  }
  absl::Status CopyOut(std::byte* host, const std::byte* device, size_t bytes) override {
    return Copy(host, device, bytes);
  }
  absl::Status CopyAcross(std::byte* to, const std::byte* from, size_t bytes) override {
    return Copy(to, from, bytes);
  }

  bool OrdersPeerWrites() const override { return ordered_; }
  absl::Status FlushPeerWrites() override {
    if (ordered_) {
      return absl::OkStatus();
    }
    if (!flushes_) {
      return absl::UnimplementedError(
          absl::StrCat(name_, " neither orders the writes of other devices nor flushes them"));
    }
    LAMINA_RETURN_IF_ERROR(Select());
    return CudaToStatus(
        cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                           cudaFlushGPUDirectRDMAWritesToOwner),
        "cudaDeviceFlushGPUDirectRDMAWrites");
  }

 private:
  // Where the one begins that holds `place`, and its number.
  std::pair<std::byte*, uint64_t> AllocationOf(const std::byte* place) const {
    const std::lock_guard lock(mutex_);
    const auto next = allocations_.upper_bound(const_cast<std::byte*>(place));
    LAMINA_CHECK(next != allocations_.begin());
    return *std::prev(next);
  }

  std::string KeyOf(const PeerHandle& peer) const { return absl::StrCat(index_, " ", peer.bytes); }

  void FreeWhole(std::byte* data) const {
    absl::Status freed = Select();
    freed.Update(CudaToStatus(cudaFree(data), "cudaFree"));
    if (!freed.ok()) {
      LogWarning(name_, ": ", freed.message());
    }
  }

  // The calling thread may have had another.
  absl::Status Select() const { return CudaToStatus(cudaSetDevice(index_), "cudaSetDevice"); }

  absl::Status Copy(void* to, const void* from, size_t bytes) const {
    LAMINA_RETURN_IF_ERROR(Select());
    LAMINA_RETURN_IF_ERROR(CopyAsync(to, from, bytes, stream_));
    return stream_.Synchronize();
  }

  const int index_;
  const std::string name_;
  const Stream stream_;
  const ExportFunction export_;  // Null where the driver lacks it.
  const bool ordered_;
  const bool flushes_;
  const std::string modules_;
  mutable std::mutex mutex_;                    // Not for the data path.
  std::map<std::byte*, uint64_t> allocations_;  // A random number of each.
};

absl::StatusOr<int> AttributeOf(int index, cudaDeviceAttr attribute) {
  int value = 0;
  LAMINA_RETURN_IF_ERROR(
      CudaToStatus(cudaDeviceGetAttribute(&value, attribute, index), "cudaDeviceGetAttribute"));
  return value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenWindowMemory(int index,
                                                               const std::string& modules) {
  LAMINA_RETURN_IF_ERROR(OpenDevice(index).status());
  LAMINA_ASSIGN_OR_RETURN(const int ordering,
                          AttributeOf(index, cudaDevAttrGPUDirectRDMAWritesOrdering));
  LAMINA_ASSIGN_OR_RETURN(const int flush,
                          AttributeOf(index, cudaDevAttrGPUDirectRDMAFlushWritesOptions));
  LAMINA_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t asked = cudaGetDriverEntryPointByVersion(kExportName, &function, kExportVersion,
                                                             cudaEnableDefault, &found);
  if (asked != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    function = nullptr;
  }
  return std::make_unique<CudaWindowMemory>(
      index, std::move(stream), reinterpret_cast<ExportFunction>(function),
      ordering >= cudaGPUDirectRDMAWritesOrderingOwner,
      (flush & cudaFlushGPUDirectRDMAWritesOptionHost) != 0, modules);
}

}  // namespace lamina::kernels::cuda
