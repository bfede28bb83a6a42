// SPDX-License-Identifier: Apache-2.0
//
// What a memory node sends of tokens that the compute node names: every byte of every piece, of no
// other token, and nothing where the sets are wrong.

#include "memory_node/sparse_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "common/kv_form.h"
#include "kernels/int8_arena.h"
#include "kernels/k_tiles.h"
#include "plan/fetch_pieces.h"
#include "plan/fetch_split.h"
#include "plan/token_sets.h"
#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {
namespace {

using Step = UnitCluster::Step;
using ::testing::HasSubstr;

constexpr uint64_t kSlotBytes = 2 * 16 * 2;  // K and V of one head.
// Two windows for a lane and memory node: one head of the longest sequence fits.
constexpr uint64_t kLeast = 2 * (UnitCluster::kContext + plan::kFetchTile) * kSlotBytes;
constexpr BFloat16 kMine{.bits = 0xabcd};  // What the compute node has in its windows.

// The sets of a step for one memory node.
struct Chosen {
  std::vector<uint32_t> sequences;  // One for each of its rows.
  std::vector<plan::FetchRun> runs;
  std::vector<std::vector<uint32_t>> tokens;  // [layers * runs]
  std::vector<uint32_t> kept;                 // [layers * runs]
  std::vector<uint64_t> sets;                 // As they travel.
  plan::WindowHeader header;
};

// Every token before a row is chosen with this probability, of these the last ones, about a share
// `kept`, stay at the compute node; with INT8 whole blocks of them and the open one.
Chosen Choose(const UnitCluster& cluster, const Step& step, uint32_t node, double probability,
              std::mt19937& random, double kept = 0) {
  const bool int8 = cluster.config().int8_tails > 0;
  Chosen chosen;
  const auto nodes = static_cast<uint32_t>(cluster.config().memory_nodes.size());
  for (size_t row = 0; row < step.plan.rows.size(); ++row) {
    if (step.sequences[row] % nodes == node) {
      chosen.sequences.push_back(step.sequences[row]);
      chosen.runs.push_back({.before = step.positions[row], .tokens = 1});
    }
  }
  const auto layers = static_cast<uint32_t>(cluster.config().layers.size());
  const plan::TokenSets places(layers, chosen.runs);
  chosen.sets.resize(places.bytes() / sizeof(uint64_t));
  std::bernoulli_distribution taken(probability);
  for (uint32_t layer = 0; layer < layers; ++layer) {
    for (uint32_t run = 0; run < chosen.runs.size(); ++run) {
      std::vector<uint32_t>& tokens = chosen.tokens.emplace_back();
      const auto share = static_cast<uint32_t>((1 - kept) * chosen.runs[run].before);
      const uint32_t stay = int8 ? Int8TokensOf(share) : share;
      std::vector<uint64_t> kept_set(places.words());
      uint32_t& count = chosen.kept.emplace_back(0);
      for (uint32_t token = 0; token < chosen.runs[run].before; ++token) {
        if (!taken(random)) {
          continue;
        }
        if (kept > 0 && token >= stay) {
          ++count;
          kept_set[token / 64] |= uint64_t{1} << token % 64;
          continue;
        }
        tokens.push_back(token);
        chosen.sets[places.SetOf(layer, run) + token / 64] |= uint64_t{1} << token % 64;
      }
      chosen.sets[places.KeptOf(layer, run)] =
          int8 ? plan::Int8Tokens::Of(chosen.runs[run], kept_set).word() : count;
    }
  }
  chosen.header = {.lane = step.spec.lane,
                   .epoch = UnitCluster::kEpoch,
                   .step = step.spec.step,
                   .rows = static_cast<uint32_t>(chosen.runs.size())};
  plan::Seal(chosen.header);
  return chosen;
}

// Whether slot `slot` of a head's planes is the token, or zero where there is none.
void ExpectSlot(const BFloat16* k, const BFloat16* v, size_t slot, const BFloat16* whole_k,
                const BFloat16* whole_v, int64_t token) {
  constexpr size_t kDim = 16;
  for (size_t i = 0; i < kDim; ++i) {
    const BFloat16 zero;
    const auto from = static_cast<size_t>(token);
    const BFloat16 want_k = token < 0 ? zero : whole_k[kernels::OffsetInTiles(from, i, kDim)];
    const BFloat16 want_v = token < 0 ? zero : whole_v[from * kDim + i];
    ASSERT_EQ(k[kernels::OffsetInTiles(slot, i, kDim)].bits, want_k.bits)
        << "K of slot " << slot << " token " << token;
    ASSERT_EQ(v[slot * kDim + i].bits, want_v.bits) << "V of slot " << slot << " token " << token;
  }
}

// Takes the pieces of a step from `first` on, and gives each window back. A window has K and V of
// the chosen tokens in their order and zeros: of no other token. Slots of tokens that are kept are
// left alone. Returns how many pieces there were.
uint64_t ExpectPieces(UnitCluster& cluster, const Step& step, const Chosen& chosen, uint32_t node,
                      uint64_t first) {
  constexpr size_t kDim = 16;
  uint64_t next = first;
  for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
    const AttentionDescriptor& shape = cluster.config().layers[layer];
    std::vector<plan::FetchRun> runs;
    for (size_t run = 0; run < chosen.runs.size(); ++run) {
      const auto come =
          static_cast<uint32_t>(chosen.tokens[layer * chosen.runs.size() + run].size());
      const uint32_t kept = chosen.kept[layer * chosen.runs.size() + run];
      runs.push_back({.before = come + kept, .tokens = chosen.runs[run].tokens, .kept = kept});
    }
    std::vector<plan::FetchPiece> pieces;
    plan::PiecesOf(shape, runs, plan::FetchLimitsOf(cluster.config()), pieces);
    for (const plan::FetchPiece& piece : pieces) {
      cluster.AwaitPiece(node, step.spec.lane, next,
                         plan::PieceBytes(piece, kDim, /*activation_width=*/0));
      const BFloat16* const come = cluster.Fetched(node, step.spec.lane, next);
      size_t slot = 0;
      for (uint32_t head = 0; head < piece.heads.count; ++head) {
        for (size_t i = slot * kDim; i < (slot + piece.filled) * kDim; ++i) {
          EXPECT_EQ(come[i].bits, kMine.bits) << "K of a slot of another's";
          EXPECT_EQ(come[piece.elements(kDim) + i].bits, kMine.bits) << "V of a slot of another's";
        }
        slot += piece.filled;
        for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
          std::vector<BFloat16> k(size_t{UnitCluster::kContext} * kDim);
          std::vector<BFloat16> v(k.size());
          cluster.CopyKv(chosen.sequences[run], layer, piece.heads.first + head,
                         chosen.runs[run].before, k.data(), v.data());
          const std::vector<uint32_t>& tokens = chosen.tokens[layer * chosen.runs.size() + run];
          for (uint32_t i = 0; i < runs[run].slots(); ++i) {
            ExpectSlot(come, come + piece.elements(kDim), slot + i, k.data(), v.data(),
                       i < tokens.size() ? int64_t{tokens[i]} : -1);
          }
          slot += runs[run].slots();
        }
      }
      cluster.FillFetched(node, step.spec.lane, next, kMine);
      cluster.RaiseCredit(node, step.spec.lane, next++);
    }
  }
  return next - first;
}

TEST(SparseStreamTest, PiecesHaveTheChosenTokensAndZeros) {
  std::mt19937 random(3);
  for (const uint64_t bytes : {kLeast, 3 * kLeast, 16 * kLeast}) {
    UnitCluster cluster({.memory_nodes = 2, .fetch_bytes = 2 * bytes, .sparse = true});
    for (const uint32_t node : {0, 1}) {
      cluster.FillWindows(node, 0, kMine);  // What is not overwritten shows.
    }
    cluster.Start();
    cluster.Run({.step = 1, .prompts = {{0, 40}, {1, 700}, {2, 16}, {3, 129}}});
    uint64_t pieces[2] = {0, 0};
    uint64_t number = 2;
    for (const double probability : {0.5, 0.0, 1.0, 0.1, 0.9}) {
      const Step step =
          cluster.MakeStep({.step = number,
                            .rows = number % 2 == 0 ? std::vector<uint32_t>{1, 0, 2, 3}
                                                    : std::vector<uint32_t>{3, 0}});
      ++number;
      cluster.PushPlan(step);
      for (const uint32_t node : {0, 1}) {
        // Tokens are kept in every other step.
        const Chosen chosen =
            Choose(cluster, step, node, probability, random, number % 2 == 0 ? 0 : 0.7);
        cluster.PutTokenSets(node, step, chosen.header, chosen.sets);
        pieces[node] += ExpectPieces(cluster, step, chosen, node, pieces[node] + 1);
      }
      for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
        cluster.RunUnit(step, layer);
      }
    }
    EXPECT_GE(pieces[0], 10u);
    cluster.Stop();
  }
}

// All tokens of the node's spans before the rows come, but the last ones, a share `kept` of the
// sequence's.
Chosen TakeSpans(const UnitCluster& cluster, const Step& step, uint32_t node, double kept) {
  const plan::EpochConfig& config = cluster.config();
  const auto nodes = static_cast<uint32_t>(config.memory_nodes.size());
  const auto layers = static_cast<uint32_t>(config.layers.size());
  Chosen chosen;
  std::vector<uint32_t> starts;
  for (size_t row = 0; row < step.plan.rows.size(); ++row) {
    const uint32_t position = step.positions[row];
    const auto first_kept = static_cast<uint32_t>((1 - kept) * position);
    for (uint32_t span = 0; span * config.span_tokens <= position; ++span) {
      if ((step.sequences[row] + span) % nodes == node) {
        const plan::TokenSpan tokens = plan::SpanAt(config, span);
        chosen.sequences.push_back(step.sequences[row]);
        chosen.runs.push_back(plan::SplitKeptBySpan(position, 1, first_kept, tokens).run);
        starts.push_back(tokens.first);
      }
    }
  }
  const plan::TokenSets places(layers, chosen.runs);
  chosen.sets.resize(places.bytes() / sizeof(uint64_t));
  for (uint32_t layer = 0; layer < layers; ++layer) {
    for (uint32_t run = 0; run < chosen.runs.size(); ++run) {
      const uint32_t come = chosen.runs[run].fetched();
      plan::TakeFirst(
          come, absl::MakeSpan(chosen.sets).subspan(places.SetOf(layer, run), places.words()));
      chosen.sets[places.KeptOf(layer, run)] = chosen.runs[run].kept;
      chosen.kept.push_back(chosen.runs[run].kept);
      std::vector<uint32_t>& tokens = chosen.tokens.emplace_back(come);
      std::iota(tokens.begin(), tokens.end(), starts[run]);
    }
  }
  chosen.header = {.lane = step.spec.lane,
                   .epoch = UnitCluster::kEpoch,
                   .step = step.spec.step,
                   .rows = static_cast<uint32_t>(chosen.runs.size())};
  plan::Seal(chosen.header);
  for (size_t run = 0; run < starts.size(); ++run) {
    chosen.runs[run].before += starts[run];  // Tokens are the sequence's from now on.
  }
  return chosen;
}

// Those of its spans that the compute node does not have: of spans none, some and all.
TEST(SparseStreamTest, EachNodeSendsWhatIsNamedOfItsSpans) {
  UnitCluster cluster({.memory_nodes = 2,
                       .partition = Partition::kTokenRange,
                       .span_tokens = 256,
                       .fetch_bytes = kLeast,
                       .sparse = true});
  for (const uint32_t node : {0, 1}) {
    cluster.FillWindows(node, 0, kMine);
  }
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 300}, {1, 530}, {2, 5}}});
  uint64_t pieces[2] = {0, 0};
  uint64_t number = 2;
  for (const double kept : {0.0, 0.3, 0.6, 1.0}) {
    const Step step = cluster.MakeStep({.step = number++, .rows = {1, 0, 2}});
    cluster.PushPlan(step);
    for (const uint32_t node : {0, 1}) {
      const Chosen chosen = TakeSpans(cluster, step, node, kept);
      cluster.PutTokenSets(node, step, chosen.header, chosen.sets);
      pieces[node] += ExpectPieces(cluster, step, chosen, node, pieces[node] + 1);
    }
    for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
      cluster.RunUnit(step, layer);
    }
  }
  EXPECT_GE(pieces[0], 8u);
  EXPECT_GE(pieces[1], 8u);
  cluster.Stop();
}

// What a piece of INT8 has of a head of a run, from a sequence's K and V as they were sent: closed
// blocks quantised, of which the chosen tokens come with the scales of their blocks, bf16 of the
// open one, and zeros. Slots of tokens that are kept are left alone.
class Int8Wanted {
 public:
  Int8Wanted(const plan::FetchPiece& piece, uint32_t head_dim)
      : piece_(piece),
        dim_(head_dim),
        planes_(plan::PlanesOf(piece, head_dim)),
        bytes_(planes_.end) {}

  // Runs of the next head follow.
  void BeginHead() {
    const size_t scale = sizeof(kernels::Int8Scale);
    Leave(planes_.int8_k + int8_ * dim_, piece_.filled * dim_);
    Leave(planes_.int8_v + int8_ * dim_, piece_.filled * dim_);
    Leave(planes_.v_scales + int8_ * scale, piece_.filled * scale);
    const size_t share = Int8ScalesOfSlot(dim_) * scale;
    Leave(planes_.k_scales + scales_ * share, piece_.filled_scales * share);
    const size_t slot = dim_ * sizeof(BFloat16);
    Leave(planes_.k + open_ * slot, piece_.filled_open * slot);
    Leave(planes_.v + open_ * slot, piece_.filled_open * slot);
    int8_ += piece_.filled;
    scales_ += piece_.filled_scales;
    open_ += piece_.filled_open;
  }

  void Add(const plan::FetchRun& run, uint32_t before, const std::vector<uint32_t>& tokens,
           const std::vector<BFloat16>& k, const std::vector<BFloat16>& v) {
    const uint32_t closed_end = Int8TokensOf(before);
    const AttentionDescriptor one{.query_heads = 1, .kv_heads = 1, .head_dim = dim_};
    auto whole = *kernels::Int8Arena::Create({&one, 1}, UnitCluster::kContext);
    const Extent all{.first_slot = 0, .tokens = closed_end};
    for (uint32_t block = 0; block < closed_end; block += kInt8BlockTokens) {
      kernels::CloseInt8Block(one, {.k = k.data(), .v = v.data()}, block, {&all, 1}, block,
                              whole.View(0));
    }
    std::vector<Extent> closed;
    std::vector<Extent> blocks;
    std::vector<Extent> open;
    for (const uint32_t token : tokens) {
      (token < closed_end ? closed : open).push_back({.first_slot = token, .tokens = 1});
      if (token < closed_end &&
          (blocks.empty() || blocks.back().first_slot != Int8TokensOf(token))) {
        blocks.push_back({.first_slot = Int8TokensOf(token), .tokens = kInt8BlockTokens});
      }
    }
    kernels::LoadInt8(dim_, whole.View(0), closed, 0, static_cast<uint32_t>(closed.size()),
                      {.k = At<uint8_t>(planes_.int8_k, int8_ * dim_),
                       .v = At<uint8_t>(planes_.int8_v, int8_ * dim_),
                       .v_scales = At<kernels::Int8Scale>(planes_.v_scales, int8_)});
    kernels::LoadInt8(dim_, whole.View(0), blocks, 0,
                      static_cast<uint32_t>(blocks.size()) * kInt8BlockTokens,
                      {.k_scales = At<kernels::Int8Scale>(planes_.k_scales, scales_)});
    kernels::LoadKv(dim_, k.data(), v.data(), open, 0, static_cast<uint32_t>(open.size()),
                    At<BFloat16>(planes_.k, open_ * dim_), At<BFloat16>(planes_.v, open_ * dim_));
    int8_ += run.int8_slots() - run.filled_slots();
    scales_ += run.scale_slots() - run.filled_scales();
    open_ += run.tail_slots() - run.filled_open();
  }

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  template <typename T>
  T* At(size_t plane, size_t element) {
    return reinterpret_cast<T*>(bytes_.data() + plane) + element;
  }

  // Bytes of kMine.
  void Leave(size_t first, size_t count) {
    for (size_t at = first; at < first + count; ++at) {
      bytes_[at] = static_cast<std::byte>(kMine.bits >> (at % 2 * 8));
    }
  }

  const plan::FetchPiece& piece_;
  const uint32_t dim_;
  const plan::FetchPlanes planes_;
  std::vector<std::byte> bytes_;
  size_t int8_ = 0;  // Slots of what has been added.
  size_t scales_ = 0;
  size_t open_ = 0;
};

// Does what ExpectPieces() does, where slots are INT8.
uint64_t ExpectInt8Pieces(UnitCluster& cluster, const Step& step, const Chosen& chosen,
                          uint64_t first) {
  uint64_t next = first;
  const plan::TokenSets places(static_cast<uint32_t>(cluster.config().layers.size()), chosen.runs);
  for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
    const AttentionDescriptor& shape = cluster.config().layers[layer];
    std::vector<plan::FetchRun> runs;
    for (uint32_t run = 0; run < chosen.runs.size(); ++run) {
      runs.push_back(plan::ChosenRun(
          chosen.runs[run],
          absl::MakeConstSpan(chosen.sets).subspan(places.SetOf(layer, run), places.words()),
          chosen.sets[places.KeptOf(layer, run)], /*int8=*/true));
    }
    std::vector<plan::FetchPiece> pieces;
    plan::PiecesOf(shape, runs, plan::FetchLimitsOf(cluster.config()), pieces);
    for (const plan::FetchPiece& piece : pieces) {
      cluster.AwaitPiece(0, step.spec.lane, next,
                         plan::PieceBytes(piece, shape.head_dim, /*activation_width=*/0));
      Int8Wanted wanted(piece, shape.head_dim);
      for (uint32_t head = 0; head < piece.heads.count; ++head) {
        wanted.BeginHead();
        for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
          std::vector<BFloat16> k(size_t{UnitCluster::kContext} * shape.head_dim);
          std::vector<BFloat16> v(k.size());
          cluster.CopyKv(chosen.sequences[run], layer, piece.heads.first + head,
                         chosen.runs[run].before, k.data(), v.data());
          wanted.Add(runs[run], chosen.runs[run].before,
                     chosen.tokens[layer * chosen.runs.size() + run], k, v);
        }
      }
      EXPECT_EQ(std::memcmp(cluster.Fetched(0, step.spec.lane, next), wanted.bytes().data(),
                            wanted.bytes().size()),
                0)
          << "step " << step.spec.step << " layer " << layer << " piece " << next;
      cluster.FillFetched(0, step.spec.lane, next, kMine);
      cluster.RaiseCredit(0, step.spec.lane, next++);
    }
  }
  return next - first;
}

TEST(SparseStreamTest, ChosenTokensOfClosedBlocksComeAsInt8) {
  std::mt19937 random(4);
  for (const uint64_t bytes : {2 * kLeast, 16 * kLeast}) {
    UnitCluster cluster({.fetch_bytes = bytes, .sparse = true, .int8_tails = 5});
    cluster.FillWindows(0, 0, kMine);
    cluster.Start();
    cluster.Run({.step = 1, .prompts = {{0, 62}, {1, 700}, {2, 16}, {3, 129}}});
    uint64_t pieces = 0;
    uint64_t number = 2;
    // Sequence 0 fills a block.
    for (const double probability : {0.5, 0.0, 1.0, 0.1, 0.9, 0.02, 0.7, 1.0}) {
      const Step step = cluster.MakeStep({.step = number++, .rows = {1, 0, 2, 3}});
      cluster.PushPlan(step);
      // Tokens are kept in every other step: some, or all.
      const double kept = number % 2 == 0 ? 0 : number % 3 == 0 ? 1 : 0.5;
      const Chosen chosen = Choose(cluster, step, 0, probability, random, kept);
      cluster.PutTokenSets(0, step, chosen.header, chosen.sets);
      pieces += ExpectInt8Pieces(cluster, step, chosen, pieces + 1);
      for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
        cluster.RunUnit(step, layer);
      }
    }
    EXPECT_GE(pieces, 12u);
    cluster.Stop();
  }
}

// Nothing leaves before the sets have come, and other lanes are served meanwhile.
TEST(SparseStreamTest, NothingLeavesBeforeTheSetsAreThere) {
  UnitCluster cluster({.lanes = 2, .fetch_bytes = 2 * kLeast, .sparse = true});
  cluster.Start();
  cluster.Run({.lane = 0, .step = 1, .prompts = {{0, 700}}});
  const Step step = cluster.MakeStep({.lane = 0, .step = 2, .rows = {0}});
  cluster.PushPlan(step);
  cluster.Run({.lane = 1, .step = 1, .prompts = {{1, 9}}});
  cluster.AwaitTurns();
  EXPECT_EQ(cluster.LastFetched(0, 0), 0u);

  std::mt19937 random(1);
  const Chosen chosen = Choose(cluster, step, 0, 0.9, random);
  cluster.PutTokenSets(0, step, chosen.header, chosen.sets);
  cluster.AwaitFetched(0, 0, 2);
  cluster.AwaitTurns();
  EXPECT_EQ(cluster.LastFetched(0, 0), 2u);  // A third piece waits for the first one's credit.

  EXPECT_EQ(ExpectPieces(cluster, step, chosen, 0, 1), 6u);  // Three heads in each of two layers.
  cluster.Stop();
}

// A cluster whose first step with a row is about to be told of its sets.
class WrongSetsTest : public ::testing::Test {
 protected:
  explicit WrongSetsTest(uint32_t int8_tails = 0)
      : cluster_({.fetch_bytes = 4 * kLeast, .sparse = true, .int8_tails = int8_tails}) {}

  void SetUp() override {
    cluster_.Start();
    cluster_.Run({.step = 1, .prompts = {{0, 70}, {1, 90}}});
    step_ = cluster_.MakeStep({.step = 2, .rows = {0}});
    cluster_.PushPlan(step_);
    chosen_ = Choose(cluster_, step_, 0, 0.5, random_);
  }
  void ExpectRefused(const std::string& why) {
    cluster_.PutTokenSets(0, step_, chosen_.header, chosen_.sets);
    const absl::Status ended = cluster_.EndOf();
    EXPECT_THAT(std::string(ended.message()), HasSubstr(why));
    EXPECT_EQ(cluster_.LastFetched(0, 0), 0u) << "something was sent";
  }

  UnitCluster cluster_;
  std::mt19937 random_{2};
  Step step_;
  Chosen chosen_;
};

TEST_F(WrongSetsTest, TokensThatTheSequenceDoesNotHaveEndTheEpoch) {
  chosen_.sets[1] |= uint64_t{1} << (70 - 64);  // The row's own token, which is the first such one.
  ExpectRefused("run 0 name tokens that it does not have before it: there are 70");
}

TEST_F(WrongSetsTest, MoreTokensThanTheSequenceHasEndTheEpoch) {
  chosen_.sets[2] = 70;  // As many are kept, and some have to come.
  ExpectRefused("and keep 70 of the 70 before it");
}

TEST_F(WrongSetsTest, SoManyThatTheyOverflowEndTheEpoch) {
  chosen_.sets[2] = UINT64_MAX;
  ExpectRefused("and keep 18446744073709551615 of the 70 before it");
}

// With INT8 the 70 tokens are a closed block and six of the open one.
class WrongInt8SetsTest : public WrongSetsTest {
 protected:
  WrongInt8SetsTest() : WrongSetsTest(/*int8_tails=*/5) {}

  void ExpectRefusedWith(const plan::Int8Tokens& kept, const std::string& why) {
    chosen_.sets[2] = kept.word();
    ExpectRefused(why);
  }
};

TEST_F(WrongInt8SetsTest, OpenTokensThatComeNextToKeptOnesEndTheEpoch) {
  chosen_.sets[0] = 0;
  chosen_.sets[1] = 1;
  ExpectRefusedWith({.closed = 3, .blocks = 1},
                    "name 1 tokens and keep 3 of 1 blocks and 0 of the");
}

TEST_F(WrongInt8SetsTest, MoreBlocksThanTheSequenceHasEndTheEpoch) {
  chosen_.sets[0] = 1;
  chosen_.sets[1] = 0;
  ExpectRefusedWith({.closed = 3, .blocks = 1, .open = 2}, "of the 70 before 1 rows");
}

TEST_F(WrongInt8SetsTest, MoreTokensThanBlocksHaveEndTheEpoch) {
  chosen_.sets[0] = 0;
  chosen_.sets[1] = 0;
  ExpectRefusedWith({.closed = 65, .blocks = 1}, "keep 65 of 1 blocks");
}

TEST_F(WrongInt8SetsTest, MoreOpenTokensThanTheSequenceHasEndTheEpoch) {
  chosen_.sets[0] = 0;
  chosen_.sets[1] = 0;
  ExpectRefusedWith({.open = 7}, "and 7 of the open one");
}

TEST_F(WrongSetsTest, SetsOfAnotherStepEndTheEpoch) {
  chosen_.header.step = 1;
  plan::Seal(chosen_.header);
  ExpectRefused("step 1 where the plan says 2");
}

TEST_F(WrongSetsTest, SetsOfMoreRunsEndTheEpoch) {
  chosen_.header.rows = 2;
  plan::Seal(chosen_.header);
  ExpectRefused("rows 2 where the plan says 1");
}

TEST_F(WrongSetsTest, AHeaderThatChangedOnTheWayEndsTheEpoch) {
  chosen_.header.rows ^= 2;
  ExpectRefused("window of lane 0 step 2 layer 0: its header changed on the way");
  EXPECT_EQ(cluster_.Refused("damaged"), 1u);
}

}  // namespace
}  // namespace lamina::memory_node
