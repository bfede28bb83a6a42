// SPDX-License-Identifier: Apache-2.0
//
// SpillForm: how K and V of so many tokens lie in a block of the spill tier, and the copies between
// such a block and slots of a device.
//
// bf16  for each layer and KV head of the node the K plane and the V plane of a KvView of so many
//       slots, one behind the other
// INT8  for each of them the arrays k, v, k_scales, v_scales of an Int8View of so many slots; of
//       closed blocks, since an open one is bf16, in a tail
//
// Threading: any thread, of slots that nobody else reads or writes meanwhile.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/extent.h"
#include "kernels/kv_device.h"
#include "memory_node/spill_pass.h"

namespace lamina::memory_node {

class SpillForm {
 public:
  virtual ~SpillForm() = default;

  // Bytes that a block takes, without what aligns it.
  virtual size_t block_bytes() const = 0;

  // Copies tokens [first, first + tokens) between their slots, which `extents` name as
  // kernels::LoadKv() has them, and the places of these numbers in the block, in one walk over it
  // from its first byte on. Errors: as KvDevice::Store().
  // Requires: `block` has block_bytes() at least.
  virtual absl::Status Load(absl::Span<const Extent> extents, uint32_t first, uint32_t tokens,
                            SpillPass& block) const = 0;
  virtual absl::Status Unload(SpillPass& block, absl::Span<const Extent> extents, uint32_t first,
                              uint32_t tokens) const = 0;
};

// The form in which the device keeps K and V of these layers, of plan::kSpillBlockTokens tokens. It
// must outlive the result, and so must the layers. Requires: it has reads() and writes().
std::unique_ptr<SpillForm> SpillFormOf(const std::vector<AttentionDescriptor>& layers,
                                       kernels::KvDevice& device);

// bf16 of plan::kSpillTailTokens tokens of an open block, in slots of a tail. Otherwise like
// SpillFormOf().
std::unique_ptr<SpillForm> SpillTailFormOf(const std::vector<AttentionDescriptor>& layers,
                                           kernels::KvDevice& device);

}  // namespace lamina::memory_node
