// SPDX-License-Identifier: Apache-2.0
//
// Conformance: 100,000 seeded random operations against a model.
//
// Method: one thread drives a few nodes, each with a Transport, a Region and a view of every other
// node's Region. A round is a handful of Puts, with bounds errors among them, to ranges that no
// other Put of the round touches; every Put of a sender to a peer is then covered by one
// signal, and once all of them have come, each region must equal its model. Between rounds nodes
// restart with a new Region, and views are closed and opened anew.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/conformance/transport_test.h"

namespace lamina::transport {
namespace {

constexpr size_t kNodes = 4;
constexpr size_t kCells = 32;
constexpr size_t kCellBytes = 700;
constexpr size_t kRegionBytes = kCells * kCellBytes;
// Each sender has two words: 2s carries signals of Puts, 2s + 1 ends its rounds.
constexpr uint32_t kWords = 2 * kNodes;
constexpr uint64_t kOperations = 100'000;

struct Range {
  size_t begin;
  size_t size;
};

struct Node {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Region> region;
  uint64_t epoch = 0;
  std::vector<std::byte> model;
  std::vector<uint64_t> words;  // What every signal word must show at the end of a round.
  std::map<size_t, std::unique_ptr<RemoteRegion>> views;  // By node.
  absl::Span<std::byte> source;
  std::set<size_t> cells_used;                     // In this round.
  std::array<std::vector<Range>, kNodes> written;  // In this round, by sender.
};

class World {
 public:
  World(const MakeTransportFn& make, MemoryKind kind, std::vector<std::vector<std::byte>>& sources,
        uint64_t seed)
      : make_(make), kind_(kind), prng_(seed), nodes_(kNodes) {
    for (size_t i = 0; i < kNodes; ++i) {
      nodes_[i].transport = make_();
      sources.push_back(Pattern(1 << 16, i));
      nodes_[i].source = absl::MakeSpan(sources.back());
      EXPECT_TRUE(nodes_[i].transport->RegisterSource(nodes_[i].source, MemoryKind::kHost).ok());
      MakeRegionAnew(nodes_[i]);
    }
    OpenMissingViews();
  }

  uint64_t operations() const { return operations_; }

  // One round; stops at the first failure.
  void Round() {
    for (Node& node : nodes_) {
      node.cells_used.clear();
      node.written = {};
    }
    for (uint64_t puts = 1 + prng_.Below(40); puts > 0; --puts) {
      ASSERT_NO_FATAL_FAILURE(RandomPut());
    }
    ASSERT_NO_FATAL_FAILURE(EndRound());
    ASSERT_NO_FATAL_FAILURE(CompareWithModel());
    Churn();
  }

 private:
  void MakeRegionAnew(Node& node) {
    node.region.reset();
    ++node.epoch;
    auto region = node.transport->CreateRegion({.name = "random",
                                                .bytes = kRegionBytes,
                                                .signal_words = kWords,
                                                .kind = kind_,
                                                .epoch = node.epoch});
    ASSERT_TRUE(region.ok()) << region.status();
    node.region = std::move(region).value();
    node.model.assign(kRegionBytes, std::byte{0});
    node.words.assign(kWords, 0);
  }

  void OpenMissingViews() {
    for (Node& node : nodes_) {
      for (size_t peer = 0; peer < kNodes; ++peer) {
        if (!node.views.contains(peer)) {
          auto view =
              node.transport->OpenRegion(nodes_[peer].region->Descriptor(), nodes_[peer].epoch);
          ASSERT_TRUE(view.ok()) << view.status();
          node.views[peer] = std::move(view).value();
        }
      }
    }
  }

  void ProgressAll() {
    for (Node& node : nodes_) {
      node.transport->Progress();
    }
  }

  // Puts until it is accepted; every try counts as an operation.
  absl::Status Put(size_t from, size_t to, size_t offset, absl::Span<const std::byte> source,
                   const SignalUpdate* signal) {
    for (const Nanos deadline = Soon(); RealClock().Now() < deadline; ProgressAll()) {
      ++operations_;
      absl::Status status =
          nodes_[from].transport->Put(*nodes_[from].views[to], offset, source, signal);
      if (!absl::IsResourceExhausted(status)) {
        return status;
      }
    }
    return absl::DeadlineExceededError("the queue stayed full");
  }

  void RandomPut() {
    const size_t from = prng_.Below(kNodes);
    const size_t to = prng_.Below(kNodes);
    Node& target = nodes_[to];
    const size_t cell = prng_.Below(kCells);
    const size_t size = prng_.Below(kCellBytes + 1);
    const size_t offset = cell * kCellBytes + prng_.Below(kCellBytes - size + 1);
    const auto source =
        nodes_[from].source.subspan(prng_.Below(nodes_[from].source.size() - size + 1), size);
    if (prng_.Chance(0.05)) {
      const SignalUpdate bad = Signal(kWords + static_cast<uint32_t>(from), 1);
      ASSERT_TRUE(absl::IsInvalidArgument(Put(from, to, offset, source, &bad)));
      ASSERT_TRUE(absl::IsInvalidArgument(Put(from, to, kRegionBytes + 1, source, nullptr)));
      return;
    }
    if (!target.cells_used.insert(cell).second) {
      ProgressAll();
      return;
    }
    const auto word = static_cast<uint32_t>(2 * from);
    const SignalUpdate signal = {.word = word, .value = target.words[word] + 1 + prng_.Below(5)};
    const bool with_signal = prng_.Chance(0.5);
    const absl::Status status = Put(from, to, offset, source, with_signal ? &signal : nullptr);
    ASSERT_TRUE(status.ok()) << status;
    std::copy(source.begin(), source.end(), target.model.begin() + static_cast<long>(offset));
    target.written[from].push_back({offset, size});
    target.words[word] = with_signal ? signal.value : target.words[word];
  }

  void EndRound() {
    for (size_t from = 0; from < kNodes; ++from) {
      for (size_t to = 0; to < kNodes; ++to) {
        const auto word = static_cast<uint32_t>(2 * from + 1);
        const SignalUpdate signal = Signal(word, ++nodes_[to].words[word]);
        const absl::Status status = Put(from, to, 0, {}, &signal);
        ASSERT_TRUE(status.ok()) << status;
      }
    }
    size_t missing = kNodes * kNodes;
    std::array<std::array<bool, kNodes>, kNodes> seen = {};
    for (const Nanos deadline = Soon(); missing > 0;) {
      ASSERT_LT(RealClock().Now(), deadline);
      // One at a time: what a signal covers must be there the moment it shows.
      nodes_[prng_.Below(kNodes)].transport->Progress();
      for (size_t to = 0; to < kNodes; ++to) {
        for (size_t from = 0; from < kNodes; ++from) {
          const auto word = static_cast<uint32_t>(2 * from + 1);
          if (!seen[to][from] && nodes_[to].region->LoadSignal(word) >= nodes_[to].words[word]) {
            ASSERT_TRUE(HasWritten(nodes_[to], from))
                << kNeverRetried << " from " << from << " to " << to;
            seen[to][from] = true;
            --missing;
          }
        }
      }
    }
  }

  static bool HasWritten(Node& node, size_t from) {
    return std::all_of(node.written[from].begin(), node.written[from].end(),
                       [&](const Range& range) {
                         const auto bytes = Arrived(*node.region, range.begin, range.size);
                         return std::equal(bytes.begin(), bytes.end(),
                                           node.model.begin() + static_cast<long>(range.begin));
                       });
  }

  void CompareWithModel() {
    for (Node& node : nodes_) {
      const auto bytes = Arrived(*node.region);
      ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), node.model.begin())) << kNeverRetried;
      for (uint32_t word = 0; word < kWords; ++word) {
        // The words of other signals are not covered by those that end rounds: they come in time.
        for (const Nanos deadline = Soon(); node.region->LoadSignal(word) < node.words[word];) {
          ASSERT_LT(RealClock().Now(), deadline);
          ProgressAll();
        }
        ASSERT_EQ(node.region->LoadSignal(word), node.words[word]);
      }
    }
  }

  void Churn() {
    if (prng_.Chance(0.05)) {
      const size_t restarted = prng_.Below(kNodes);
      MakeRegionAnew(nodes_[restarted]);
      for (Node& node : nodes_) {
        RemoteRegion& stale = *node.views[restarted];
        ++operations_;
        EXPECT_TRUE(absl::IsUnavailable(node.transport->Put(stale, 0, {}, nullptr)));
        node.views.erase(restarted);
      }
    }
    if (prng_.Chance(0.05)) {
      nodes_[prng_.Below(kNodes)].views.erase(prng_.Below(kNodes));
    }
    OpenMissingViews();
  }

  const MakeTransportFn& make_;
  const MemoryKind kind_;
  Prng prng_;
  std::vector<Node> nodes_;
  uint64_t operations_ = 0;
};

TEST_P(TransportTest, RandomOperationsAgreeWithTheModel) {
  const MakeTransportFn make = GetParam().open(device());
  uint64_t operations = 0;
  for (uint64_t seed = 100; operations < Repeats(kOperations); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::vector<std::vector<std::byte>> sources;
    World world(make, kind(), sources, seed);
    for (int round = 0; round < 100; ++round) {
      ASSERT_NO_FATAL_FAILURE(world.Round());
    }
    operations += world.operations();
  }
}

}  // namespace
}  // namespace lamina::transport
