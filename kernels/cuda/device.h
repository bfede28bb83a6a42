// SPDX-License-Identifier: Apache-2.0
//
// A CUDA device as the other files of kernels/cuda use it: facts, streams, memory.
//
// Memory is reserved once, at start, in arenas that hand it out piece by piece and never take it
// back: nothing here allocates while serving.
//
// Threading: an arena and a stream belong to one thread at a time. The device is a property of the
//            thread: OpenDevice() in every thread that uses it.
// Errors:    every message ends in the CUDA error's name and text.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lamina::kernels::cuda {

struct DeviceInfo {
  std::string name;
  int index = 0;
  int capability_major = 0;
  int capability_minor = 0;
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
  size_t shared_bytes_max = 0;  // Dynamic shared memory of one thread block, after opting in.
  // It and the kernels that were loaded for it have them (dependent_launches.h).
  bool dependent_launches = false;
};

// Makes device `index` this thread's device, and loads the kernels if this is the process's first
// time (load_kernels.h).
// Errors: kUnavailable    no driver, no device, or fewer devices; says how many there are.
//         kUnimplemented  a device of a kind that the kernels were not built for.
absl::StatusOr<DeviceInfo> OpenDevice(int index);

// An ordered queue of work. Move-only; destroying it waits for nothing.
class Stream {
 public:
  static absl::StatusOr<Stream> Create();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  // Waits for everything on the stream. Errors: that of the first kernel that failed.
  absl::Status Synchronize() const;

  // Whether everything on the stream is done; never waits. Errors: as Synchronize().
  absl::StatusOr<bool> IsDone() const;

  void* get() const { return handle_; }  // A cudaStream_t.

 private:
  Stream() = default;
  void* handle_ = nullptr;
};

// A point of a stream that the host can wait for. Until recorded, it has passed.
class Event {
 public:
  static absl::StatusOr<Event> Create();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  absl::Status Record(const Stream& stream) const;
  absl::Status Synchronize() const;
  // Milliseconds from `earlier` to this. Requires: both have passed.
  absl::StatusOr<float> MillisecondsSince(const Event& earlier) const;

 private:
  Event() = default;
  void* handle_ = nullptr;
};

// Seconds by the device's clock from the first to the last of what `work` gives the stream. Waits.
// Errors: those of `work`; the device's.
absl::StatusOr<double> SecondsOn(const Stream& stream, absl::FunctionRef<absl::Status()> work);

enum class ArenaKind : uint8_t {
  kDevice,      // The device's own memory. The host must not touch it.
  kPinnedHost,  // Host memory that the device can read, write and copy asynchronously.
};

// A fixed piece of memory, handed out from the front.
class MemoryArena {
 public:
  // Errors: kResourceExhausted  says how much was asked for and of which kind.
  static absl::StatusOr<MemoryArena> Create(ArenaKind kind, uint64_t bytes);
  MemoryArena(MemoryArena&& other) noexcept;
  MemoryArena& operator=(MemoryArena&& other) noexcept;
  MemoryArena(const MemoryArena&) = delete;
  MemoryArena& operator=(const MemoryArena&) = delete;
  ~MemoryArena();

  // `count` elements, 256-byte aligned, uninitialised; valid as long as the arena.
  // Errors: kResourceExhausted  says what was asked for and what is left. Nothing was taken.
  template <typename T>
  absl::StatusOr<T*> Take(uint64_t count) {
    const absl::StatusOr<void*> place = TakeBytes(count, sizeof(T));
    if (!place.ok()) {
      return place.status();
    }
    return static_cast<T*>(*place);
  }

  uint64_t bytes() const { return bytes_; }
  uint64_t bytes_left() const { return bytes_ - used_; }

 private:
  MemoryArena() = default;
  absl::StatusOr<void*> TakeBytes(uint64_t count, uint64_t element_bytes);

  ArenaKind kind_ = ArenaKind::kDevice;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t used_ = 0;
};

// Copies between any two places; asynchronous for device and pinned memory. The source must stay as
// it is until the stream has passed the copy.
absl::Status CopyAsync(void* to, const void* from, size_t bytes, const Stream& stream);

// Copies rows in one call. Strides in bytes, at least those of a row.
struct CopyShape {
  size_t row_bytes = 0;
  size_t rows = 0;
  size_t to_stride = 0;
  size_t from_stride = 0;
};
absl::Status CopyRowsAsync(void* to, const void* from, const CopyShape& shape,
                           const Stream& stream);

// Fills device memory with a byte.
absl::Status FillAsync(void* to, uint8_t byte, size_t bytes, const Stream& stream);

}  // namespace lamina::kernels::cuda
