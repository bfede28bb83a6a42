// SPDX-License-Identifier: Apache-2.0
#include "compute_node/fetch_path_maker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "compute_node/fetch_attention.h"
#include "compute_node/token_attention.h"

namespace lamina::compute_node {

absl::Status FetchPathMaker::Reserve(const plan::EpochConfig& config, const plan::Stage& stage) {
  if (!device_.is_host() || config.attention.decode != AttentionArithmetic::kCanonical) {
    return absl::UnimplementedError(
        absl::StrCat("a policy that fetches K and V with compute on ", device_.name(),
                     " is not served by this version; it serves processors with attention exact"));
  }
  if (MakesFromTokens(config) && config.attention.prefill != config.attention.decode) {
    return absl::UnimplementedError(
        "fetch.recompute: tokens is not served by this version with an attention of prompts of its "
        "own, for K and V would not be those that are stored; set attention to canonical");
  }
  windows_bytes_ = config.fetch_bytes;
  made_tokens_ = MakesFromTokens(config) ? config.made_tokens_max : 0;
  LAMINA_RETURN_IF_ERROR(ReserveResident(config));
  return scratch_.Reserve(config, stage, config.KvFormOf(kind()));
}

absl::Status FetchPathMaker::ReserveResident(const plan::EpochConfig& config) {
  const bool made_here = kind_ == plan::AttentionPath::kRecompute ||
                         (kind_ == plan::AttentionPath::kHybrid && config.activation_share > 0);
  const uint32_t places = made_here ? config.resident_tokens : 0;
  const auto layers = static_cast<uint32_t>(config.layers.size());
  if (resident_.has_value() && resident_->slots() == places && resident_layers_ == layers &&
      resident_width_ == config.activation_width) {
    return absl::OkStatus();
  }
  resident_.reset();
  if (places > 0) {
    auto resident = kernels::ActivationArena::Create(layers, places, config.activation_width);
    if (!resident.ok()) {
      return ErrorOfResident(resident.status());
    }
    resident_ = *std::move(resident);
    resident_layers_ = layers;
    resident_width_ = config.activation_width;
  }
  return absl::OkStatus();
}

std::string FetchPathMaker::Describe() const {
  const std::string resident = resident_.has_value()
                                   ? absl::StrCat(" resident ", FormatBytes(resident_bytes()), " (",
                                                  resident_->slots(), " activations)")
                                   : "";
  return absl::StrCat("scratch ", FormatBytes(scratch_.bytes()), resident, " windows for K and V ",
                      FormatBytes(windows_bytes_),
                      made_tokens_ > 0 ? absl::StrCat(", made from numbers for up to ",
                                                      made_tokens_, " tokens of a lane's step,")
                                       : "",
                      " attention ", kernel_.name());
}

std::unique_ptr<AttentionPath> FetchPathMaker::Make(const WorkerContext& context) {
  if (MakesFromTokens(context.config)) {
    return std::make_unique<TokenAttention>(context, scratch_.Make(context), kernel_);
  }
  return std::make_unique<FetchAttention>(context, kind_, scratch_.Make(context), kernel_,
                                          resident_.has_value() ? &*resident_ : nullptr);
}

}  // namespace lamina::compute_node
