// SPDX-License-Identifier: Apache-2.0
//
// The minimum cut is a maximum flow on this network, made for a CutProblem:
//
//   in(u) -> out(u)    weight of u   cutting it carries u's output across, however many consumers
//   out(u) -> in(v)    infinite      u feeds v: if v is after the cut, u's output is carried
//   in(v) -> in(u)     infinite      u feeds v: if v is before the cut, so is u
//
// Node u is before the cut when in(u) is on the source's side. Without the third kind of arc the
// cut would be empty: the residual stream leaves the graph from an ancestor of q, k and v.

#include "model/splitter.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/boykov_kolmogorov_max_flow.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::model {
namespace {

using FlowTraits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::bidirectionalS>;
struct FlowVertex {
  FlowTraits::edge_descriptor predecessor;
  boost::default_color_type color = boost::white_color;
  int64_t distance = 0;
};
struct FlowEdge {
  int64_t capacity = 0;
  int64_t residual = 0;
  FlowTraits::edge_descriptor reverse;
};
using FlowGraph =
    boost::adjacency_list<boost::vecS, boost::vecS, boost::bidirectionalS, FlowVertex, FlowEdge>;
using FlowNode = FlowTraits::vertex_descriptor;

// All weights together stay below this, so that infinity, which is more, fits an int64_t.
constexpr uint64_t kTotalWeightMax = uint64_t{1} << 61;

class FlowNetwork {
 public:
  explicit FlowNetwork(const CutProblem& problem, int64_t infinity)
      : nodes_(problem.nodes), graph_(2 * problem.nodes + 2) {
    for (uint32_t node = 0; node < nodes_; ++node) {
      AddArc(In(node), Out(node), static_cast<int64_t>(problem.weight[node]));
    }
    for (const auto& [producer, consumer] : problem.edges) {
      AddArc(Out(producer), In(consumer), infinity);
      AddArc(In(consumer), In(producer), infinity);
    }
    for (const uint32_t node : problem.source) {
      AddArc(Source(), In(node), infinity);
    }
    for (const uint32_t node : problem.sink) {
      AddArc(In(node), Sink(), infinity);
    }
  }

  int64_t MaximumFlow() {
    return boost::boykov_kolmogorov_max_flow(
        graph_, boost::get(&FlowEdge::capacity, graph_), boost::get(&FlowEdge::residual, graph_),
        boost::get(&FlowEdge::reverse, graph_), boost::get(&FlowVertex::predecessor, graph_),
        boost::get(&FlowVertex::color, graph_), boost::get(&FlowVertex::distance, graph_),
        boost::get(boost::vertex_index, graph_), Source(), Sink());
  }

  // Requires: MaximumFlow() has run. What cannot reach the sink in the residual graph is before the
  // cut: that is the largest source side among the minimum cuts.
  std::vector<bool> LargestSourceSide() const {
    std::vector<bool> reaches_sink(boost::num_vertices(graph_), false);
    std::vector<FlowNode> frontier = {Sink()};
    reaches_sink[Sink()] = true;
    while (!frontier.empty()) {
      const FlowNode node = frontier.back();
      frontier.pop_back();
      for (auto [edge, end] = boost::in_edges(node, graph_); edge != end; ++edge) {
        const FlowNode from = boost::source(*edge, graph_);
        if (!reaches_sink[from] && graph_[*edge].residual > 0) {
          reaches_sink[from] = true;
          frontier.push_back(from);
        }
      }
    }
    std::vector<bool> before(nodes_);
    for (uint32_t node = 0; node < nodes_; ++node) {
      before[node] = !reaches_sink[In(node)];
    }
    return before;
  }

 private:
  static FlowNode In(uint32_t node) { return FlowNode{2} * node; }
  static FlowNode Out(uint32_t node) { return FlowNode{2} * node + 1; }
  FlowNode Source() const { return FlowNode{2} * nodes_; }
  FlowNode Sink() const { return FlowNode{2} * nodes_ + 1; }

  void AddArc(FlowNode from, FlowNode to, int64_t capacity) {
    const auto forward = boost::add_edge(from, to, {.capacity = capacity}, graph_).first;
    const auto backward = boost::add_edge(to, from, {.capacity = 0}, graph_).first;
    graph_[forward].reverse = backward;
    graph_[backward].reverse = forward;
  }

  uint32_t nodes_;
  FlowGraph graph_;
};

absl::Status CheckNodes(const CutProblem& problem, const std::vector<uint32_t>& nodes) {
  for (const uint32_t node : nodes) {
    if (node >= problem.nodes) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", node, " is not one of ", problem.nodes));
    }
  }
  return absl::OkStatus();
}

// Returns the sum of the weights.
absl::StatusOr<uint64_t> CheckProblem(const CutProblem& problem) {
  if (problem.weight.size() != problem.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat(problem.weight.size(), " weights for ", problem.nodes, " nodes"));
  }
  uint64_t total = 0;
  for (const uint64_t weight : problem.weight) {
    if (weight > kTotalWeightMax - total) {
      return absl::InvalidArgumentError("the weights together exceed 2^61");
    }
    total += weight;
  }
  for (const auto& [producer, consumer] : problem.edges) {
    if (producer >= consumer || consumer >= problem.nodes) {
      return absl::InvalidArgumentError(
          absl::StrCat("edge ", producer, " to ", consumer, " is not in topological order"));
    }
  }
  LAMINA_RETURN_IF_ERROR(CheckNodes(problem, problem.source));
  LAMINA_RETURN_IF_ERROR(CheckNodes(problem, problem.sink));
  return total;
}

// Whether a node that must be before the cut needs, directly or not, one that must be after it.
bool SourceNeedsSink(const CutProblem& problem) {
  std::vector<bool> needed(problem.nodes, false);
  for (const uint32_t node : problem.source) {
    needed[node] = true;
  }
  // By descending consumer, so that a consumer is settled before its own producers are looked at.
  auto edges = problem.edges;
  std::sort(edges.begin(), edges.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [producer, consumer] : edges) {
    needed[producer] = needed[producer] || needed[consumer];
  }
  return std::any_of(problem.sink.begin(), problem.sink.end(),
                     [&](uint32_t node) { return needed[node]; });
}

uint64_t CutWeight(const CutProblem& problem, const std::vector<bool>& before) {
  std::vector<bool> carried(problem.nodes, false);
  for (const auto& [producer, consumer] : problem.edges) {
    carried[producer] = carried[producer] || (before[producer] && !before[consumer]);
  }
  uint64_t weight = 0;
  for (uint32_t node = 0; node < problem.nodes; ++node) {
    weight += carried[node] ? problem.weight[node] : 0;
  }
  return weight;
}

// Finds the cuts of one graph in the order of its attention ops and turns them into slices.
class GraphSplitter {
 public:
  explicit GraphSplitter(const Graph& graph)
      : graph_(graph), placed_(graph.ops.size(), false), consumers_(graph.values.size()) {
    for (OpId id = 0; id < graph.ops.size(); ++id) {
      for (const ValueId input : graph.ops[id].inputs) {
        consumers_[input].push_back(id);
      }
      if (std::holds_alternative<AttentionOp>(graph.ops[id].body)) {
        attentions_.push_back(id);
      }
    }
  }

  absl::StatusOr<SplitModel> Split() && {
    SplitModel split;
    for (size_t k = 0; k < attentions_.size(); ++k) {
      absl::StatusOr<Cut> cut = MinimumCut(ProblemOf(k));
      if (!cut.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("op ", graph_.ops[attentions_[k]].name, ": ", cut.status().message()));
      }
      split.slices.push_back(TakeSlice(attentions_[k], cut->before));
    }
    Slice& last = split.slices.emplace_back();
    for (OpId id = 0; id < graph_.ops.size(); ++id) {
      if (!placed_[id]) {
        last.ops.push_back(id);
      }
    }
    last.ops_before_send = static_cast<uint32_t>(last.ops.size());
    return split;
  }

 private:
  // The graph without attention k. What earlier slices hold is before the cut; later attentions and
  // the LM head are after it even where nothing ties them to attention k.
  CutProblem ProblemOf(size_t k) const {
    const OpId attention = attentions_[k];
    CutProblem problem;
    problem.nodes = static_cast<uint32_t>(graph_.ops.size());
    problem.source = {Producer(graph_.ops[attention].inputs.front())};
    problem.sink = consumers_[graph_.ops[attention].output];
    problem.sink.insert(problem.sink.end(), attentions_.begin() + static_cast<ptrdiff_t>(k) + 1,
                        attentions_.end());
    problem.sink.push_back(Producer(graph_.logits));
    for (OpId id = 0; id < graph_.ops.size(); ++id) {
      problem.weight.push_back(graph_.values[graph_.ops[id].output].bytes_per_token());
      if (placed_[id]) {
        problem.source.push_back(id);
      }
      for (const ValueId input : graph_.ops[id].inputs) {
        if (id != attention && Producer(input) != attention) {
          problem.edges.emplace_back(Producer(input), id);
        }
      }
    }
    return problem;
  }

  // Makes a slice of what is before the cut and in no slice yet, and marks it and the attention as
  // placed.
  Slice TakeSlice(OpId attention, const std::vector<bool>& before) {
    const std::vector<bool> needed = AncestorsOf(attention);
    Slice slice;
    slice.attention = attention;
    std::vector<OpId> overlapped;
    for (OpId id = 0; id < graph_.ops.size(); ++id) {
      if (before[id] && !placed_[id] && id != attention) {
        (needed[id] ? slice.ops : overlapped).push_back(id);
        placed_[id] = true;
      }
    }
    slice.ops_before_send = static_cast<uint32_t>(slice.ops.size());
    slice.ops.insert(slice.ops.end(), overlapped.begin(), overlapped.end());
    slice.context = CarriedAcross(attention);
    placed_[attention] = true;
    return slice;
  }

  // Requires: all ops before the cut are placed, `attention` is not.
  std::vector<ValueId> CarriedAcross(OpId attention) const {
    std::vector<ValueId> carried;
    for (ValueId value = 0; value < graph_.values.size(); ++value) {
      const bool needed_later =
          std::any_of(consumers_[value].begin(), consumers_[value].end(),
                      [&](OpId id) { return !placed_[id] && id != attention; });
      if (placed_[Producer(value)] && needed_later) {
        carried.push_back(value);
      }
    }
    return carried;
  }

  std::vector<bool> AncestorsOf(OpId op) const {
    std::vector<bool> ancestors(graph_.ops.size(), false);
    ancestors[op] = true;
    for (OpId id = op + 1; id-- > 0;) {
      if (ancestors[id]) {
        for (const ValueId input : graph_.ops[id].inputs) {
          ancestors[Producer(input)] = true;
        }
      }
    }
    return ancestors;
  }

  OpId Producer(ValueId value) const { return graph_.values[value].producer; }

  const Graph& graph_;
  std::vector<OpId> attentions_;
  std::vector<bool> placed_;                  // [ops]; in a slice, or an attention passed.
  std::vector<std::vector<OpId>> consumers_;  // [values]
};

}  // namespace

absl::StatusOr<Cut> MinimumCut(const CutProblem& problem) {
  LAMINA_ASSIGN_OR_RETURN(const uint64_t total, CheckProblem(problem));
  if (SourceNeedsSink(problem)) {
    return absl::InvalidArgumentError(
        "no cut: what must come before it needs what must come after it");
  }
  FlowNetwork network(problem, /*infinity=*/static_cast<int64_t>(total) + 1);
  const int64_t flow = network.MaximumFlow();
  Cut cut;
  cut.before = network.LargestSourceSide();
  cut.weight = CutWeight(problem, cut.before);
  LAMINA_CHECK(cut.weight == static_cast<uint64_t>(flow));
  return cut;
}

uint64_t SplitModel::ContextBytesPerToken(const Graph& graph, uint32_t slice) const {
  uint64_t bytes = 0;
  for (const ValueId value : slices[slice].context) {
    bytes += graph.values[value].bytes_per_token();
  }
  return bytes;
}

absl::StatusOr<SplitModel> SplitAtAttention(const Graph& graph) {
  LAMINA_RETURN_IF_ERROR(graph.Validate());
  return GraphSplitter(graph).Split();
}

}  // namespace lamina::model
