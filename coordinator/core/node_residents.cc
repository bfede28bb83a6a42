// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/node_residents.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lamina::core {
namespace {

std::vector<uint32_t> HomesOf(const Sequence& sequence, const SequenceKv& kv) {
  std::vector<uint32_t> homes = {sequence.node};
  kv.VisitSpans(sequence.request.id, [&homes](const SequenceKv::Span& span) {
    if (span.slots > 0 && std::find(homes.begin(), homes.end(), span.node) == homes.end()) {
      homes.push_back(span.node);
    }
  });
  return homes;
}

}  // namespace

void NodeResidents::Reset(uint32_t memory_nodes) { nodes_.assign(memory_nodes, Node(before_)); }

void NodeResidents::Add(Sequence& sequence, const SequenceKv& kv) {
  sequence.lives_on = HomesOf(sequence, kv);
  for (const uint32_t node : sequence.lives_on) {
    LAMINA_CHECK(nodes_[node].residents.insert(&sequence).second);
  }
}

void NodeResidents::Remove(Sequence& sequence) {
  Feed(sequence);
  for (const uint32_t node : sequence.lives_on) {
    LAMINA_CHECK(nodes_[node].residents.erase(&sequence) == 1);
  }
  sequence.lives_on.clear();
}

void NodeResidents::SetNode(Sequence& sequence, uint32_t node, const SequenceKv& kv) {
  Remove(sequence);
  sequence.node = node;
  Add(sequence, kv);
}

void NodeResidents::Resettle(Sequence& sequence, const SequenceKv& kv) {
  const bool starving = sequence.starving;
  SetNode(sequence, sequence.node, kv);
  if (starving) {
    Starve(sequence);
  }
}

void NodeResidents::Starve(Sequence& sequence) {
  if (!sequence.starving) {
    sequence.starving = true;
    std::vector<Sequence*>& starving = nodes_[sequence.node].starving;
    starving.insert(std::upper_bound(starving.begin(), starving.end(), &sequence, before_),
                    &sequence);
  }
}

void NodeResidents::Feed(Sequence& sequence) {
  if (sequence.starving) {
    std::vector<Sequence*>& starving = nodes_[sequence.node].starving;
    starving.erase(std::lower_bound(starving.begin(), starving.end(), &sequence, before_));
    sequence.starving = false;
  }
}

size_t NodeResidents::StarvingBefore(Sequence& sequence) const {
  const std::vector<Sequence*>& starving = nodes_[sequence.node].starving;
  return static_cast<size_t>(
      std::lower_bound(starving.begin(), starving.end(), &sequence, before_) - starving.begin());
}

absl::Status NodeResidents::Audit(const std::vector<Sequence*>& running,
                                  const SequenceKv& kv) const {
  std::vector<size_t> residents(nodes_.size());
  std::vector<size_t> starving(nodes_.size());
  for (Sequence* sequence : running) {
    const std::vector<uint32_t> homes = HomesOf(*sequence, kv);
    for (const uint32_t node : homes) {
      if (!nodes_[node].residents.contains(sequence)) {
        return absl::InternalError(absl::StrCat("sequence ", sequence->request.id,
                                                " is not known to live on node ", node));
      }
      ++residents[node];
    }
    starving[sequence->node] += sequence->starving ? 1 : 0;
  }
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    const std::vector<Sequence*>& hungry = nodes_[node].starving;
    const bool marked = std::all_of(hungry.begin(), hungry.end(), [&](const Sequence* sequence) {
      return sequence->starving && sequence->node == node;
    });
    if (residents[node] != nodes_[node].residents.size() || starving[node] != hungry.size() ||
        !marked || !std::is_sorted(hungry.begin(), hungry.end(), before_)) {
      return absl::InternalError(absl::StrCat("node ", node, " miscounts who lives or starves"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::core
