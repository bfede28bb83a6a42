// SPDX-License-Identifier: Apache-2.0
//
// FaultEvidence: who blames whom for the faults of late epochs, and who is set aside for it. A pure
// state machine.
//
// Two nodes that cannot work together may blame each other, and both report. What tells them apart
// is what the others say: how many blame the one, and who could work with it. The answer depends on
// what was reported, not on the order: reports of an epoch that is over count too, but only between
// two that blame each other. Whoever leaves an epoch takes its regions along, so that a third one
// that is late finds them gone, which says nothing about their owner.
//
// Determinism: same reports in any order, same verdict.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace lamina::core {

class FaultEvidence {
 public:
  // A node that may be set aside.
  struct Suspect {
    std::string name;
    bool is_memory = false;
    bool needed = false;  // Without it no epoch can form.
  };
  struct Verdict {
    std::string name;
    std::string problem;  // "blamed by c0, c1: cannot open its region"; its own words alone.
  };

  // `accused` may be the reporter itself, which then failed by itself. `late`: `epoch` is over.
  void Accuse(const std::string& reporter, const std::string& accused, uint64_t epoch, bool late,
              absl::string_view message);
  // The node has opened the regions of all its peers.
  void Connected(const std::string& name, bool is_memory, uint64_t epoch);
  // The node left, or was set aside: neither its words nor those about it count any more.
  void Forget(const std::string& name);
  void Clear();

  // Whom to set aside for the faults since epoch `since`. First the one that most nodes blame; of
  // those the one that fewer could connect to, then one that is not needed. Nothing when nobody is
  // blamed, or when two that nothing tells apart are both needed: setting aside either would be a
  // guess, and leave no cluster. Two that are not needed are told apart by role (a memory node
  // goes, which others can replace) and place in the cluster file (the later one goes).
  //
  // A needed node that only one accuses, who is not needed, stays, and the accuser goes: the others
  // may not have been heard yet, and without the accuser there is a cluster to hear them in.
  std::optional<Verdict> Decide(const std::vector<Suspect>& nodes, uint64_t since) const;

 private:
  struct Words {
    uint64_t epoch = 0;    // Epoch of the last report.
    uint64_t in_time = 0;  // Epoch of the last report that was not late; 0: there is none.
    std::string message;
  };
  struct Connection {
    bool is_memory = false;
    uint64_t epoch = 0;
  };
  bool Blames(const std::string& reporter, const std::string& accused, uint64_t since) const;
  std::vector<std::string> AccusersOf(const std::string& name, uint64_t since) const;
  uint32_t ConnectedTo(const Suspect& node, uint64_t since) const;

  std::map<std::pair<std::string, std::string>, Words> words_;  // By accused and reporter.
  std::map<std::string, Connection> connected_;
};

}  // namespace lamina::core
