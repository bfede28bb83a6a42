// SPDX-License-Identifier: Apache-2.0
//
// The windows of a UnitCluster's compute nodes: what they put, what comes back, and what must.

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/clock.h"
#include "common/kv_form.h"
#include "kernels/attention.h"
#include "kernels/canonical_math.h"
#include "kernels/partial.h"
#include "plan/activation_part.h"
#include "plan/epoch_shape.h"
#include "plan/fetch_pieces.h"
#include "plan/reply_window.h"
#include "plan/token_sets.h"
#include "tests/unit/memory_node/unit_cluster.h"
#include "transport/put_all.h"

namespace lamina::memory_node {

// K, V and queries of the unit, and what decode rows must give: over whole sequences, all heads.
void UnitCluster::Reference(const Step& step, uint32_t layer) {
  const AttentionDescriptor& shape = config_.layers[layer];
  const std::pair key(step.spec.lane, layer);
  std::vector<BFloat16>& rows = rows_[key];
  std::normal_distribution<float> normal(0.0f, 1.2f);
  rows.resize(step.positions.size() * shape.qkv_width());
  for (BFloat16& x : rows) {
    x = ToBFloat16(normal(random_));
  }
  std::vector<Extent> slots(step.positions.size());
  std::vector<kernels::KvRows> stored;
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i] = {.first_slot = step.sequences[i] * kContext + step.positions[i], .tokens = 1};
    const BFloat16* k = rows.data() + i * shape.qkv_width() + shape.q_width();
    stored.push_back(
        {.k = k, .v = k + shape.kv_width(), .stride = shape.qkv_width(), .slots = {&slots[i], 1}});
  }
  ASSERT_TRUE(reference_->Store(layer, AllHeads(shape), stored).ok());
  std::vector<BFloat16>& out = expected_[key];
  out.assign(step.plan.rows.size() * shape.q_width(), {});
  if (int8_reference_ != nullptr) {
    ReferenceOfInt8(step, layer, out);
    return;
  }
  std::vector<Extent> extents(step.plan.rows.size());
  std::vector<kernels::AttentionItem> items;
  for (size_t i = 0; i < extents.size(); ++i) {
    extents[i] = {.first_slot = step.sequences[i] * kContext, .tokens = step.positions[i] + 1};
    items.push_back({.extents = {&extents[i], 1},
                     .first_position = step.positions[i],
                     .query_tokens = 1,
                     .q = rows.data() + i * shape.qkv_width(),
                     .q_stride = shape.qkv_width(),
                     .out = out.data() + i * shape.q_width(),
                     .out_stride = shape.q_width()});
  }
  if (!items.empty()) {
    ASSERT_TRUE(reference_->Attend(layer, AllHeads(shape), items).ok());
  }
}

void UnitCluster::ReferenceOfInt8(const Step& step, uint32_t layer, std::vector<BFloat16>& out) {
  const AttentionDescriptor& shape = config_.layers[layer];
  const std::vector<BFloat16>& rows = rows_[{step.spec.lane, layer}];
  std::vector<Extent> slots(step.positions.size());
  std::vector<kernels::Int8Run> runs;
  uint32_t tokens = 0;
  for (size_t i = 0; i < slots.size(); i += tokens) {
    const uint32_t sequence = step.sequences[i];
    tokens = 1;
    while (i + tokens < slots.size() && step.sequences[i + tokens] == sequence) {
      ++tokens;
    }
    slots[i] = {.first_slot = sequence * kContext, .tokens = kContext};
    const BFloat16* const q = rows.data() + i * shape.qkv_width();
    runs.push_back({.slots = {&slots[i], 1},
                    .tail_slot = sequence * kInt8BlockTokens,
                    .first_token = step.positions[i],
                    .tokens = tokens,
                    .k = q + shape.q_width(),
                    .v = q + shape.q_width() + shape.kv_width(),
                    .kv_stride = shape.qkv_width()});
    if (i < step.plan.rows.size()) {
      runs.back().q = q;
      runs.back().q_stride = shape.qkv_width();
      runs.back().out = out.data() + i * shape.q_width();
      runs.back().out_stride = shape.q_width();
    }
  }
  ASSERT_TRUE(int8_runs_.Run(*int8_reference_, layer, AllHeads(shape), runs).ok());
}

std::vector<UnitCluster::Window> UnitCluster::MakeWindows(const Step& step, uint32_t layer) {
  Reference(step, layer);
  const AttentionDescriptor& shape = config_.layers[layer];
  const plan::LayerRows rows{
      .layer = shape, .data = rows_[{step.spec.lane, layer}].data(), .stride = shape.qkv_width()};
  std::vector<Window> windows;
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    uint32_t own = 0;
    // Rows that attend at the compute node come as prompt tokens do.
    const bool fetched = plan::Fetches(PathOf(step.spec.lane));
    const std::vector<uint32_t> listed =
        fetched ? std::vector<uint32_t>() : RowsFor(step, node, own);
    std::vector<uint32_t> prompts;
    for (uint32_t row = fetched ? 0 : static_cast<uint32_t>(step.plan.rows.size());
         row < step.positions.size(); ++row) {
      if (config_.partition == Partition::kHead ||
          NodeOfToken(step.sequences[row], step.positions[row]) == node) {
        prompts.push_back(row);
      }
    }
    // Where a node has spans of rows whose own tokens are others', it gets headers.
    bool sends = false;
    for (uint32_t row = 0; fetched && row < step.plan.rows.size(); ++row) {
      sends = sends || HoldsRow(node, step.sequences[row], step.positions[row]);
    }
    for (const plan::PipelineSchedule& schedule : schedules_) {
      const uint32_t sender =
          schedule.NodeOf(step.spec.lane, step.spec.step, layer, !step.plan.chunks.empty());
      const HeadRange heads = plan::HeadsBetween(config_, shape, node, sender);
      if (heads.count == 0 || (listed.empty() && prompts.empty() && !sends)) {
        continue;
      }
      Window window{.memory_node = node,
                    .sender = sender,
                    .lane = step.spec.lane,
                    .value = layout_.SignalValue(step.spec.step, layer)};
      window.header = {.lane = step.spec.lane,
                       .epoch = kEpoch,
                       .step = step.spec.step,
                       .layer = layer,
                       .rows = static_cast<uint32_t>(listed.size()),
                       .kv_rows = static_cast<uint32_t>(prompts.size()),
                       .sender = sender};
      const plan::ActivationPart brought = plan::ActivationPartOf(config_, node);
      window.shape = {.part = PartOf(shape, heads),
                      .pieces = plan::PiecesOf(step.spec.chunking, window.header.rows, heads.count),
                      .own_rows = own,
                      .prompt_tokens = window.header.kv_rows,
                      .activation_width = brought.count};
      const plan::QueryWindowWriter writer(window.shape, heads.first);
      std::vector<BFloat16> staged(writer.staged_elements() + writer.prompt_elements());
      writer.Gather(rows, {.listed = listed}, staged.data());
      for (uint32_t i = 0; i < prompts.size(); ++i) {
        writer.GatherPrompt(rows, prompts[i], i, staged.data() + writer.staged_elements());
        std::vector<BFloat16> activation(config_.activation_width);
        for (uint32_t element = 0; element < activation.size(); ++element) {
          activation[element] =
              Activation(step.sequences[prompts[i]], step.positions[prompts[i]], layer, element);
        }
        writer.GatherActivation(activation.data() + brought.first, i,
                                staged.data() + writer.staged_elements());
      }
      window.bytes.resize(writer.bytes());
      std::memcpy(window.bytes.data(), &window.header, sizeof(window.header));
      const auto* const rest = reinterpret_cast<const std::byte*>(staged.data());
      std::copy_n(rest, staged.size() * sizeof(BFloat16),
                  window.bytes.data() + sizeof(window.header));
      windows.push_back(std::move(window));
    }
  }
  return windows;
}

void UnitCluster::PutPiece(const Window& window, uint32_t piece) {
  ComputeNode& from = *compute_[window.sender];
  const plan::QueryWindow lies(window.shape);
  const uint32_t pieces = window.shape.pieces.count();
  plan::ByteRange range = lies.Piece(piece);
  range.begin = piece == 0 ? 0 : range.begin;
  range.end = piece + 1 == pieces ? lies.bytes() : range.end;
  const transport::SignalUpdate signal{.word = layout_.query_word(window.sender, window.lane),
                                       .value = plan::PieceValue(window.value, piece, pieces)};
  ASSERT_TRUE(from.transport->RegisterSource(window.bytes, transport::MemoryKind::kHost).ok());
  transport::RemoteRegion& to = *from.queries[window.memory_node];
  const transport::WaitOptions wait{.deadline = RealClock().Now() + kLong};
  const absl::Status put = transport::PutAll(
      *from.transport, to,
      layout_.QueryWindow(window.sender, window.lane, window.value) + range.begin,
      absl::MakeConstSpan(window.bytes).subspan(range.begin, range.size()), &signal, wait);
  ASSERT_TRUE(put.ok()) << put;
  ASSERT_TRUE(transport::DrainPuts(*from.transport, to, wait).ok());
}

void UnitCluster::Put(const Window& window) {
  for (uint32_t piece = 0; piece < window.shape.pieces.count(); ++piece) {
    PutPiece(window, piece);
  }
}

void UnitCluster::PutHeader(const Window& window) {
  Window header = window;
  header.shape = {.part = window.shape.part, .pieces = plan::PiecesOf({}, 0, 1)};
  header.shape.pieces.kv_heads = window.shape.part.kv_heads;
  header.bytes.resize(sizeof(plan::WindowHeader));
  std::memcpy(header.bytes.data(), &window.header, sizeof(window.header));
  PutPiece(header, 0);
}

void UnitCluster::RaiseSpareWord(uint32_t memory_node, uint64_t value) {
  const transport::SignalUpdate signal{.word = spare_word(), .value = value};
  ComputeNode& from = *compute_[0];
  const absl::Status put = transport::PutAll(*from.transport, *from.queries[memory_node], 0, {},
                                             &signal, {.deadline = RealClock().Now() + kLong});
  ASSERT_TRUE(put.ok()) << put;
}

uint64_t UnitCluster::Replied(uint32_t compute_node, uint32_t memory_node, uint32_t lane) const {
  compute_[compute_node]->transport->Progress();
  return compute_[compute_node]->region->LoadSignal(layout_.reply_word(memory_node, lane));
}

void UnitCluster::AwaitReply(uint32_t compute_node, uint32_t memory_node, uint32_t lane,
                             uint64_t value) {
  const transport::SignalCondition come{.word = layout_.reply_word(memory_node, lane),
                                        .at_least = value};
  const Nanos deadline = RealClock().Now() + kLong;
  while (RealClock().Now() < deadline) {
    const auto waited = compute_[compute_node]->transport->Wait(
        *compute_[compute_node]->region, {&come, 1}, {.deadline = RealClock().Now() + Millis(20)});
    if (waited.ok()) {
      return;
    }
    ASSERT_FALSE(ended(memory_node)) << EndOf(memory_node);
  }
  FAIL() << "no reply to " << value << " of lane " << lane << " from m" << memory_node;
}

void UnitCluster::AwaitTurns(uint32_t node) {
  const ThreadBeat& beat = nodes_[node]->counters.beat;
  const uint64_t first = beat.beats();
  const Nanos deadline = RealClock().Now() + kLong;
  while (beat.beats() < first + 4 && !ended(node) && RealClock().Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_GE(beat.beats(), first + 4);
}

void UnitCluster::TakeRows(const Step& step, const Window& window, const std::byte* reply,
                           std::vector<BFloat16>& out) const {
  const AttentionDescriptor& shape = config_.layers[window.header.layer];
  const AttentionDescriptor& part = window.shape.part;
  const HeadRange heads = plan::HeadsBetween(config_, shape, window.memory_node, window.sender);
  uint32_t own = 0;
  const std::vector<uint32_t> listed = RowsFor(step, window.memory_node, own);
  std::vector<BFloat16> here(listed.size() * part.q_width());
  plan::ReplyWindowReader({.part = part, .pieces = window.shape.pieces}, reply)
      .Scatter(here.data(), part.q_width());
  for (size_t i = 0; i < listed.size(); ++i) {
    std::copy_n(here.data() + i * part.q_width(), part.q_width(),
                out.data() + listed[i] * shape.q_width() +
                    size_t{heads.first} * shape.group() * shape.head_dim);
  }
}

void UnitCluster::TakePartials(const Step& step, const Window& window, const std::byte* reply,
                               Partials& partials) const {
  const AttentionDescriptor& shape = config_.layers[window.header.layer];
  const HeadRange heads = plan::HeadsBetween(config_, shape, window.memory_node, window.sender);
  uint32_t own = 0;
  const std::vector<uint32_t> listed = RowsFor(step, window.memory_node, own);
  std::vector<std::pair<uint32_t, uint32_t>> order;  // (place, span) of each partial.
  for (uint32_t place = 0; place < listed.size(); ++place) {
    const uint32_t row = listed[place];
    for (uint32_t span = 0; span <= step.positions[row] / config_.span_tokens; ++span) {
      if (NodeOfToken(step.sequences[row], span * config_.span_tokens) == window.memory_node) {
        order.emplace_back(place, span);
      }
    }
  }
  const plan::ReplyWindowReader reader(
      {.part = window.shape.part,
       .pieces = window.shape.pieces,
       .partial_width = static_cast<uint32_t>(kernels::PartialWidth(shape)),
       .partials = static_cast<uint32_t>(order.size())},
      reply);
  for (uint32_t index = 0; index < window.shape.pieces.chunks; ++index) {
    const plan::ReplyChunk chunk = reader.Chunk(index);
    for (uint32_t p = 0; p < order.size(); ++p) {
      const auto& [place, span] = order[p];
      for (uint32_t head = 0;
           head < chunk.query_heads() && place >= chunk.first_row() && place < chunk.rows_end();
           ++head) {
        const uint32_t of_layer = heads.first * shape.group() + chunk.first_query_head() + head;
        partials[{listed[place], of_layer}][span] = reader.Partial(chunk, p, head);
      }
    }
  }
}

void UnitCluster::MergePartials(const AttentionDescriptor& shape, const Partials& partials,
                                std::vector<BFloat16>& out) const {
  for (const auto& [where, spans] : partials) {
    kernels::PartialStack stack(shape.head_dim);
    const uint32_t blocks = config_.span_tokens / kernels::kBlockTokens;
    for (const auto& [span, values] : spans) {
      stack.Push(span * blocks, span + 1 < spans.size() ? blocks : 1, values,
                 values[shape.head_dim]);
    }
    std::vector<float> folded(shape.head_dim);
    float lse = 0;
    stack.Fold(folded.data(), &lse);
    std::transform(
        folded.begin(), folded.end(),
        out.data() + where.first * shape.q_width() + size_t{where.second} * shape.head_dim,
        kernels::canonical::RoundOutput);
  }
}

void UnitCluster::ExpectReplies(const Step& step, uint32_t layer,
                                const std::vector<Window>& windows) {
  const AttentionDescriptor& shape = config_.layers[layer];
  const size_t width = shape.q_width();
  const size_t rows = step.plan.rows.size();
  std::vector<BFloat16> out(rows * width);
  Partials partials;
  for (const Window& window : windows) {
    const uint32_t shard = plan::StageOf(config_, window.sender).shard.index;
    const uint32_t runner = schedules_[shard].NodeOf(step.spec.lane, step.spec.step, layer + 1,
                                                     !step.plan.chunks.empty());
    ASSERT_NO_FATAL_FAILURE(AwaitReply(runner, window.memory_node, step.spec.lane, window.value));
    const std::byte* const reply =
        compute_[runner]->region->bytes().data() +
        layout_.ReplyWindow(window.memory_node, step.spec.lane, window.value);
    plan::WindowHeader header;
    std::memcpy(&header, reply, sizeof(header));
    const absl::Status checked = plan::CheckHeader(header, {.lane = step.spec.lane,
                                                            .epoch = kEpoch,
                                                            .step = step.spec.step,
                                                            .layer = layer,
                                                            .rows = window.header.rows,
                                                            .sender = window.memory_node});
    ASSERT_TRUE(checked.ok()) << checked;
    if (config_.partition == Partition::kTokenRange) {
      TakePartials(step, window, reply, partials);
    } else {
      TakeRows(step, window, reply, out);
    }
  }
  if (plan::Fetches(PathOf(step.spec.lane))) {
    return;  // Empty replies.
  }
  MergePartials(shape, partials, out);
  const std::vector<BFloat16>& expected = expected_[{step.spec.lane, layer}];
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i].bits, expected[i].bits) << "step " << step.spec.step << " layer " << layer
                                             << " row " << i / width << " element " << i % width;
  }
}

void UnitCluster::RunUnit(const Step& step, uint32_t layer) {
  const std::vector<Window> windows = MakeWindows(step, layer);
  for (const Window& window : windows) {
    ASSERT_NO_FATAL_FAILURE(Put(window));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectReplies(step, layer, windows));
}

void UnitCluster::Run(const StepSpec& spec) {
  const Step step = MakeStep(spec);
  PushPlan(step);
  for (uint32_t layer = 0; layer < layout_.layer_count(); ++layer) {
    ASSERT_NO_FATAL_FAILURE(RunUnit(step, layer));
  }
}

// --- K and V that are fetched ---

BFloat16 UnitCluster::Activation(uint32_t sequence, uint32_t position, uint32_t layer,
                                 uint32_t element) {
  return {.bits = static_cast<uint16_t>((sequence * 31 + position) * 257 + layer * 101 + element)};
}

void UnitCluster::FillFetched(uint32_t memory_node, uint32_t lane, uint64_t piece, BFloat16 value) {
  const absl::Span<std::byte> place = noted_.at({memory_node, lane}).places.at(piece - 1);
  std::fill_n(reinterpret_cast<BFloat16*>(place.data()), place.size() / sizeof(BFloat16), value);
}

void UnitCluster::FillWindows(uint32_t memory_node, uint32_t lane, BFloat16 value) {
  const plan::FetchWindows windows(layout_);
  auto* const first = reinterpret_cast<BFloat16*>(
      compute_[0]->region->bytes().data() +
      windows.Window(memory_node, lane, plan::FetchRing(), /*parts=*/1));
  std::fill_n(first, windows.ring_bytes() / sizeof(BFloat16), value);
}

void UnitCluster::AwaitPiece(uint32_t memory_node, uint32_t lane, uint64_t piece, size_t bytes) {
  const plan::FetchWindows windows(layout_);
  Noted& noted = noted_[{memory_node, lane}];
  ASSERT_EQ(noted.places.size() + 1, piece) << "pieces are noted in order";
  const uint32_t parts = windows.Parts(bytes);
  noted.places.push_back(compute_[0]->region->bytes().subspan(
      windows.Window(memory_node, lane, noted.ring, parts), parts * windows.part_bytes()));
  noted.ring.Add(parts);
  AwaitFetched(memory_node, lane, piece);
}

const BFloat16* UnitCluster::Fetched(uint32_t memory_node, uint32_t lane, uint64_t piece) const {
  return reinterpret_cast<const BFloat16*>(
      noted_.at({memory_node, lane}).places.at(piece - 1).data() + sizeof(plan::WindowHeader));
}

size_t UnitCluster::FetchedRoom(uint32_t memory_node, uint32_t lane, uint64_t piece) const {
  return noted_.at({memory_node, lane}).places.at(piece - 1).size() - sizeof(plan::WindowHeader);
}

uint64_t UnitCluster::LastFetched(uint32_t memory_node, uint32_t lane) const {
  return compute_[0]->region->LoadSignal(plan::FetchWindows(layout_).word(memory_node, lane));
}

void UnitCluster::AwaitFetched(uint32_t memory_node, uint32_t lane, uint64_t piece) {
  const Nanos deadline = RealClock().Now() + kLong;
  while (LastFetched(memory_node, lane) < piece && RealClock().Now() < deadline) {
    compute_[0]->transport->Progress();
    std::this_thread::yield();
  }
  ASSERT_GE(LastFetched(memory_node, lane), piece) << "did not come";
}

void UnitCluster::PutTokenSets(uint32_t memory_node, const Step& step,
                               const plan::WindowHeader& header,
                               const std::vector<uint64_t>& sets) {
  const plan::TokenSetWindows windows(layout_);
  // Sources of puts stay until the cluster goes.
  std::vector<std::byte>& bytes = token_sets_.emplace_back(sizeof(header) + 8 * sets.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), sets.data(), 8 * sets.size());
  transport::Transport& transport = *compute_[0]->transport;
  ASSERT_TRUE(transport.RegisterSource(bytes, transport::MemoryKind::kHost).ok());
  const transport::SignalUpdate signal{.word = windows.word(0, step.spec.lane),
                                       .value = step.spec.step};
  const absl::Status put = transport.Put(*compute_[0]->queries[memory_node],
                                         windows.Window(0, step.spec.lane), bytes, &signal);
  ASSERT_TRUE(put.ok()) << put;
  transport.Progress();
}

void UnitCluster::RaiseCredit(uint32_t memory_node, uint32_t lane, uint64_t pieces) {
  const transport::SignalUpdate credit{.word = plan::FetchWindows(layout_).credit_word(0, lane),
                                       .value = pieces};
  const absl::Status put =
      compute_[0]->transport->Put(*compute_[0]->queries[memory_node], 0, {}, &credit);
  ASSERT_TRUE(put.ok()) << put;
  compute_[0]->transport->Progress();
}

void UnitCluster::CopyKv(uint32_t sequence, uint32_t layer, uint32_t head, uint32_t tokens,
                         BFloat16* k, BFloat16* v) {
  const Extent slots{.first_slot = sequence * kContext, .tokens = tokens};
  ASSERT_TRUE(reference_->reads()->Load(layer, head, {&slots, 1}, 0, tokens, k, v).ok());
}

}  // namespace lamina::memory_node
