// SPDX-License-Identifier: Apache-2.0
//
// SubBatch: some rows of a lane that a memory node serves at once.
//
// Threading: the data thread.

#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "memory_node/lane.h"
#include "plan/query_window.h"
#include "plan/reply_window.h"

namespace lamina::memory_node {

// Some rows of a lane that are here, with some heads: where they lie in the query window, and where
// their outputs go.
struct SubBatch {
  uint64_t value;  // Announces it, and its outputs.
  uint32_t layer;
  absl::Span<const Row> rows;
  HeadRange heads;      // The heads that are here.
  HeadRange all_heads;  // The unit's heads: prompts come with these.
  bool first;
  bool last;
  bool query_first;  // Their queries came first and stand together.
  bool on_device;    // Outputs go to the device's memory.
  plan::QueryWindowReader queries;
  plan::QueryChunk in;
  plan::ReplyWindowWriter outputs;
  plan::ReplyChunk out;
  float* closed_partials;  // Room for those of ReserveCuts().
};

}  // namespace lamina::memory_node
