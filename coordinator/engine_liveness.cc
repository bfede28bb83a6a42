// SPDX-License-Identifier: Apache-2.0
//
// Who is alive: nodes that fall silent or hang are left out, as if they had left.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "coordinator/engine_internal.h"

namespace lamina::coordinator {

void Engine::Impl::DropSilentNodes() {
  for (const std::string& name : silence.Lost()) {
    LeaveOut(name,
             absl::StrCat("no sign of life from ", name, " for ",
                          ToSeconds(options.node_silence_max), " s", silence.OwnDelays(name)));
  }
}

// A node whose data thread hangs is as good as gone, though its control threads answer: nothing is
// asked of it any more, and its peers go on without it.
void Engine::Impl::DropStuckNodes() {
  for (const core::ThreadWatch::Stuck& stuck : threads.Late(silence.awake())) {
    LeaveOut(stuck.name, absl::StrCat("left out ", stuck.name, ": ", core::Describe(stuck)));
  }
}

void Engine::Impl::LeaveOut(const std::string& name, const std::string& why) {
  LogWarning(why);
  const std::shared_ptr<NodePort> port = nodes.at(name).port;
  port->Leave(why);
  port->End();
  NodeLeft({.name = name, .port = port.get()});
}

}  // namespace lamina::coordinator
