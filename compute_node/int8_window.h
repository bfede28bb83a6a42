// SPDX-License-Identifier: Apache-2.0
//
// Int8Window: a piece of K and V as INT8 that lies in a window (plan/fetch_pieces.h), as the device
// of one layer that Int8Runs attends over. The rows' own K and V are stored into the slots that the
// piece leaves for them.
//
// Threading: the data thread. Allocation: in the constructor.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/thread_pool.h"
#include "compute_node/int8_piece.h"
#include "kernels/attention.h"
#include "kernels/int8_kv.h"
#include "kernels/kv_device.h"
#include "plan/fetch_pieces.h"

namespace lamina::compute_node {

class Int8Window final : public kernels::KvDevice, public kernels::KvInt8 {
 public:
  // Attends what `kernel` attends of bf16 (kernels::Int8KernelOf()), which outlives this as
  // `pool` does. `widest`: of all layers the one with the widest queries.
  Int8Window(const AttentionDescriptor& widest, uint32_t context_tokens_max,
             const kernels::AttentionKernel& kernel, ThreadPool& pool);

  // The piece that calls are about from now on, of the attention `part`: its heads alone. `data`
  // is behind the window's header.
  void SetPiece(const AttentionDescriptor& part, const plan::FetchPiece& piece, std::byte* data);

  absl::Status Store(uint32_t layer, HeadRange heads,
                     absl::Span<const kernels::KvRows> rows) override;
  absl::Status Attend(uint32_t layer, HeadRange heads,
                      absl::Span<const kernels::AttentionItem> items) override;
  // A block for which the piece has no slots is no row's to read, and is passed over.
  absl::Status Close(uint32_t layer, HeadRange heads,
                     absl::Span<const kernels::Int8Block> blocks) override;

  const std::string& name() const override { return name_; }
  uint32_t slots() const override { return static_cast<uint32_t>(piece_.int8.slots); }
  uint64_t bytes() const override { return piece_.bytes; }
  uint32_t query_tokens_max() const override { return kInt8BlockTokens; }
  bool usable() const override { return true; }
  absl::Status Begin() override { return absl::OkStatus(); }
  kernels::KvDeviceRows* device_rows() override { return nullptr; }
  kernels::KvInt8* int8() override { return this; }
  kernels::KvStepAttention* step_attention() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> MakeChannel(
      const kernels::ChannelOptions&) override {
    return std::unique_ptr<kernels::WindowChannel>();
  }

 private:
  const kernels::AttentionKernel& kernel_;
  ThreadPool& pool_;
  const std::string name_;
  std::unique_ptr<kernels::AttentionScratch> scratch_;
  AttentionDescriptor part_;
  Int8Piece piece_;
};

}  // namespace lamina::compute_node
