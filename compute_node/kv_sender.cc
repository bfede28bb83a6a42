// SPDX-License-Identifier: Apache-2.0
#include "compute_node/kv_sender.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/transport_fault.h"
#include "plan/activation_part.h"
#include "plan/epoch_shape.h"
#include "plan/query_window.h"

namespace lamina::compute_node {

// Over all nodes no more than what the rows bring, and a header for each.
KvSender::KvSender(const WorkerContext& context, plan::AttentionPath path)
    : context_(context),
      activation_width_(plan::ActivationWidthOf(context.config, path)),
      lanes_(context.config.lanes) {
  const size_t nodes = context.config.memory_nodes.size();
  const size_t row_bytes =
      (2 * size_t{plan::KvWidthMax(context.config.layers)} + activation_width_) * sizeof(BFloat16);
  for (LaneState& lane : lanes_) {
    lane.nodes.resize(nodes);
    lane.staged.resize(nodes * sizeof(plan::WindowHeader) +
                       context.layout.shape().kv_rows_max * row_bytes);
  }
}

uint64_t KvSender::bytes() const {
  uint64_t bytes = 0;
  for (const LaneState& lane : lanes_) {
    bytes += lane.staged.size();
  }
  return bytes;
}

absl::Status KvSender::Open() {
  for (const LaneState& lane : lanes_) {
    LAMINA_RETURN_IF_ERROR(control::TransportFault(
        context_.transport.RegisterSource(lane.staged, transport::MemoryKind::kHost)));
  }
  return absl::OkStatus();
}

absl::Status KvSender::BeginStep(const Lane& lane, absl::Span<const RowRun> runs,
                                 absl::Span<const uint32_t> also) {
  std::vector<RowRun> cut;
  if (BySpan(context_.config)) {
    LAMINA_ASSIGN_OR_RETURN(cut, CutBySpan(context_.config, context_.sequences, runs));
    runs = cut;
  }
  std::vector<Part>& nodes = lanes_[lane.index].nodes;
  for (uint32_t node = 0; node < nodes.size(); ++node) {
    Part& part = nodes[node];
    part.rows.clear();
    part.tokens = 0;
    part.awaited = false;
    for (const RowRun& run : runs) {
      if (LiesOn(context_.config, node, run)) {
        part.rows.push_back({.first = run.first_row, .count = run.tokens});
        part.tokens += run.tokens;
      }
    }
    if (const uint32_t most = context_.layout.shape().kv_rows_max; part.tokens > most) {
      return absl::InternalError(
          absl::StrCat("plan of lane ", lane.plan.lane, " step ", lane.plan.step, " has ",
                       part.tokens, " tokens for one memory node; at most ", most, " fit"));
    }
    part.involved = part.tokens > 0 || std::find(also.begin(), also.end(), node) != also.end();
  }
  return absl::OkStatus();
}

absl::Status KvSender::Send(Lane& lane) {
  LaneState& state = lanes_[lane.index];
  std::byte* staged = state.staged.data();
  for (uint32_t node = 0; node < state.nodes.size(); ++node) {
    if (state.nodes[node].involved) {
      LAMINA_RETURN_IF_ERROR(SendTo(lane, node, staged));
    }
  }
  return absl::OkStatus();
}

absl::Status KvSender::SendTo(Lane& lane, uint32_t node, std::byte*& staged) {
  const Part& part = lanes_[lane.index].nodes[node];
  const plan::ActivationPart activation = activation_width_ == 0
                                              ? plan::ActivationPart()
                                              : plan::ActivationPartOf(context_.config, node);
  const plan::QueryWindowWriter window({.part = context_.PartOf(lane.slice, node),
                                        .pieces = plan::PiecesOf(lane.plan.chunking, 0, 1),
                                        .prompt_tokens = part.tokens,
                                        .activation_width = activation.count},
                                       context_.HeadsOf(lane.slice, node).first);
  plan::WindowHeader header = context_.HeaderOf(lane, lane.slice, 0, context_.node);
  header.kv_rows = part.tokens;
  std::memcpy(staged, &header, sizeof(header));
  const auto qkv = context_.executor.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
  const plan::LayerRows rows{
      .layer = context_.config.layers[lane.slice], .data = qkv.row(0), .stride = qkv.stride};
  const kernels::ActivationView activations =
      activation_width_ == 0
          ? kernels::ActivationView()
          : lane.buffers.Activations(KvInputOf(context_.executor.program(), lane.slice),
                                     lane.positions.size());
  auto* const tokens = reinterpret_cast<BFloat16*>(staged + sizeof(header));
  uint32_t token = 0;
  for (const RowRange& range : part.rows) {
    for (uint32_t i = 0; i < range.count; ++i) {
      window.GatherPrompt(rows, range.first + i, token, tokens);
      if (activations.data != nullptr) {
        const auto* const row =
            static_cast<const BFloat16*>(activations.data) + (range.first + i) * activations.stride;
        window.GatherActivation(row + activation.first, token, tokens);
      }
      ++token;
    }
  }
  const uint64_t value = context_.UnitValue(lane, lane.slice);
  const transport::SignalUpdate signal{
      .word = context_.layout.query_word(context_.node, lane.index), .value = value};
  const absl::Span<const std::byte> bytes(staged, window.bytes());
  const PeerId peer = MemoryPeer(node);
  LAMINA_RETURN_IF_ERROR(context_.peers.Put(
      peer, context_.layout.QueryWindow(context_.node, lane.index, value), bytes, &signal));
  const size_t activation_bytes = size_t{part.tokens} * activation.count * sizeof(BFloat16);
  context_.peers.CountSent(peer,
                           {.rows = sizeof(header),
                            .kv = bytes.size() - sizeof(header) - activation_bytes,
                            .activations = activation_bytes},
                           context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kSend,
                                                            lane.slice, peer, bytes.size()));
  staged += bytes.size();
  return absl::OkStatus();
}

bool KvSender::Await(const Lane& lane) {
  bool any = false;
  for (Part& part : lanes_[lane.index].nodes) {
    part.awaited = part.involved;
    any |= part.awaited;
  }
  return any;
}

absl::StatusOr<bool> KvSender::Poll(const Lane& lane) {
  const uint32_t layer = lane.slice - 1;
  const uint64_t value = context_.UnitValue(lane, layer);
  bool all = true;
  std::vector<Part>& nodes = lanes_[lane.index].nodes;
  for (uint32_t node = 0; node < nodes.size(); ++node) {
    if (!nodes[node].awaited) {
      continue;
    }
    if (context_.region.LoadSignal(context_.layout.reply_word(node, lane.index)) < value) {
      all = false;
      continue;
    }
    plan::WindowHeader header;
    std::memcpy(
        &header,
        context_.region.bytes().data() + context_.layout.ReplyWindow(node, lane.index, value),
        sizeof(header));
    LAMINA_RETURN_IF_ERROR(context_.peers.CheckWindow(MemoryPeer(node), header,
                                                      context_.HeaderOf(lane, layer, 0, node)));
    nodes[node].awaited = false;
  }
  return all;
}

void KvSender::AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const {
  const std::vector<Part>& nodes = lanes_[lane.index].nodes;
  for (uint32_t node = 0; node < nodes.size(); ++node) {
    if (nodes[node].awaited) {
      awaited.push_back({.peer = MemoryPeer(node),
                         .word = context_.layout.reply_word(node, lane.index),
                         .value = context_.UnitValue(lane, lane.slice - 1)});
    }
  }
}

}  // namespace lamina::compute_node
