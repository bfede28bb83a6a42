// SPDX-License-Identifier: Apache-2.0
#include "control/epoch_codec_service.h"

#include <algorithm>

#include "control/plan_codec_service.h"

namespace lamina::control {

void ToProto(const plan::EpochConfig& config, v1::Configure* proto) {
  proto->set_epoch(config.epoch);
  proto->set_lanes(config.lanes);
  proto->set_pipeline_mode(static_cast<uint32_t>(config.mode));
  proto->set_plan_ahead(config.plan_ahead);
  proto->set_rows_max(config.rows_max);
  proto->set_row_sequences_max(config.row_sequences_max);
  proto->set_chunk_tokens_max(config.chunk_tokens_max);
  proto->set_scratch_tokens(config.scratch_tokens);
  proto->set_sequence_tokens_max(config.sequence_tokens_max);
  for (const AttentionDescriptor& layer : config.layers) {
    ToProto(layer, proto->add_layers());
  }
  for (const std::string& name : config.compute_nodes) {
    proto->add_compute_nodes(name);
  }
  for (const plan::Stage& stage : config.stages) {
    ToProto(stage, proto->add_stages());
  }
  for (const std::string& name : config.memory_nodes) {
    proto->add_memory_nodes(name);
  }
  for (const uint32_t slots : config.slots) {
    proto->add_slots(slots);
  }
  proto->mutable_int8_slots()->Add(config.int8_slots.begin(), config.int8_slots.end());
  proto->mutable_hybrid_slots()->Add(config.hybrid_slots.begin(), config.hybrid_slots.end());
  for (const HeadRange& heads : config.heads) {
    proto->add_kv_heads(heads.count);
  }
  proto->set_span_tokens(config.span_tokens);
  proto->set_decode_attention(static_cast<uint32_t>(config.attention.decode));
  proto->set_prefill_attention(static_cast<uint32_t>(config.attention.prefill));
  proto->set_transport(config.transport);
  proto->set_prefill_nodes(config.prefill_nodes);
  proto->set_prefill_lanes(config.prefill_lanes);
  proto->set_compute_waits(config.compute_waits);
  proto->set_memory_waits(config.memory_waits);
  proto->set_partition(static_cast<uint32_t>(config.partition));
  proto->set_attention_paths(config.attention_paths.bits());
  proto->set_fetch_bytes(config.fetch_bytes);
  proto->set_activation_width(config.activation_width);
  proto->set_activation_share(config.activation_share);
  proto->set_resident_tokens(config.resident_tokens);
  proto->set_made_tokens_max(config.made_tokens_max);
  proto->set_int8_tails(config.int8_tails);
  proto->set_fetch_heads(config.fetch_heads);
  proto->set_sparse_tokens(static_cast<uint32_t>(config.sparse_tokens));
  proto->set_sparse_ratio(config.sparse_ratio);
  for (const std::vector<uint32_t>& heads : config.streaming.layers) {
    proto->add_streaming_layers()->mutable_heads()->Add(heads.begin(), heads.end());
  }
  proto->set_streaming_sink(config.streaming.sink);
  proto->set_streaming_window(config.streaming.window);
  proto->set_step_tokens_max(config.step_tokens_max);
}

plan::EpochConfig FromProto(const v1::Configure& proto) {
  plan::EpochConfig config{
      .epoch = proto.epoch(),
      .mode = static_cast<PipelineMode>(proto.pipeline_mode()),
      .lanes = proto.lanes(),
      .plan_ahead = proto.plan_ahead(),
      .rows_max = proto.rows_max(),
      .row_sequences_max = proto.row_sequences_max(),
      .chunk_tokens_max = proto.chunk_tokens_max(),
      .step_tokens_max = proto.step_tokens_max(),
      .scratch_tokens = proto.scratch_tokens(),
      .sequence_tokens_max = proto.sequence_tokens_max(),
      .attention = {.decode = static_cast<AttentionArithmetic>(proto.decode_attention()),
                    .prefill = static_cast<AttentionArithmetic>(proto.prefill_attention())},
      .compute_nodes = {proto.compute_nodes().begin(), proto.compute_nodes().end()},
      .attention_paths = plan::AttentionPaths::FromBits(proto.attention_paths()),
      .fetch_bytes = proto.fetch_bytes(),
      .fetch_heads = proto.fetch_heads(),
      .activation_width = proto.activation_width(),
      .resident_tokens = proto.resident_tokens(),
      .activation_share = proto.activation_share(),
      .made_tokens_max = proto.made_tokens_max(),
      .int8_tails = proto.int8_tails(),
      // A pattern that this version does not know stays unknown, and is refused.
      .sparse_tokens = static_cast<SparseTokens>(std::min(proto.sparse_tokens(), 255u)),
      .sparse_ratio = proto.sparse_ratio(),
      .streaming = {.sink = proto.streaming_sink(), .window = proto.streaming_window()},
      .memory_nodes = {proto.memory_nodes().begin(), proto.memory_nodes().end()},
      .slots = {proto.slots().begin(), proto.slots().end()},
      .int8_slots = {proto.int8_slots().begin(), proto.int8_slots().end()},
      .hybrid_slots = {proto.hybrid_slots().begin(), proto.hybrid_slots().end()},
      .partition = static_cast<Partition>(proto.partition()),
      .heads = ConsecutiveRanges({proto.kv_heads().begin(), proto.kv_heads().end()}),
      .span_tokens = proto.span_tokens(),
      .transport = proto.transport(),
      .prefill_nodes = proto.prefill_nodes(),
      .prefill_lanes = proto.prefill_lanes(),
      .compute_waits = proto.compute_waits(),
      .memory_waits = proto.memory_waits()};
  for (const v1::AttentionDescriptor& layer : proto.layers()) {
    config.layers.push_back(FromProto(layer));
  }
  for (const v1::StreamingLayer& layer : proto.streaming_layers()) {
    config.streaming.layers.emplace_back(layer.heads().begin(), layer.heads().end());
  }
  for (const v1::ComputeStage& stage : proto.stages()) {
    config.stages.push_back(FromProto(stage));
  }
  return config;
}

void ToProto(const plan::EpochPeers& peers, v1::Connect* proto) {
  proto->set_epoch(peers.epoch);
  for (const std::string& region : peers.compute_regions) {
    proto->add_compute_regions(region);
  }
  for (const std::string& region : peers.memory_regions) {
    proto->add_memory_regions(region);
  }
}

plan::EpochPeers FromProto(const v1::Connect& proto) {
  return {.epoch = proto.epoch(),
          .compute_regions = {proto.compute_regions().begin(), proto.compute_regions().end()},
          .memory_regions = {proto.memory_regions().begin(), proto.memory_regions().end()}};
}

}  // namespace lamina::control
