// SPDX-License-Identifier: Apache-2.0
#include "planner/scheduler_options.h"

#include <algorithm>
#include <vector>

#include "common/attention_descriptor.h"
#include "coordinator/core/sequence_kv.h"
#include "cost/layer_windows.h"

namespace lamina::planner {
namespace {

// Whether tokens of prompts may be rows.
bool ServesPromptRows(const ClusterConfig& config) {
  const auto on_processor = [](const auto& node) { return node.device == "cpu"; };
  return config.attention.Named().decode == config.attention.Named().prefill &&
         std::all_of(config.memory.begin(), config.memory.end(), on_processor) &&
         std::all_of(config.compute.begin(), config.compute.end(), on_processor);
}

cost::LayerWindows WindowsOf(const cost::ModelShape& shape) {
  std::vector<AttentionDescriptor> layers(shape.layers);
  for (uint32_t i = 0; i < std::min(shape.window_layers, shape.layers); ++i) {
    layers[i].window = shape.window;
  }
  return cost::LayerWindows(layers);
}

}  // namespace

core::SchedulerOptions SchedulerOptionsOf(const ClusterConfig& config,
                                          const cost::ModelShape& shape) {
  core::SchedulerOptions options;
  options.lanes = config.pipeline.mode == PipelineMode::kSequential ? 1 : config.pipeline.lanes;
  options.lanes_auto = config.pipeline.lanes_auto && config.policy != kPolicyLocal;
  options.sub_batches = {.chunks = config.pipeline.chunks,
                         .automatic = config.pipeline.chunks_auto,
                         .query_first = config.pipeline.query_first};
  options.running_max = config.limits.running_max;
  options.rows_max = (options.running_max + options.lanes - 1) / options.lanes;
  options.step_tokens_max = std::max(config.prefill.chunk_tokens, 2 * options.rows_max);
  options.chunk_tokens = config.prefill.chunk_tokens;
  options.windows = WindowsOf(shape);
  options.sequence_tokens_max = config.limits.sequence_tokens_max;
  if (shape.positions_max > 0) {
    options.sequence_tokens_max = std::min(options.sequence_tokens_max, shape.positions_max);
  }
  options.waiting_max = config.limits.waiting_max;
  const bool with_decode = config.prefill.mode == PrefillMode::kInline;
  const bool prompt_rows =
      ServesPromptRows(config) && (with_decode || config.prefix_cache == PrefixCacheMode::kAuto);
  const bool bounded = prompt_rows && with_decode;
  const uint32_t scratch =
      bounded ? std::min(options.sequence_tokens_max, config.prefill.scratch_tokens)
              : options.sequence_tokens_max;
  options.scratch_tokens = std::max(scratch, options.step_tokens_max);
  options.prompt_rows_max = prompt_rows ? config.prefill.chunk_tokens : 0;
  options.prefix_cache = config.prefix_cache == PrefixCacheMode::kAuto && prompt_rows;
  if (config.partition == Partition::kTokenRange) {
    options.span_tokens = core::SpanTokensFor(options.sequence_tokens_max);
    options.prompt_rows_max = 0;  // A row there takes a partial for each span.
  }
  return options;
}

}  // namespace lamina::planner
