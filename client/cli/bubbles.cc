// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bubbles.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lamina::cli {
namespace {

constexpr char kWaitPlan[] = "wait_plan";
constexpr char kWaitAttention[] = "wait_attention";
constexpr char kWaitWeights[] = "wait_weights";
// Below that nobody need look.
constexpr double kShareLeast = 0.005;

double Grown(double before, double after) { return after >= before ? after - before : after; }

double PartOf(const client::NodeStatus& node, const std::string& name) {
  const auto found = std::find_if(node.parts.begin(), node.parts.end(),
                                  [&name](const auto& part) { return part.first == name; });
  return found == node.parts.end() ? 0 : found->second;
}

// Whether such waits are for that node: attention for a memory node, others for a compute node.
bool MayWaitFor(const client::ClusterStatus& cluster, const std::string& peer,
                const std::string& part) {
  const auto node = std::find_if(cluster.nodes.begin(), cluster.nodes.end(),
                                 [&peer](const auto& other) { return other.name == peer; });
  return node == cluster.nodes.end() || node->role.empty() ||
         (node->role == "memory") == (part == kWaitAttention);
}

// The peer that the node stood still for longest, of those that this part of its time is about.
std::string AwaitedPeer(const client::NodeStatus& before, const client::NodeStatus& after,
                        const client::ClusterStatus& cluster, const std::string& part) {
  std::string longest;
  double most = 0;
  for (const client::LinkStatus& link : after.links) {
    if (!MayWaitFor(cluster, link.peer, part)) {
      continue;
    }
    const auto old =
        std::find_if(before.links.begin(), before.links.end(),
                     [&link](const client::LinkStatus& other) { return other.peer == link.peer; });
    const double waited =
        Grown(old == before.links.end() ? 0 : old->waited_seconds, link.waited_seconds);
    if (waited > most) {
      most = waited;
      longest = link.peer;
    }
  }
  return longest;
}

std::string ReasonInWords(const std::string& part, const std::string& peer) {
  if (part == kWaitPlan) {
    return "for plans: there is nothing to do";
  }
  if (part == kWaitWeights) {
    return "for weights that stream";
  }
  const std::string of = peer.empty() ? "others" : peer;
  if (part == kWaitAttention) {
    return absl::StrCat("for attention of ", of);
  }
  return part == "wait_query" ? absl::StrCat("for queries of ", of) : absl::StrCat("for ", of);
}

// The time between two looks as the node's reports cover it, which come twice a second: the sum of
// its parts. Where that cannot be, as when a wait from before ended meanwhile: `seconds`.
double Covered(const client::NodeStatus& before, const client::NodeStatus& after, double seconds) {
  double sum = 0;
  for (const auto& [name, total] : after.parts) {
    sum += Grown(PartOf(before, name), total);
  }
  return sum > seconds / 2 && sum < seconds * 1.5 ? sum : seconds;
}

struct Bubble {
  double share = 0;
  std::string node;
  std::string reason;
};

}  // namespace

client::NodeStatus Earlier(const client::ClusterStatus& before, const client::NodeStatus& after) {
  const auto found =
      std::find_if(before.nodes.begin(), before.nodes.end(),
                   [&after](const client::NodeStatus& node) { return node.name == after.name; });
  if (found == before.nodes.end()) {
    return client::NodeStatus();
  }
  return found->reports > 0 ? *found : after;
}

Json PartShares(const client::NodeStatus& before, const client::NodeStatus& after, double seconds) {
  Json shares = Json::object();
  const double covered = Covered(before, after, seconds);
  for (const auto& [name, total] : after.parts) {
    shares[name] = covered > 0 ? std::min(Grown(PartOf(before, name), total) / covered, 1.0) : 0.0;
  }
  return shares;
}

std::string LargestBubble(const client::ClusterStatus& before, const client::ClusterStatus& after,
                          double seconds, bool several) {
  std::string busy;
  Bubble largest;
  Bubble idle;
  for (const client::NodeStatus& node : after.nodes) {
    if (node.parts.empty() || seconds <= 0) {
      continue;
    }
    const client::NodeStatus old = Earlier(before, node);
    const double covered = Covered(old, node, seconds);
    const double share = Grown(old.busy_seconds, node.busy_seconds) / covered;
    absl::StrAppend(&busy, busy.empty() ? "busy: " : ", ", node.name,
                    absl::StrFormat(" %.1f%%", std::min(share, 1.0) * 100));
    for (const auto& [part, total] : node.parts) {
      if (!absl::StartsWith(part, "wait_")) {
        continue;
      }
      const double wait = std::min(Grown(PartOf(old, part), total) / covered, 1.0);
      Bubble& bubble = part == kWaitPlan ? idle : largest;
      if (wait > bubble.share) {
        bubble = {.share = wait,
                  .node = node.name,
                  .reason = ReasonInWords(part, AwaitedPeer(old, node, after, part))};
      }
    }
  }
  if (!several && largest.share >= kShareLeast) {
    return busy;  // One request at a time: each node waits for the other, and nothing helps.
  }
  const Bubble& told = largest.share >= kShareLeast ? largest : idle;
  if (busy.empty() || told.share < kShareLeast) {
    return busy;
  }
  return absl::StrCat(busy, "\nlargest bubble: ", told.node, " stands still ",
                      absl::StrFormat("%.1f%%", told.share * 100), " of the time ", told.reason);
}

}  // namespace lamina::cli
