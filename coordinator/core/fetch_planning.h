// SPDX-License-Identifier: Apache-2.0
//
// FetchPlanning: which of a step's tokens come to the compute node as K and V, and which are
// computed again, from activations that come or that it has, or from token numbers. A strategy, one
// for each policy that fetches, or for that of several which has something to choose; the
// arithmetic is in policy/.
//
// Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cost/layer_seconds.h"
#include "plan/attention_paths.h"
#include "plan/fetch_pieces.h"

namespace lamina::core {

// What nodes have measured. Zeros: nothing yet.
struct FetchRates {
  double bytes_per_second = 0;         // Over all links from memory nodes together.
  double recompute_seconds = 0;        // Time to make K and V of a token in one layer,
  double recompute_fixed_seconds = 0;  // and what a layer takes in addition.
  double attend_seconds = 0;           // Time to attend to one; 0: not measured.
  // Over the links for the weights of a layer that come, on average over layers; 0: they stay, or
  // come another way.
  double weights_seconds = 0;
  cost::UnitTimes slice;  // A lane's slice over its rows, without attention. Zeros: not measured.
  // The epoch makes K and V again from token numbers, and not from activations.
  bool from_tokens = false;
  bool measured() const { return bytes_per_second > 0 && recompute_seconds > 0; }
};

struct FetchShare {
  uint32_t recomputed = 0;  // StepPlan::recomputed
  std::string why;          // For people; empty where nothing was to be chosen.
};

// A step with rows.
struct FetchStep {
  plan::AttentionPath path = plan::AttentionPath::kRemote;  // Their path.
  uint64_t tokens = 0;                                      // What they see together,
  uint64_t resident = 0;  // of which so many have their activations on the compute node.
  uint32_t lanes = 1;     // Lanes of the path that have rows, this one among them.
  uint32_t rows = 0;
  // Whose tokens they are, each with about as many; 0: any number of tokens can be recomputed.
  uint32_t sequences = 0;
  uint64_t contexts = 0;  // Tokens before its runs of rows, what windows hide too.
};

class FetchPlanning {
 public:
  virtual ~FetchPlanning() = default;
  virtual FetchShare Plan(const FetchStep& step, const FetchRates& rates) const = 0;
};

// Plans to fetch K and V of all tokens.
std::unique_ptr<FetchPlanning> MakeFetchAll();
// As above; `why` says for people why it is so.
std::unique_ptr<FetchPlanning> MakeFetchAllBecause(const std::string& why);

// Bytes of one token in one layer, on average over layers.
struct RecomputeBytes {
  double kv = 0;
  double activation = 0;
  double room = 0;  // cost::RoomForNextLayer()
};

// Policy fetch_recompute by measured rates, for steps of path recompute; K and V alone while
// nothing is measured. What a lane's slice takes by its rows, and attention by its tokens, take the
// compute node too; nodes report the mean slice of a step, the tail among them. Sequences recompute
// whole tiles. One lane is split as several are where the next layer's activations come while K and
// V of one are made: windows have room for them, and no weights are on the link, which come between
// them in an order that nobody plans.
std::unique_ptr<FetchPlanning> MakeFetchRecompute(const RecomputeBytes& bytes);
// Policy fetch_sparse: the compute node chooses, and nothing is recomputed. `lossy` says how
// answers differ, `phases` what stays there and why nothing is recomputed, for people.
std::unique_ptr<FetchPlanning> MakeFetchSparse(const std::string& lossy, const std::string& phases);
// Policy fetch_heads with heads that stream, of which K and V of some tokens come. `lossy` as
// above.
std::unique_ptr<FetchPlanning> MakeFetchStreaming(const std::string& lossy);
// Steps of this path by `own`, those of the others by `others`.
std::unique_ptr<FetchPlanning> MakeFetchByPath(plan::AttentionPath path,
                                               std::unique_ptr<FetchPlanning> own,
                                               std::unique_ptr<FetchPlanning> others);
// Steps of epochs that make K and V again from token numbers by `tokens`, those of others by
// `others`.
std::unique_ptr<FetchPlanning> MakeFetchByEpoch(std::unique_ptr<FetchPlanning> tokens,
                                                std::unique_ptr<FetchPlanning> others);
// So many per cent of the tokens of such steps, whatever is measured.
std::unique_ptr<FetchPlanning> MakeFetchRecomputeShare(uint32_t percent);

struct TokenMaking {
  double kv_bytes = 0;               // A token's K and V in a layer, on average over layers.
  uint32_t tokens_max = 0;           // Tokens of a step of a lane.
  uint32_t tile = plan::kFetchTile;  // They come in whole tiles of so many.
  std::optional<uint32_t> percent;   // Whatever is measured. Nothing: by rates.
};
// Policy fetch_recompute from token numbers, for steps of path recompute: of no more tokens than
// there may be.
std::unique_ptr<FetchPlanning> MakeFetchTokens(const TokenMaking& making);

}  // namespace lamina::core
