// SPDX-License-Identifier: Apache-2.0
//
// The least that UCX needs for put and signal: two puts with a fence between, by UCP alone, and a
// word that is looked at while the worker is driven. What ucx:// is held against.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/types/span.h"

namespace lamina::bench {

// Gives this end's bytes to the other end and returns that one's.
using ExchangeFn = std::function<std::string(const std::string& own)>;

// One end of a link between two processes.
class UcpPeer {
 public:
  // Whether this build has UCX.
  static bool IsBuilt();

  // `transports` as UCX_TLS wants them; empty: UCX's choice. Requires: IsBuilt().
  static std::unique_ptr<UcpPeer> Make(const std::string& transports, size_t bytes_max,
                                       const ExchangeFn& exchange);
  virtual ~UcpPeer() = default;

  // Puts `bytes` of its own, then after a fence the next value of the peer's word.
  virtual void PutFencePut(size_t bytes) = 0;
  // Until the own word shows the next value.
  virtual void Await() = 0;
};

}  // namespace lamina::bench
