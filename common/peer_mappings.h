// SPDX-License-Identifier: Apache-2.0
//
// PeerMappings: counts the openings of memory that a process maps once, however many ask for it.
// Drivers differ in what a second opening of one handle does.
//
// Threading: any thread. Openings wait for each other.

#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace lamina {

class PeerMappings {
 public:
  // What `map` gave for `key`; it is asked where nobody holds it open.
  // Errors: those of `map`; then nothing is open.
  absl::StatusOr<std::byte*> Open(const std::string& key,
                                  absl::FunctionRef<absl::StatusOr<std::byte*>()> map);

  // Calls `unmap` behind the last one. Requires: opened and not closed as often.
  void Close(const std::string& key, absl::FunctionRef<void(std::byte*)> unmap);

  size_t size() const;

 private:
  struct Mapping {
    std::byte* data = nullptr;
    size_t users = 0;
  };

  mutable std::mutex mutex_;
  std::map<std::string, Mapping> mappings_;
};

}  // namespace lamina
