// SPDX-License-Identifier: Apache-2.0
//
// RegisteredMemory: host memory that the driver did not allocate, a window that a peer shares for
// one, made readable and writable for devices while this lives.
//
// Its pages are locked meanwhile. Kernels use it by the addresses that OnDevice() gives, copies by
// these or the host's.
//
// Ownership: the memory stays the caller's, and mapped until this is gone.
// Threading: Create() and the destructor by threads whose device is set (OpenDevice()).

#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/check.h"

namespace lamina::kernels::cuda {

class RegisteredMemory {
 public:
  // Registers whole pages, for all devices. Not on the data path: it takes a system call or more
  // for each page.
  // Errors: kInvalidArgument   no pages, or pages that are not whole.
  //         kInternal and others, with the CUDA error's name: memory that the driver does not
  //         lock, or that is registered already. The memory can be used as before.
  static absl::StatusOr<RegisteredMemory> Create(absl::Span<std::byte> pages);

  RegisteredMemory(RegisteredMemory&& other) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  ~RegisteredMemory();

  bool Holds(const void* host) const {
    const auto* const address = static_cast<const std::byte*>(host);
    return address >= pages_.data() && address < pages_.data() + pages_.size();
  }

  // What kernels call an address of these pages. Requires: it is inside.
  template <typename T>
  T* OnDevice(T* host) const {
    LAMINA_CHECK(Holds(host));
    return reinterpret_cast<T*>(device_ +
                                (reinterpret_cast<const std::byte*>(host) - pages_.data()));
  }

 private:
  RegisteredMemory() = default;

  absl::Span<std::byte> pages_;  // Empty: none.
  std::byte* device_ = nullptr;
};

}  // namespace lamina::kernels::cuda
