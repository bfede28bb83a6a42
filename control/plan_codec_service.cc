// SPDX-License-Identifier: Apache-2.0
#include "control/plan_codec_service.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/table_changes.h"

namespace lamina::control {

void ToProto(const SamplingParams& params, v1::Sampling* proto) {
  proto->set_temperature(params.temperature);
  proto->set_top_k(params.top_k);
  proto->set_top_p(params.top_p);
  proto->set_min_p(params.min_p);
  proto->set_repetition_penalty(params.repetition_penalty);
  proto->set_presence_penalty(params.presence_penalty);
  proto->set_frequency_penalty(params.frequency_penalty);
  for (const auto& [token, bias] : params.logit_bias) {
    v1::LogitBias* entry = proto->add_logit_bias();
    entry->set_token(token);
    entry->set_bias(bias);
  }
  proto->mutable_allowed_tokens()->Add(params.allowed_tokens.begin(), params.allowed_tokens.end());
  proto->set_seed(params.seed);
  if (params.logprobs >= 0) {
    proto->set_logprobs(static_cast<uint32_t>(params.logprobs));
  }
  switch (params.form.kind) {
    case OutputForm::Kind::kAny:
      break;
    case OutputForm::Kind::kJsonSchema:
      proto->mutable_form()->set_json_schema(params.form.text);
      break;
    case OutputForm::Kind::kRegex:
      proto->mutable_form()->set_regex(params.form.text);
      break;
    case OutputForm::Kind::kGrammar:
      proto->mutable_form()->set_grammar(params.form.text);
      break;
    case OutputForm::Kind::kStructuralTag:
      proto->mutable_form()->set_structural_tag(params.form.text);
      break;
  }
}

namespace {

OutputForm FromProto(const v1::OutputForm& proto) {
  switch (proto.form_case()) {
    case v1::OutputForm::kJsonSchema:
      return {OutputForm::Kind::kJsonSchema, proto.json_schema()};
    case v1::OutputForm::kRegex:
      return {OutputForm::Kind::kRegex, proto.regex()};
    case v1::OutputForm::kGrammar:
      return {OutputForm::Kind::kGrammar, proto.grammar()};
    case v1::OutputForm::kStructuralTag:
      return {OutputForm::Kind::kStructuralTag, proto.structural_tag()};
    case v1::OutputForm::FORM_NOT_SET:
      break;
  }
  return {};
}

}  // namespace

SamplingParams FromProto(const v1::Sampling& proto) {
  SamplingParams params;
  params.temperature = proto.has_temperature() ? proto.temperature() : 0.0f;
  params.top_k = proto.top_k();
  params.top_p = proto.has_top_p() ? proto.top_p() : 1.0f;
  params.min_p = proto.min_p();
  params.repetition_penalty = proto.has_repetition_penalty() ? proto.repetition_penalty() : 1.0f;
  params.presence_penalty = proto.presence_penalty();
  params.frequency_penalty = proto.frequency_penalty();
  for (const v1::LogitBias& entry : proto.logit_bias()) {
    params.logit_bias.emplace_back(entry.token(), entry.bias());
  }
  params.allowed_tokens.assign(proto.allowed_tokens().begin(), proto.allowed_tokens().end());
  params.seed = proto.seed();
  // Values beyond int32 become INT32_MAX, which Validate() refuses.
  params.logprobs = proto.has_logprobs()
                        ? static_cast<int32_t>(std::min<uint32_t>(proto.logprobs(), INT32_MAX))
                        : -1;
  params.form = FromProto(proto.form());
  return params;
}

namespace {

void ToProto(const plan::SequenceJoin& join, v1::SequenceJoin* proto) {
  proto->set_id(join.id);
  proto->mutable_tokens()->Add(join.tokens.begin(), join.tokens.end());
  proto->set_prompt_tokens(join.prompt_tokens);
  proto->set_parent(join.parent);
  control::ToProto(join.sampling, proto->mutable_sampling());
  proto->set_tokens_max(join.tokens_max);
  proto->mutable_end_tokens()->Add(join.end_tokens.begin(), join.end_tokens.end());
  proto->set_tokens_min(join.tokens_min);
  proto->set_memory_node(join.memory_node);
  proto->set_score(join.score);
  proto->set_request_id(join.request_id);
  proto->set_decode_from(join.decode_from);
  proto->set_attention_path(static_cast<uint32_t>(join.path));
  proto->set_bare_tokens(join.bare_tokens);
  proto->set_resident_first(join.resident.first);
  proto->set_resident_tokens(join.resident.tokens);
  proto->set_resident_place(join.resident.place);
}

plan::SequenceJoin FromProto(const v1::SequenceJoin& proto) {
  plan::SequenceJoin join;
  join.id = proto.id();
  join.tokens.assign(proto.tokens().begin(), proto.tokens().end());
  join.prompt_tokens = proto.prompt_tokens();
  join.parent = proto.parent();
  join.sampling = control::FromProto(proto.sampling());
  join.tokens_max = proto.tokens_max();
  join.end_tokens.assign(proto.end_tokens().begin(), proto.end_tokens().end());
  join.tokens_min = proto.tokens_min();
  join.memory_node = proto.memory_node();
  join.score = proto.score();
  join.request_id = proto.request_id();
  join.decode_from = proto.decode_from();
  // A path that this version does not know is none of the epoch's, which the node refuses.
  join.path = static_cast<plan::AttentionPath>(std::min(proto.attention_path(), 255u));
  join.bare_tokens = proto.bare_tokens();
  join.resident = {.first = proto.resident_first(),
                   .tokens = proto.resident_tokens(),
                   .place = proto.resident_place()};
  return join;
}

// A codec for each kind of table change: to the end of its field, and from it.

void AppendTo(v1::StepPlan* proto, const plan::SpillDrop& drop) {
  proto->add_spill_drops(drop.spill);
}

void AppendTo(v1::StepPlan* proto, const plan::SpillOut& spill) {
  v1::Spill* out = proto->add_spills_out();
  out->set_spill(spill.spill);
  out->set_sequence(spill.sequence);
  out->set_tokens(spill.tokens);
  out->set_memory_node(spill.memory_node);
  for (const Extent& extent : spill.slots) {
    v1::Extent* slots = out->add_slots();
    slots->set_first_slot(extent.first_slot);
    slots->set_tokens(extent.tokens);
  }
}

void AppendTo(v1::StepPlan* proto, const plan::SpillIn& spill) {
  v1::Spill* in = proto->add_spills_in();
  in->set_spill(spill.spill);
  in->set_sequence(spill.sequence);
  in->set_tokens(spill.tokens);
  in->set_first(spill.first);
  in->set_skip(spill.skip);
}

void AppendTo(v1::StepPlan* proto, const plan::SequenceLeave& leave) {
  proto->add_leaves(leave.id);
}

void AppendTo(v1::StepPlan* proto, const plan::SlotRelease& release) {
  v1::SlotRelease* entry = proto->add_releases();
  entry->set_sequence(release.sequence);
  entry->set_tokens(release.tokens);
}

void AppendTo(v1::StepPlan* proto, const plan::SequenceJoin& join) {
  ToProto(join, proto->add_joins());
}

void AppendTo(v1::StepPlan* proto, const plan::SlotAllocation& allocation) {
  v1::SlotGrant* entry = proto->add_grants();
  entry->set_sequence(allocation.sequence);
  entry->mutable_extent()->set_first_slot(allocation.extent.first_slot);
  entry->mutable_extent()->set_tokens(allocation.extent.tokens);
  entry->set_memory_node(allocation.memory_node);
}

void ReadFrom(const v1::StepPlan& proto, std::vector<plan::SpillDrop>& drops) {
  for (const uint64_t spill : proto.spill_drops()) {
    drops.push_back({.spill = spill});
  }
}

void ReadFrom(const v1::StepPlan& proto, std::vector<plan::SpillOut>& spills) {
  for (const v1::Spill& spill : proto.spills_out()) {
    plan::SpillOut& out = spills.emplace_back(plan::SpillOut{.spill = spill.spill(),
                                                             .sequence = spill.sequence(),
                                                             .tokens = spill.tokens(),
                                                             .memory_node = spill.memory_node()});
    for (const v1::Extent& slots : spill.slots()) {
      out.slots.push_back({.first_slot = slots.first_slot(), .tokens = slots.tokens()});
    }
  }
}

void ReadFrom(const v1::StepPlan& proto, std::vector<plan::SpillIn>& spills) {
  for (const v1::Spill& spill : proto.spills_in()) {
    spills.push_back({.spill = spill.spill(),
                      .sequence = spill.sequence(),
                      .tokens = spill.tokens(),
                      .first = spill.first(),
                      .skip = spill.skip()});
  }
}

void ReadFrom(const v1::StepPlan& proto, std::vector<plan::SequenceLeave>& leaves) {
  for (const plan::SequenceId id : proto.leaves()) {
    leaves.push_back({.id = id});
  }
}

void ReadFrom(const v1::StepPlan& proto, std::vector<plan::SlotRelease>& releases) {
  for (const v1::SlotRelease& release : proto.releases()) {
    releases.push_back({.sequence = release.sequence(), .tokens = release.tokens()});
  }
}

void ReadFrom(const v1::StepPlan& proto, std::vector<plan::SequenceJoin>& joins) {
  for (const v1::SequenceJoin& join : proto.joins()) {
    joins.push_back(FromProto(join));
  }
}

void ReadFrom(const v1::StepPlan& proto, std::vector<plan::SlotAllocation>& allocations) {
  for (const v1::SlotGrant& grant : proto.grants()) {
    allocations.push_back(
        {.sequence = grant.sequence(),
         .extent = {.first_slot = grant.extent().first_slot(), .tokens = grant.extent().tokens()},
         .memory_node = grant.memory_node()});
  }
}

}  // namespace

void ToProto(const plan::StepPlan& plan, v1::StepPlan* proto) {
  proto->set_epoch(plan.epoch);
  proto->set_lane(plan.lane);
  proto->set_step(plan.step);
  plan::ForEachChange(plan, [proto](const auto& change) { AppendTo(proto, change); });
  for (const plan::DecodeRow& row : plan.rows) {
    proto->add_row_sequences(row.sequence);
    proto->add_row_positions(row.position);
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    v1::PrefillChunk* entry = proto->add_chunks();
    entry->set_sequence(chunk.sequence);
    entry->set_first_token(chunk.first_token);
    entry->set_tokens(chunk.tokens);
    entry->set_scratch_offset(chunk.scratch_offset);
    entry->set_last(chunk.last);
  }
  proto->set_row_chunks(plan.chunking.chunks);
  proto->set_head_chunks(plan.chunking.by_heads);
  proto->set_query_first(plan.chunking.query_first);
  proto->set_recomputed(plan.recomputed);
}

absl::StatusOr<plan::StepPlan> FromProto(const v1::StepPlan& proto) {
  if (proto.row_sequences_size() != proto.row_positions_size()) {
    return absl::InvalidArgumentError(absl::StrCat("plan has ", proto.row_sequences_size(),
                                                   " row sequences and ",
                                                   proto.row_positions_size(), " row positions"));
  }
  if (proto.recomputed() > plan::kRecomputeUnit) {
    return absl::InvalidArgumentError(absl::StrCat("plan recomputes ", proto.recomputed(), " of ",
                                                   plan::kRecomputeUnit, " parts"));
  }
  plan::StepPlan plan;
  plan.epoch = proto.epoch();
  plan.lane = proto.lane();
  plan.step = proto.step();
  std::apply([&proto](auto&... lists) { (ReadFrom(proto, lists), ...); }, plan::ChangeLists(plan));
  for (int i = 0; i < proto.row_sequences_size(); ++i) {
    plan.rows.push_back({.sequence = proto.row_sequences(i), .position = proto.row_positions(i)});
  }
  for (const v1::PrefillChunk& chunk : proto.chunks()) {
    plan.chunks.push_back({.sequence = chunk.sequence(),
                           .first_token = chunk.first_token(),
                           .tokens = chunk.tokens(),
                           .scratch_offset = chunk.scratch_offset(),
                           .last = chunk.last()});
  }
  plan.chunking = {.chunks = proto.row_chunks(),
                   .by_heads = proto.head_chunks(),
                   .query_first = proto.query_first()};
  plan.recomputed = proto.recomputed();
  return plan;
}

void ToProto(const plan::StepResult& result, v1::StepResult* proto) {
  proto->set_epoch(result.epoch);
  proto->set_lane(result.lane);
  proto->set_step(result.step);
  for (const plan::SampledToken& token : result.tokens) {
    v1::SampledToken* entry = proto->add_tokens();
    entry->set_sequence(token.sequence);
    entry->set_position(token.position);
    entry->set_token(token.token);
    entry->set_logprob(token.logprob);
    for (const plan::TokenLogprob& top : token.top) {
      v1::TokenLogprob* alternative = entry->add_top();
      alternative->set_token(top.token);
      alternative->set_logprob(top.logprob);
    }
    entry->set_finish(static_cast<uint32_t>(token.finish));
    entry->set_outside(token.outside);
  }
  for (const plan::ScoredTokens& scored : result.scores) {
    v1::ScoredTokens* entry = proto->add_scores();
    entry->set_sequence(scored.sequence);
    entry->set_first_token(scored.first_token);
    entry->mutable_logprobs()->Add(scored.logprobs.begin(), scored.logprobs.end());
    for (const plan::TokenRank& rank : scored.ranks) {
      v1::TokenRank* ranked = entry->add_ranks();
      ranked->set_rank(rank.rank);
      for (const plan::TokenLogprob& top : rank.top) {
        v1::TokenLogprob* alternative = ranked->add_top();
        alternative->set_token(top.token);
        alternative->set_logprob(top.logprob);
      }
    }
  }
}

plan::StepResult FromProto(const v1::StepResult& proto) {
  plan::StepResult result;
  result.epoch = proto.epoch();
  result.lane = proto.lane();
  result.step = proto.step();
  for (const v1::SampledToken& entry : proto.tokens()) {
    plan::SampledToken token{
        .sequence = entry.sequence(),
        .position = entry.position(),
        .token = entry.token(),
        .logprob = entry.logprob(),
        .finish = entry.finish() <= static_cast<uint32_t>(plan::FinishReason::kError)
                      ? static_cast<plan::FinishReason>(entry.finish())
                      : plan::FinishReason::kError,
        .outside = entry.outside()};
    for (const v1::TokenLogprob& top : entry.top()) {
      token.top.push_back({.token = top.token(), .logprob = top.logprob()});
    }
    result.tokens.push_back(std::move(token));
  }
  for (const v1::ScoredTokens& entry : proto.scores()) {
    plan::ScoredTokens scored{.sequence = entry.sequence(),
                              .first_token = entry.first_token(),
                              .logprobs = {entry.logprobs().begin(), entry.logprobs().end()}};
    for (const v1::TokenRank& ranked : entry.ranks()) {
      plan::TokenRank& rank = scored.ranks.emplace_back();
      rank.rank = ranked.rank();
      for (const v1::TokenLogprob& top : ranked.top()) {
        rank.top.push_back({.token = top.token(), .logprob = top.logprob()});
      }
    }
    result.scores.push_back(std::move(scored));
  }
  return result;
}

void ToProto(const AttentionDescriptor& descriptor, v1::AttentionDescriptor* proto) {
  proto->set_query_heads(descriptor.query_heads);
  proto->set_kv_heads(descriptor.kv_heads);
  proto->set_head_dim(descriptor.head_dim);
  proto->set_scale(descriptor.scale);
  proto->set_window(descriptor.window);
  proto->set_soft_cap(descriptor.soft_cap);
  proto->mutable_sinks()->Assign(descriptor.sinks.begin(), descriptor.sinks.end());
}

AttentionDescriptor FromProto(const v1::AttentionDescriptor& proto) {
  return {.query_heads = proto.query_heads(),
          .kv_heads = proto.kv_heads(),
          .head_dim = proto.head_dim(),
          .scale = proto.scale(),
          .window = proto.window(),
          .soft_cap = proto.soft_cap(),
          .sinks = {proto.sinks().begin(), proto.sinks().end()}};
}

void ToProto(const plan::Stage& stage, v1::ComputeStage* proto) {
  proto->set_replica(stage.replica);
  proto->set_first_layer(stage.first_layer);
  proto->set_layers(stage.layers);
  v1::Shard* shard = proto->mutable_shard();
  shard->set_index(stage.shard.index);
  shard->set_count(stage.shard.count);
  shard->set_first_head(stage.shard.first_head);
  shard->set_heads(stage.shard.heads);
  shard->set_first_column(stage.shard.first_column);
  shard->set_columns(stage.shard.columns);
}

plan::Stage FromProto(const v1::ComputeStage& proto) {
  const v1::Shard& shard = proto.shard();
  return {.replica = proto.replica(),
          .first_layer = proto.first_layer(),
          .layers = proto.layers(),
          .shard = {.index = shard.index(),
                    .count = shard.count(),
                    .first_head = shard.first_head(),
                    .heads = shard.heads(),
                    .first_column = shard.first_column(),
                    .columns = shard.columns()}};
}

}  // namespace lamina::control
