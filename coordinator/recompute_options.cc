// SPDX-License-Identifier: Apache-2.0
#include "coordinator/recompute_options.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/kv_form.h"
#include "common/units.h"
#include "coordinator/core/fetch_planning.h"
#include "coordinator/recompute_bytes.h"
#include "plan/attention_paths.h"
#include "plan/fetch_pieces.h"

namespace lamina::coordinator {
namespace {

// What is made from token numbers comes in whole tiles, and of INT8 in whole blocks.
uint32_t TileOf(KvForm kv) { return kv == KvForm::kInt8 ? kInt8BlockTokens : plan::kFetchTile; }

// Bytes of K and V of a token in a layer, and how tokens are made, as splits weigh them.
core::TokenMaking MakingOf(const FetchOptions& fetch, const EngineOptions& options, KvForm kv) {
  return {.kv_bytes = static_cast<double>(KvSlotBytes(options.layers, kv)) /
                      static_cast<double>(options.layers.size()),
          .tokens_max = fetch.made_tokens_max,
          .tile = TileOf(kv)};
}

// Whether activations stay; by `auto` only where they take fewer bytes than K and V.
bool KeepsActivations(const ClusterConfig& config, const core::RecomputeBytes& bytes) {
  const bool by_number = !config.fetch.recompute_auto || !config.fetch.activation_auto;
  return config.KeepsActivations() && (bytes.activation < bytes.kv || by_number);
}

// Places for activations that stay, as many as there are bytes for and running sequences need.
void UseResident(const ClusterConfig& config, EngineOptions& options) {
  const core::SchedulerOptions& limits = options.scheduler;
  const uint64_t needed =
      uint64_t{limits.running_max} * plan::FetchRun::WholeTiles(limits.sequence_tokens_max);
  const uint64_t room =
      config.fetch.resident_bytes / ActivationBytesPerToken(options.fetch, options.layers.size());
  options.fetch.resident_tokens =
      static_cast<uint32_t>(std::min<uint64_t>({needed, room, UINT32_MAX}));
  options.scheduler.resident_tokens = options.fetch.resident_tokens;
}

// K and V of as many tokens have room in the bytes of activations, and none of these has to be
// made.
void KeepNoActivations(const core::RecomputeBytes& bytes, EngineOptions& options) {
  const std::string why = absl::StrFormat(
      "nothing recomputed, and nothing kept in fetch.resident: an activation has %.0f bytes in a "
      "layer, no less than K and V with %.0f, which policy fetch_heads keeps there",
      bytes.activation, bytes.kv);
  options.scheduler.strategies.fetch_planning = [why] {
    return core::MakeFetchByPath(plan::AttentionPath::kRecompute, core::MakeFetchAllBecause(why),
                                 core::MakeFetchAll());
  };
}

}  // namespace

void UseRecompute(const ClusterConfig& config, uint32_t width, EngineOptions& options) {
  options.fetch.activation_width = width;
  const core::RecomputeBytes bytes = RecomputeBytesOf(options.fetch, options);
  if (KeepsActivations(config, bytes)) {
    UseResident(config, options);
  } else if (config.KeepsActivations()) {
    return KeepNoActivations(bytes, options);
  }
  if (config.fetch.recompute_auto) {
    options.scheduler.strategies.fetch_planning = [bytes] {
      return core::MakeFetchRecompute(bytes);
    };
  } else {
    options.scheduler.strategies.fetch_planning = [percent = config.fetch.recompute_percent] {
      return core::MakeFetchRecomputeShare(percent);
    };
  }
}

void UseTokens(const ClusterConfig& config, EngineOptions& options) {
  options.fetch.made_tokens_max = config.fetch.recompute_tokens_max;
  core::TokenMaking making = MakingOf(options.fetch, options, config.kv);
  if (!config.fetch.recompute_auto) {
    making.percent = config.fetch.recompute_percent;
  }
  options.scheduler.strategies.fetch_planning = [making] { return core::MakeFetchTokens(making); };
}

void UsePlanningOfAuto(EngineOptions& options) {
  std::optional<core::RecomputeBytes> activations;
  std::optional<core::TokenMaking> tokens;
  for (const WeighedPolicy& policy : options.policy_auto->policies) {
    if (policy.fetch.made_tokens_max > 0) {
      tokens = MakingOf(policy.fetch, options, KvForm::kBF16);
    } else if (policy.fetch.activation_width > 0 && !policy.fetch.hybrid.has_value()) {
      activations = RecomputeBytesOf(policy.fetch, options);
    }
  }
  if (!activations.has_value() && !tokens.has_value()) {
    return;
  }
  options.scheduler.strategies.fetch_planning = [activations, tokens] {
    return core::MakeFetchByEpoch(
        tokens.has_value() ? core::MakeFetchTokens(*tokens) : core::MakeFetchAll(),
        activations.has_value() ? core::MakeFetchRecompute(*activations) : core::MakeFetchAll());
  };
}

void UseResidentOfHybrid(const ClusterConfig& config, EngineOptions& options) {
  if (KeepsActivations(config, RecomputeBytesOf(options.fetch, options))) {
    UseResident(config, options);
    options.scheduler.resident_path = plan::AttentionPath::kHybrid;
  } else {
    options.fetch.hybrid->keeps_nothing = config.KeepsActivations();
  }
}

absl::Status CheckActivationType(const ClusterConfig& config, const EngineOptions& options) {
  const std::optional<HybridOptions>& hybrid = options.fetch.hybrid;
  if (!hybrid.has_value() || !hybrid->automatic || config.compute[0].compute_type != "f32" ||
      ActivationBytesPerToken(options.fetch, options.layers.size()) >=
          KvBytesPerToken(options.layers)) {  // HybridShare holds none then.
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "compute.0.compute_type: f32 is not served by this version with policy fetch_hybrid, for "
      "recomputation cannot pay: activations of 4 bytes an element are no fewer bytes than K and "
      "V; set it to bf16, or fetch.activation_percent to 0, or policy to fetch_heads"));
}

absl::Status CheckResidentActivations(const ClusterConfig& config, const EngineOptions& options) {
  if (!KeepsActivations(config, RecomputeBytesOf(options.fetch, options)) ||
      options.scheduler.ResidentOfEach() > 0) {
    return absl::OkStatus();
  }
  const uint32_t sequences = options.scheduler.running_max;
  return absl::InvalidArgumentError(
      absl::StrCat("fetch.resident: ", FormatBytes(config.fetch.resident_bytes),
                   " has no room for activations of ", plan::kFetchTile, " tokens of each of ",
                   sequences, " sequences, which take ",
                   FormatBytes(uint64_t{plan::kFetchTile} * sequences *
                               ActivationBytesPerToken(options.fetch, options.layers.size())),
                   "; raise it, or lower limits.running_max"));
}

}  // namespace lamina::coordinator
