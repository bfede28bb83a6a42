// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_load.h"

#include <algorithm>

#include "common/status_macros.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels {
namespace {

absl::StatusOr<std::shared_ptr<std::byte>> OfTheHost(size_t bytes) {
  const auto owner = std::make_shared<std::vector<std::byte>>(bytes);
  return std::shared_ptr<std::byte>(owner, owner->data());
}

// Layers that are attended equally fast.
bool SameKind(const AttentionDescriptor& a, const AttentionDescriptor& b) {
  return a.query_heads == b.query_heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.window == b.window && a.soft_cap == b.soft_cap && a.sinks.size() == b.sinks.size();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionLoad>> AttentionLoad::Create(
    const AttentionLoadOptions& options, const KvDeviceMaker& make, const Allocate& allocate) {
  std::unique_ptr<AttentionLoad> load(new AttentionLoad(options));
  LAMINA_ASSIGN_OR_RETURN(load->device_, make({.layers = load->layers_,
                                               .arithmetic = options.arithmetic,
                                               .slots = kSequences * load->tokens_,
                                               .context_tokens_max = load->tokens_,
                                               .items_max = kSequences}));
  LAMINA_RETURN_IF_ERROR(load->device_->Begin());
  LAMINA_RETURN_IF_ERROR(load->MakeItems(allocate ? allocate : OfTheHost));
  return load;
}

AttentionLoad::AttentionLoad(const AttentionLoadOptions& options) {
  for (const AttentionDescriptor& layer : options.layers) {
    const auto same = std::find_if(layers_.begin(), layers_.end(), [&](const auto& other) {
      return options.share_kinds && SameKind(other, layer);
    });
    const bool is_new = same == layers_.end();
    turns_.push_back(static_cast<uint32_t>(same - layers_.begin()));
    if (is_new) {
      layers_.push_back(layer);
    }
  }
  uint64_t slot_bytes = 0;
  for (const AttentionDescriptor& layer : layers_) {
    slot_bytes += 2 * uint64_t{layer.kv_width()} * sizeof(BFloat16);
  }
  const uint64_t fit = options.kv_bytes / (slot_bytes * kSequences);
  tokens_ = static_cast<uint32_t>(std::max<uint64_t>(1, fit / kTileSlots)) *
            static_cast<uint32_t>(kTileSlots);
}

absl::Status AttentionLoad::MakeItems(const Allocate& allocate) {
  size_t width = 0;
  for (const AttentionDescriptor& layer : layers_) {
    width = std::max<size_t>(width, layer.q_width());
  }
  LAMINA_ASSIGN_OR_RETURN(queries_, allocate(kSequences * width * sizeof(BFloat16)));
  LAMINA_ASSIGN_OR_RETURN(outputs_, allocate(kSequences * width * sizeof(BFloat16)));
  for (uint32_t i = 0; i < kSequences; ++i) {
    extents_[i] = {.first_slot = i * tokens_, .tokens = tokens_};
    items_.push_back({.extents = {&extents_[i], 1},
                      .first_position = tokens_ - 1,
                      .q = reinterpret_cast<const BFloat16*>(queries_.get()) + i * width,
                      .q_stride = width,
                      .out = reinterpret_cast<BFloat16*>(outputs_.get()) + i * width,
                      .out_stride = width});
  }
  return absl::OkStatus();
}

// Returns how many bytes of K and V that reads.
absl::StatusOr<uint64_t> AttentionLoad::Attend() {
  const uint32_t layer = turns_[next_++ % turns_.size()];
  LAMINA_RETURN_IF_ERROR(device_->Attend(layer, AllHeads(layers_[layer]), items_));
  const uint64_t seen =
      layers_[layer].window == 0 ? tokens_ : std::min<uint64_t>(tokens_, layers_[layer].window);
  return kSequences * seen * 2 * layers_[layer].kv_width() * sizeof(BFloat16);
}

absl::StatusOr<double> AttentionLoad::AttendTimed() {
  uint64_t bytes = 0;
  LAMINA_ASSIGN_OR_RETURN(const double seconds, device_->SecondsOf([&]() -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(bytes, Attend());
    return absl::OkStatus();
  }));
  return static_cast<double>(bytes) / std::max(1e-9, seconds);  // A clock may be too coarse.
}

absl::StatusOr<double> AttentionLoad::Rate(absl::FunctionRef<bool()> done) {
  LAMINA_RETURN_IF_ERROR(Attend().status());  // Wakes threads, and loads kernels.
  std::vector<double> rates;
  do {
    LAMINA_ASSIGN_OR_RETURN(const double rate, AttendTimed());
    rates.push_back(rate);
  } while (!done());
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

}  // namespace lamina::kernels
