// SPDX-License-Identifier: Apache-2.0
//
// ChosenTokens: the form in which K and V of chosen tokens leave a memory node, bf16 or INT8. Of
// each lane there is one; it finds where the tokens of a layer lie and puts them, a turn at a time.
//
// Threading: the data thread. Allocation: when a layer's runs are cut more often than any before.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/kv_form.h"
#include "kernels/kv_device.h"
#include "memory_node/lane.h"
#include "memory_node/node_epoch.h"
#include "memory_node/piece_stream.h"
#include "plan/fetch_pieces.h"

namespace lamina::memory_node {

class ChosenTokens {
 public:
  virtual ~ChosenTokens() = default;

  // A step of these runs begins; their own rows have not come yet.
  virtual void Begin(absl::Span<const FetchedRun> fetched) = 0;

  // Their rows are stored in a layer next, of which not all has been sent. Errors: the device's.
  virtual absl::Status KeepTails(uint32_t layer) = 0;

  // Whether rows of the run may attend to `set`, and to those that the compute node has, as the
  // word `kept` says (plan/token_sets.h). `of` names it in errors: kInternal, of a set that this
  // form does not send.
  virtual absl::Status Check(const plan::FetchRun& run, absl::Span<const uint64_t> set,
                             uint64_t kept, const std::string& of) const = 0;

  // A layer begins, of as many runs as the step has; each is added in order, with its set, as
  // Check() has found it. Returns the run as if the chosen tokens were all before it.
  virtual void BeginLayer() = 0;
  virtual plan::FetchRun AddRun(const FetchedRun& fetched, absl::Span<const uint64_t> set,
                                uint64_t kept) = 0;

  // One turn of the piece at hand. Errors: the transport's.
  virtual absl::Status Put(PieceStream& pieces, Lane& lane) = 0;
};

// References must outlive it. `form`: that of the slots.
std::unique_ptr<ChosenTokens> MakeChosenTokens(const NodeEpoch& epoch, kernels::KvReads& kv,
                                               KvForm form);

}  // namespace lamina::memory_node
