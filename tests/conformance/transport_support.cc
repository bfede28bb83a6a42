// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/transport_support.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "common/file_limit.h"
#include "gtest/gtest.h"

namespace lamina::transport {
namespace {

// From 1 to a million; `fallback` where the variable is not set.
uint64_t NumberFromEnvironment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    return fallback;
  }
  uint64_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number == 0 || number > 1'000'000) {
    ADD_FAILURE() << name << "=" << text << " is not a number from 1 to a million";
    return fallback;
  }
  return number;
}

}  // namespace

uint64_t Repeats(uint64_t full) {
  return std::max<uint64_t>(full / NumberFromEnvironment("LAMINA_CONFORMANCE_DIVISOR", 1), 1);
}

uint32_t ManyPeers() {
  RaiseFileLimit();  // All in one process, with a dozen files each over UCX.
  return static_cast<uint32_t>(NumberFromEnvironment("LAMINA_CONFORMANCE_PEERS", 64));
}

std::vector<std::byte> Pattern(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

absl::Status PutAll(Transport& sender, RemoteRegion& target, size_t offset,
                    absl::Span<const std::byte> source, const SignalUpdate* signal) {
  for (const Nanos deadline = Soon(); RealClock().Now() < deadline; sender.Progress()) {
    absl::Status status = sender.Put(target, offset, source, signal);
    if (!absl::IsResourceExhausted(status)) {
      return status;
    }
  }
  return absl::DeadlineExceededError("the queue stayed full");
}

}  // namespace lamina::transport
