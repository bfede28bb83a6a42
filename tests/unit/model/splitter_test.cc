// SPDX-License-Identifier: Apache-2.0
#include "model/splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/philox.h"

namespace lamina::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kWidth = 64;
constexpr uint32_t kFfn = 160;
constexpr AttentionDescriptor kHeads = {
    .query_heads = 4, .kv_heads = 2, .head_dim = 16, .scale = 0.25f};

// Blocks of a decoder, on top of GraphBuilder.
class ModelWriter {
 public:
  ValueId Embed() { return b_.Embed("embed", Matrix("embed", 96, kWidth), kWidth); }

  ValueId Positions(ValueId in) {
    return b_.PositionEmbed("positions", in, Matrix("positions", 32, b_.graph().values[in].width));
  }

  void Layer(uint32_t layer) {
    layer_ = layer;
    b_.SetScope(absl::StrCat("layers.", layer, "."));
  }

  ValueId Norm(absl::string_view name, ValueId in) {
    return b_.Norm(name, in, {.weight = Matrix("gain", 1, b_.graph().values[in].width)});
  }

  ValueId Attend(ValueId normed) {
    const ValueId qkv = Linear("qkv", normed, kHeads.qkv_width());
    const ValueId row = b_.Rope("rope", qkv, {.heads = 6, .head_dim = 16});
    const ValueId out = b_.Attention("attention", row, {.layer = layer_, .descriptor = kHeads});
    return Linear("out", b_.Convert("attended", out), kWidth);
  }

  ValueId GatedMlp(ValueId normed) {
    const ValueId up = Linear("gate_up", normed, 2 * kFfn);
    return Linear("down", b_.Activation("activation", up, {.gated = true}), kWidth);
  }

  ValueId PlainMlp(ValueId normed, uint32_t width = kWidth) {
    const ValueId up = Linear("up", normed, kFfn);
    return Linear("down", b_.Activation("activation", up, {}), width);
  }

  ValueId Linear(absl::string_view name, ValueId in, uint32_t out_width) {
    const uint32_t in_width = b_.graph().values[in].width;
    return b_.Linear(name, in, {{.weight = Matrix(name, out_width, in_width)}});
  }

  ValueId Add(absl::string_view name, std::vector<ValueId> in) {
    return b_.Add(name, std::move(in));
  }

  Graph Finish(ValueId residual) {
    b_.SetScope("");
    const ValueId logits = Linear("head", Norm("final_norm", residual), 96);
    absl::StatusOr<Graph> graph = std::move(b_).Finish(logits);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }

  const Graph& graph() const { return b_.graph(); }

 private:
  WeightId Matrix(absl::string_view name, uint32_t rows, uint32_t cols) {
    return b_.AddWeight({.name = std::string(name), .rows = rows, .cols = cols});
  }

  GraphBuilder b_;
  uint32_t layer_ = 0;
};

Graph LlamaLike(uint32_t layers) {
  ModelWriter m;
  ValueId x = m.Embed();
  for (uint32_t layer = 0; layer < layers; ++layer) {
    m.Layer(layer);
    const ValueId middle = m.Add("middle", {x, m.Attend(m.Norm("norm1", x))});
    x = m.Add("residual", {middle, m.GatedMlp(m.Norm("norm2", middle))});
  }
  return m.Finish(x);
}

Graph OptLike(uint32_t layers) {
  ModelWriter m;
  ValueId x = m.Positions(m.Embed());
  for (uint32_t layer = 0; layer < layers; ++layer) {
    m.Layer(layer);
    const ValueId middle = m.Add("middle", {x, m.Attend(m.Norm("norm1", x))});
    x = m.Add("residual", {middle, m.PlainMlp(m.Norm("norm2", middle))});
  }
  return m.Finish(x);
}

// x + mlp(x) is added first: it is as wide as x and can be ready when attention comes back.
Graph NeoxLike(uint32_t layers) {
  ModelWriter m;
  ValueId x = m.Embed();
  for (uint32_t layer = 0; layer < layers; ++layer) {
    m.Layer(layer);
    const ValueId attended = m.Attend(m.Norm("norm1", x));
    const ValueId overlapped = m.Add("overlapped", {x, m.PlainMlp(m.Norm("norm2", x))});
    x = m.Add("residual", {overlapped, attended});
  }
  return m.Finish(x);
}

SplitModel Split(const Graph& graph) {
  absl::StatusOr<SplitModel> split = SplitAtAttention(graph);
  EXPECT_TRUE(split.ok()) << split.status();
  return *std::move(split);
}

std::vector<std::string> OpNames(const Graph& graph, const Slice& slice, size_t first, size_t end) {
  std::vector<std::string> names;
  for (size_t i = first; i < end; ++i) {
    names.push_back(graph.ops[slice.ops[i]].name);
  }
  return names;
}

std::vector<std::string> ContextNames(const Graph& graph, const Slice& slice) {
  std::vector<std::string> names;
  for (const ValueId value : slice.context) {
    names.push_back(graph.values[value].name);
  }
  return names;
}

TEST(SplitterTest, LlamaCarriesTheResidualStreamAlone) {
  const Graph graph = LlamaLike(3);
  const SplitModel split = Split(graph);

  ASSERT_EQ(split.slices.size(), 4u);
  EXPECT_THAT(ContextNames(graph, split.slices[0]), ElementsAre("embed"));
  EXPECT_THAT(ContextNames(graph, split.slices[1]), ElementsAre("layers.0.residual"));
  EXPECT_THAT(ContextNames(graph, split.slices[2]), ElementsAre("layers.1.residual"));
  EXPECT_THAT(split.slices[3].context, ElementsAre());
  for (uint32_t slice = 0; slice < 3; ++slice) {
    EXPECT_EQ(split.ContextBytesPerToken(graph, slice), kWidth * sizeof(float));
    EXPECT_EQ(split.slices[slice].ops_before_send, split.slices[slice].ops.size());
    EXPECT_EQ(graph.ops[split.slices[slice].attention].name,
              absl::StrCat("layers.", slice, ".attention"));
  }
  EXPECT_EQ(split.ContextBytesPerToken(graph, 3), 0u);
}

TEST(SplitterTest, LlamaSlicesRunFromOneAttentionToTheNext) {
  const Graph graph = LlamaLike(2);
  const SplitModel split = Split(graph);

  EXPECT_THAT(OpNames(graph, split.slices[0], 0, split.slices[0].ops.size()),
              ElementsAre("embed", "layers.0.norm1", "layers.0.qkv", "layers.0.rope"));
  EXPECT_THAT(OpNames(graph, split.slices[1], 0, split.slices[1].ops.size()),
              ElementsAre("layers.0.attended", "layers.0.out", "layers.0.middle", "layers.0.norm2",
                          "layers.0.gate_up", "layers.0.activation", "layers.0.down",
                          "layers.0.residual", "layers.1.norm1", "layers.1.qkv", "layers.1.rope"));
  EXPECT_EQ(OpNames(graph, split.slices[2], 0, split.slices[2].ops.size()).back(), "head");
  EXPECT_EQ(split.slices[2].attention, kNone);
  EXPECT_EQ(split.slices[2].ops_before_send, split.slices[2].ops.size());
}

TEST(SplitterTest, OptCarriesTheResidualStreamAlone) {
  const Graph graph = OptLike(3);
  const SplitModel split = Split(graph);

  EXPECT_THAT(ContextNames(graph, split.slices[0]), ElementsAre("positions"));
  EXPECT_THAT(ContextNames(graph, split.slices[1]), ElementsAre("layers.0.residual"));
  EXPECT_EQ(split.ContextBytesPerToken(graph, 0), kWidth * sizeof(float));
  EXPECT_EQ(split.ContextBytesPerToken(graph, 2), kWidth * sizeof(float));
}

TEST(SplitterTest, NeoxOverlapsItsMlpWithTheAttention) {
  const Graph graph = NeoxLike(2);
  const SplitModel split = Split(graph);

  for (uint32_t k = 0; k < 2; ++k) {
    const Slice& slice = split.slices[k];
    const std::string scope = absl::StrCat("layers.", k, ".");
    EXPECT_THAT(ContextNames(graph, slice), ElementsAre(scope + "overlapped"));
    EXPECT_EQ(split.ContextBytesPerToken(graph, k), kWidth * sizeof(float));
    EXPECT_EQ(OpNames(graph, slice, 0, slice.ops_before_send).back(), scope + "rope");
    EXPECT_THAT(OpNames(graph, slice, slice.ops_before_send, slice.ops.size()),
                ElementsAre(scope + "norm2", scope + "up", scope + "activation", scope + "down",
                            scope + "overlapped"));
  }
}

TEST(SplitterTest, AValueWithManyConsumersIsCarriedOnce) {
  // An Add with the residual stream three times after the attention.
  ModelWriter m;
  const ValueId x = m.Embed();
  m.Layer(0);
  const ValueId attended = m.Attend(m.Norm("norm1", x));
  const ValueId middle = m.Add("middle", {x, attended, x});
  const Graph graph = m.Finish(m.Add("residual", {middle, x}));

  const SplitModel split = Split(graph);

  EXPECT_EQ(split.ContextBytesPerToken(graph, 0), kWidth * sizeof(float));
}

TEST(SplitterTest, WhatOnlyALaterSliceNeedsIsMadeThere) {
  // A second embedding that joins behind the attention depends on nothing, so it costs nothing
  // there and would cost its width here.
  ModelWriter m;
  const ValueId x = m.Embed();
  const ValueId other = m.Embed();
  m.Layer(0);
  const ValueId middle = m.Add("middle", {x, m.Attend(m.Norm("norm1", x))});
  const Graph graph = m.Finish(m.Add("residual", {middle, other}));

  const SplitModel split = Split(graph);

  EXPECT_EQ(split.slices[0].context, std::vector<ValueId>{x});
  const OpId embed = graph.values[other].producer;
  EXPECT_THAT(split.slices[1].ops, ::testing::Contains(embed));
}

TEST(SplitterTest, WhatAnEarlierAttentionMadeIsCarriedAtItsNarrowest) {
  // Two attentions over the same input; what the first one made is 16 wide between two ops, and
  // narrowest behind the norm, in the compute type.
  ModelWriter m;
  const ValueId x = m.Embed();
  m.Layer(0);
  const ValueId narrow = m.Linear("narrow", m.Norm("norm2", m.Attend(m.Norm("norm1", x))), 16);
  m.Layer(1);
  const ValueId attended = m.Attend(m.Norm("norm1", x));
  const ValueId widened = m.Linear("widened", m.Norm("norm2", narrow), kWidth);
  const Graph graph = m.Finish(m.Add("residual", {x, attended, widened}));

  const SplitModel split = Split(graph);

  EXPECT_THAT(ContextNames(graph, split.slices[1]), ElementsAre("embed", "layers.1.norm2"));
  EXPECT_EQ(OpNames(graph, split.slices[1], 0, split.slices[1].ops_before_send),
            (std::vector<std::string>{"layers.1.norm1", "layers.1.qkv", "layers.1.rope"}));
}

TEST(SplitterTest, TheHeadIsInTheLastSliceEvenWhenNothingTiesItToAttention) {
  ModelWriter m;
  const ValueId x = m.Embed();
  m.Layer(0);
  m.Attend(m.Norm("norm1", x));
  const Graph graph = m.Finish(x);

  const SplitModel split = Split(graph);

  EXPECT_EQ(graph.ops[split.slices[1].ops.back()].name, "head");
}

TEST(SplitterTest, WithoutAttentionEverythingIsOneSlice) {
  ModelWriter m;
  const Graph graph = m.Finish(m.Embed());

  const SplitModel split = Split(graph);

  ASSERT_EQ(split.slices.size(), 1u);
  EXPECT_EQ(split.slices[0].ops.size(), graph.ops.size());
  EXPECT_EQ(split.slices[0].attention, kNone);
}

TEST(SplitterTest, RefusesAGraphThatIsNotValid) {
  Graph graph = LlamaLike(1);
  graph.logits = kNone;
  EXPECT_EQ(SplitAtAttention(graph).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SplitterTest, RefusesAnAttentionThatNeedsTheHead) {
  Graph graph = LlamaLike(1);
  for (const Op& op : graph.ops) {
    if (op.name == "layers.0.qkv") {
      graph.logits = op.output;
    }
  }

  const absl::Status status = SplitAtAttention(graph).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("op layers.0.attention: no cut"));
}

TEST(SplitterTest, SplitsTheDeepestModelsInReasonableTime) {
  const Graph graph = LlamaLike(128);
  const SplitModel split = Split(graph);
  for (uint32_t slice = 0; slice < 128; ++slice) {
    ASSERT_EQ(split.ContextBytesPerToken(graph, slice), kWidth * sizeof(float));
  }
}

// A random graph of sums, MLPs and at most `attentions` attentions over values of a few widths.
Graph RandomModel(Prng& prng, uint32_t steps, uint32_t attentions) {
  ModelWriter m;
  std::vector<ValueId> pool = {m.Embed()};
  auto pick = [&] { return pool[prng.Below(pool.size())]; };
  uint32_t layer = 0;
  for (uint32_t step = 0; step < steps; ++step) {
    const uint64_t kind = prng.Below(4);
    const ValueId in = pick();
    if (kind == 0 && layer < attentions) {
      m.Layer(layer++);
      pool.push_back(m.Attend(m.Norm("norm", in)));
    } else if (kind == 1) {
      const uint32_t width =
          prng.Chance(0.5) ? kWidth : 16 * (1 + static_cast<uint32_t>(prng.Below(3)));
      pool.push_back(m.Linear("linear", m.Norm("norm", in), width));
    } else {
      const ValueId other = pick();
      if (m.graph().values[in].width == m.graph().values[other].width) {
        pool.push_back(m.Add("sum", {in, other}));
      }
    }
  }
  return m.Finish(pool.back());
}

// For each op the index of its slice, or of the slice that its attention ends.
std::vector<uint32_t> SliceOfOps(const Graph& graph, const SplitModel& split) {
  std::vector<uint32_t> slice_of(graph.ops.size(), UINT32_MAX);
  for (uint32_t k = 0; k < split.slices.size(); ++k) {
    for (const OpId op : split.slices[k].ops) {
      EXPECT_EQ(slice_of[op], UINT32_MAX) << graph.ops[op].name << " is in two slices";
      slice_of[op] = k;
    }
  }
  return slice_of;
}

void RunOps(const Graph& graph, const std::vector<OpId>& ops, size_t first, size_t end,
            std::vector<bool>& made) {
  for (size_t i = first; i < end; ++i) {
    for (const ValueId input : graph.ops[ops[i]].inputs) {
      EXPECT_TRUE(made[input]) << graph.ops[ops[i]].name << " uses " << graph.values[input].name;
    }
    made[graph.ops[ops[i]].output] = true;
  }
}

// Walks the slices as an executor does: what is sent is made before the send, what overlaps with an
// attention does not need its output, and nothing but the context survives it.
void CheckExecution(const Graph& graph, const SplitModel& split) {
  std::vector<bool> made(graph.values.size(), false);
  for (const Slice& slice : split.slices) {
    RunOps(graph, slice.ops, 0, slice.ops_before_send, made);
    if (slice.attention == kNone) {
      break;
    }
    const Op& attention = graph.ops[slice.attention];
    EXPECT_TRUE(made[attention.inputs.front()]) << attention.name << " is sent too early";
    RunOps(graph, slice.ops, slice.ops_before_send, slice.ops.size(), made);
    std::vector<bool> kept(graph.values.size(), false);
    for (const ValueId value : slice.context) {
      EXPECT_TRUE(made[value]);
      kept[value] = true;
    }
    kept[attention.output] = true;
    made = std::move(kept);
  }
  EXPECT_TRUE(made[graph.logits]);
}

// The context is exactly what is made in slices <= k and used in slices > k.
void CheckContexts(const Graph& graph, const SplitModel& split) {
  const std::vector<uint32_t> slice_of = SliceOfOps(graph, split);
  for (uint32_t k = 0; k + 1 < split.slices.size(); ++k) {
    std::vector<bool> crosses(graph.values.size(), false);
    for (OpId op = 0; op < graph.ops.size(); ++op) {
      uint32_t user = slice_of[op];
      for (uint32_t j = 0; j + 1 < split.slices.size(); ++j) {
        user = split.slices[j].attention == op ? j : user;
      }
      for (const ValueId input : graph.ops[op].inputs) {
        const OpId producer = graph.values[input].producer;
        bool made = slice_of[producer] != UINT32_MAX && slice_of[producer] <= k;
        for (uint32_t j = 0; j < k; ++j) {
          made = made || split.slices[j].attention == producer;
        }
        crosses[input] = crosses[input] || (made && user > k);
      }
    }
    std::vector<ValueId> expected;
    for (ValueId value = 0; value < graph.values.size(); ++value) {
      if (crosses[value]) {
        expected.push_back(value);
      }
    }
    EXPECT_EQ(split.slices[k].context, expected) << "attention " << k;
  }
}

TEST(SplitterPropertyTest, SlicesOfRandomModelsRunInOrderWithTheirContextsAlone) {
  uint64_t attentions = 0;
  for (uint64_t seed = 0; seed < 2000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Prng prng(seed);
    const Graph graph = RandomModel(prng, 4 + static_cast<uint32_t>(prng.Below(40)), 6);

    const absl::StatusOr<SplitModel> split = SplitAtAttention(graph);

    ASSERT_TRUE(split.ok()) << split.status();
    ASSERT_EQ(split->slices.size(), graph.attention_count() + 1);
    size_t ops = graph.attention_count();
    for (const Slice& slice : split->slices) {
      ops += slice.ops.size();
    }
    ASSERT_EQ(ops, graph.ops.size());
    CheckExecution(graph, *split);
    CheckContexts(graph, *split);
    attentions += graph.attention_count();
  }
  EXPECT_GE(attentions, 4000u);
}

uint32_t Bit(OpId op) { return 1u << op; }

// The least bytes carried across attention `k` over all closed cuts that the earlier slices leave
// open, by enumeration.
uint64_t LeastContext(const Graph& graph, const SplitModel& split, uint32_t k) {
  const uint32_t ops = static_cast<uint32_t>(graph.ops.size());
  std::vector<uint32_t> inputs(ops);
  uint32_t never = Bit(graph.values[graph.logits].producer);
  for (OpId op = 0; op < ops; ++op) {
    for (const ValueId input : graph.ops[op].inputs) {
      inputs[op] |= Bit(graph.values[input].producer);
    }
    never |= std::holds_alternative<AttentionOp>(graph.ops[op].body) ? Bit(op) : 0;
  }
  const OpId attention = split.slices[k].attention;
  uint32_t always = inputs[attention];
  for (uint32_t j = 0; j < k; ++j) {
    always |= Bit(split.slices[j].attention);
    never &= ~Bit(split.slices[j].attention);
    for (const OpId op : split.slices[j].ops) {
      always |= Bit(op);
    }
  }
  uint64_t least = UINT64_MAX;
  for (uint32_t before = 0; before < Bit(ops); ++before) {
    uint32_t needed_before = always;
    uint32_t needed_after = 0;
    for (OpId op = 0; op < ops; ++op) {
      ((before & Bit(op)) != 0 ? needed_before : needed_after) |= op == attention ? 0 : inputs[op];
    }
    if ((needed_before & ~before) != 0 || (before & never) != 0) {
      continue;
    }
    uint64_t bytes = 0;
    for (OpId op = 0; op < ops; ++op) {
      const bool carried = (before & needed_after & Bit(op)) != 0;
      bytes += carried ? graph.values[graph.ops[op].output].bytes_per_token() : 0;
    }
    least = std::min(least, bytes);
  }
  return least;
}

TEST(SplitterPropertyTest, ContextsOfSmallRandomModelsAreMinimal) {
  uint32_t checked = 0;
  for (uint64_t seed = 0; checked < 80; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Prng prng(seed);
    const Graph graph = RandomModel(prng, 8, 2);
    if (graph.attention_count() == 0 || graph.ops.size() > 17) {
      continue;
    }

    const SplitModel split = Split(graph);

    for (uint32_t k = 0; k < graph.attention_count(); ++k) {
      ASSERT_EQ(split.ContextBytesPerToken(graph, k), LeastContext(graph, split, k)) << k;
      ++checked;
    }
  }
}

}  // namespace
}  // namespace lamina::model
