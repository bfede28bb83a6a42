// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "kernels/cuda/cuda_status_internal.h"
#include "kernels/cuda/dependent_launches.h"
#include "kernels/cuda/load_kernels.h"

namespace lamina::kernels::cuda {
namespace {

constexpr uint64_t kAlignment = 256;

cudaStream_t HandleOf(const Stream& stream) { return static_cast<cudaStream_t>(stream.get()); }

// For destructors, which can only say it.
void LogFailure(cudaError_t error, absl::string_view call) {
  const absl::Status status = CudaToStatus(error, call);
  if (!status.ok()) {
    LogWarning(status.message());
  }
}

absl::StatusOr<int> Attribute(cudaDeviceAttr attribute, int index) {
  int value = 0;
  LAMINA_RETURN_IF_ERROR(
      CudaToStatus(cudaDeviceGetAttribute(&value, attribute, index), "cudaDeviceGetAttribute"));
  return value;
}

}  // namespace

absl::StatusOr<DeviceInfo> OpenDevice(int index) {
  int count = 0;
  LAMINA_RETURN_IF_ERROR(CudaToStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  if (index < 0 || index >= count) {
    return absl::UnavailableError(
        absl::StrCat("cuda:", index, ": this host has ", count, " CUDA devices, counted from 0"));
  }
  LAMINA_RETURN_IF_ERROR(
      CudaToStatus(cudaSetDevice(index), absl::StrCat("cudaSetDevice(", index, ")")));
  cudaDeviceProp properties = {};
  LAMINA_RETURN_IF_ERROR(
      CudaToStatus(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
  DeviceInfo info = {.name = properties.name, .index = index};
  info.memory_bytes = properties.totalGlobalMem;
  LAMINA_ASSIGN_OR_RETURN(info.capability_major,
                          Attribute(cudaDevAttrComputeCapabilityMajor, index));
  LAMINA_ASSIGN_OR_RETURN(info.capability_minor,
                          Attribute(cudaDevAttrComputeCapabilityMinor, index));
  LAMINA_ASSIGN_OR_RETURN(info.multiprocessors, Attribute(cudaDevAttrMultiProcessorCount, index));
  LAMINA_ASSIGN_OR_RETURN(const int shared,
                          Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
  info.shared_bytes_max = static_cast<size_t>(shared);
  LAMINA_RETURN_IF_ERROR(LoadKernels(info));
  info.dependent_launches =
      info.capability_major >= kDependentCapabilityMajor && LoadedKernelsWait(index);
  NoteDevice(info);
  return info;
}

absl::StatusOr<Stream> Stream::Create() {
  cudaStream_t handle = nullptr;
  LAMINA_RETURN_IF_ERROR(CudaToStatus(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking),
                                      "cudaStreamCreateWithFlags"));
  Stream stream;
  stream.handle_ = handle;
  return stream;
}

Stream::Stream(Stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Stream::~Stream() {
  if (handle_ != nullptr) {
    LogFailure(cudaStreamDestroy(static_cast<cudaStream_t>(handle_)), "cudaStreamDestroy");
  }
}

absl::Status Stream::Synchronize() const {
  return CudaToStatus(cudaStreamSynchronize(HandleOf(*this)), "cudaStreamSynchronize");
}

absl::StatusOr<bool> Stream::IsDone() const {
  const cudaError_t error = cudaStreamQuery(HandleOf(*this));
  if (error == cudaErrorNotReady) {
    return false;
  }
  LAMINA_RETURN_IF_ERROR(CudaToStatus(error, "cudaStreamQuery"));
  return true;
}

absl::StatusOr<Event> Event::Create() {
  cudaEvent_t handle = nullptr;
  LAMINA_RETURN_IF_ERROR(CudaToStatus(cudaEventCreate(&handle), "cudaEventCreate"));
  Event event;
  event.handle_ = handle;
  return event;
}

Event::Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Event::~Event() {
  if (handle_ != nullptr) {
    LogFailure(cudaEventDestroy(static_cast<cudaEvent_t>(handle_)), "cudaEventDestroy");
  }
}

absl::Status Event::Record(const Stream& stream) const {
  return CudaToStatus(cudaEventRecord(static_cast<cudaEvent_t>(handle_), HandleOf(stream)),
                      "cudaEventRecord");
}

absl::Status Event::Synchronize() const {
  return CudaToStatus(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_)),
                      "cudaEventSynchronize");
}

absl::StatusOr<float> Event::MillisecondsSince(const Event& earlier) const {
  float milliseconds = 0;
  LAMINA_RETURN_IF_ERROR(
      CudaToStatus(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(earlier.handle_),
                                        static_cast<cudaEvent_t>(handle_)),
                   "cudaEventElapsedTime"));
  return milliseconds;
}

absl::StatusOr<double> SecondsOn(const Stream& stream, absl::FunctionRef<absl::Status()> work) {
  LAMINA_ASSIGN_OR_RETURN(const Event begin, Event::Create());
  LAMINA_ASSIGN_OR_RETURN(const Event end, Event::Create());
  LAMINA_RETURN_IF_ERROR(begin.Record(stream));
  LAMINA_RETURN_IF_ERROR(work());
  LAMINA_RETURN_IF_ERROR(end.Record(stream));
  LAMINA_RETURN_IF_ERROR(stream.Synchronize());
  LAMINA_ASSIGN_OR_RETURN(const float milliseconds, end.MillisecondsSince(begin));
  return 1e-3 * static_cast<double>(milliseconds);
}

absl::StatusOr<MemoryArena> MemoryArena::Create(ArenaKind kind, uint64_t bytes) {
  MemoryArena arena;
  arena.kind_ = kind;
  void* data = nullptr;
  if (bytes != 0 && kind == ArenaKind::kDevice) {
    LAMINA_RETURN_IF_ERROR(CudaToStatus(cudaMalloc(&data, bytes),
                                        absl::StrCat("cudaMalloc(", FormatBytes(bytes), ")")));
  } else if (bytes != 0) {
    LAMINA_RETURN_IF_ERROR(
        CudaToStatus(cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
                     absl::StrCat("cudaHostAlloc(", FormatBytes(bytes), ")")));
  }
  arena.data_ = static_cast<std::byte*>(data);
  arena.bytes_ = bytes;
  return arena;
}

MemoryArena::MemoryArena(MemoryArena&& other) noexcept { *this = std::move(other); }

MemoryArena& MemoryArena::operator=(MemoryArena&& other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(used_, other.used_);
  return *this;
}

MemoryArena::~MemoryArena() {
  if (data_ == nullptr) {
    return;
  }
  if (kind_ == ArenaKind::kDevice) {
    LogFailure(cudaFree(data_), "cudaFree");
  } else {
    LogFailure(cudaFreeHost(data_), "cudaFreeHost");
  }
}

absl::StatusOr<void*> MemoryArena::TakeBytes(uint64_t count, uint64_t element_bytes) {
  const uint64_t left = bytes_ - used_;
  if (count > left / element_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kind_ == ArenaKind::kDevice ? "device" : "pinned host", " arena of ",
                     FormatBytes(bytes_), ": ", count, " elements of ", element_bytes,
                     " bytes wanted, ", FormatBytes(left), " left"));
  }
  void* place = data_ + used_;
  const uint64_t taken = count * element_bytes;
  used_ = used_ + (taken + kAlignment - 1) / kAlignment * kAlignment;
  used_ = used_ < bytes_ ? used_ : bytes_;
  return place;
}

absl::Status CopyAsync(void* to, const void* from, size_t bytes, const Stream& stream) {
  if (bytes == 0) {
    return absl::OkStatus();
  }
  return CudaToStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, HandleOf(stream)),
                      absl::StrCat("cudaMemcpyAsync(", bytes, " bytes)"));
}

absl::Status CopyRowsAsync(void* to, const void* from, const CopyShape& shape,
                           const Stream& stream) {
  const bool packed = shape.to_stride == shape.row_bytes && shape.from_stride == shape.row_bytes;
  if (shape.rows == 1 || packed || shape.row_bytes == 0) {
    return CopyAsync(to, from, shape.rows * shape.row_bytes, stream);
  }
  if (shape.rows == 0) {
    return absl::OkStatus();
  }
  return CudaToStatus(
      cudaMemcpy2DAsync(to, shape.to_stride, from, shape.from_stride, shape.row_bytes, shape.rows,
                        cudaMemcpyDefault, HandleOf(stream)),
      absl::StrCat("cudaMemcpy2DAsync(", shape.rows, " x ", shape.row_bytes, " bytes)"));
}

absl::Status FillAsync(void* to, uint8_t byte, size_t bytes, const Stream& stream) {
  if (bytes == 0) {
    return absl::OkStatus();
  }
  return CudaToStatus(cudaMemsetAsync(to, byte, bytes, HandleOf(stream)),
                      absl::StrCat("cudaMemsetAsync(", bytes, " bytes)"));
}

}  // namespace lamina::kernels::cuda
