// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulation/launches.h"

#include <atomic>
#include <mutex>
#include <set>

namespace lamina::cuda_emulation {
namespace {

// Alike on all cards.
constexpr unsigned kGridYMax = 65535;
constexpr unsigned kBlockThreadsMax = 1024;

std::mutex card_mutex;
Card current_card;

struct Kernels {
  std::mutex mutex;
  std::set<const void*> loaded;
};

Kernels& All() {
  static auto* const kernels = new Kernels;  // Lives as long as the threads of any test.
  return *kernels;
}

std::atomic<bool> loads_fail{false};
std::atomic<uint64_t> launches{0};
std::atomic<uint64_t> copies{0};
std::atomic<uint64_t> dependent{0};

}  // namespace

OtherCard::OtherCard(const Card& card) {
  const std::lock_guard lock(card_mutex);
  current_card = card;
}

OtherCard::~OtherCard() {
  const std::lock_guard lock(card_mutex);
  current_card = {};
}

Card CurrentCard() {
  const std::lock_guard lock(card_mutex);
  return current_card;
}

void NoteLoaded(const void* kernel) {
  Kernels& kernels = All();
  const std::lock_guard lock(kernels.mutex);
  kernels.loaded.insert(kernel);
}

cudaError_t CheckLaunch(const void* kernel, const Dim3& grid, const Dim3& block,
                        size_t shared_bytes) {
  Kernels& kernels = All();
  {
    const std::lock_guard lock(kernels.mutex);
    if (!kernels.loaded.contains(kernel)) {
      return cudaErrorInvalidDeviceFunction;
    }
  }
  const bool empty = grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0;
  if (empty || grid.x > 0x7fffffffu || grid.y > kGridYMax || grid.z > kGridYMax ||
      block.x > kBlockThreadsMax) {
    return cudaErrorInvalidConfiguration;
  }
  if (shared_bytes > CurrentCard().shared_bytes_max) {
    return cudaErrorInvalidValue;
  }
  ++launches;
  return cudaSuccess;
}

Given AllGiven() { return {.launches = launches.load(), .copies = copies.load()}; }
void NoteCopy() { ++copies; }

uint64_t DependentLaunches() { return dependent.load(); }
void NoteDependent() { ++dependent; }

void FailLoads(bool fail) { loads_fail.store(fail); }
bool LoadsFail() { return loads_fail.load(); }

}  // namespace lamina::cuda_emulation
